"""How far samples have come, on `progress`: kept while they run, read by the partition's next owner, then deleted.

A record lies on the partition that its prompt has on `prompts`, so whoever gets that partition reads what its last
owner kept, before it handles a prompt. It is deleted once the prompt's offset is committed: until then another process
may get the prompt, and is to ask nothing of it again. What is left if this process dies in between is of a prompt that
nobody gets any more, and expires. A sample of one turn that is not long is published at once: nothing of it is kept.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from weakref import WeakKeyDictionary

from rollstream.agents.journal import SampleJournal, earlier_of
from rollstream.bus.deliveries import Deliveries
from rollstream.bus.in_flight import InFlight
from rollstream.bus.message import OutRecord
from rollstream.bus.offsets import OffsetTracker
from rollstream.bus.publisher import Publisher
from rollstream.bus.run import Run
from rollstream.generator import metrics
from rollstream.generator.handler import samples_of
from rollstream.generator.standstill import Standstill
from rollstream.schemas.errors import EncodeError, ToolError
from rollstream.schemas.ids import new_attempt_id, rollout_id
from rollstream.schemas.progress import TurnProgress
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.topics import Topic

_LOG = logging.getLogger(__name__)

Kept = dict[str, list[TurnProgress]]
"""What was kept, by rollout_id, in its order: of each key and attempt the newest."""
Close = Callable[[PromptSubmitted, int, SampleJournal], Awaitable[None]]
"""Closes the session that an earlier attempt at a sample left open."""


class ProgressKeeper:
    """Reads and writes one topic of progress, for the partitions that this process owns."""

    def __init__(
        self,
        run: Run,
        topic: Topic[TurnProgress],
        publisher: Publisher,
        generator_id: str,
        standstill: Standstill,
    ) -> None:
        run.make_codecs(topic)
        self.standstill = standstill
        self.run = run
        self.topic = topic
        self.publisher = publisher
        self.generator_id = generator_id
        # By the ownership of a partition: one that was lost and comes back is read again.
        self._reading: WeakKeyDictionary[OffsetTracker, asyncio.Task[tuple[int, Kept]]] = WeakKeyDictionary()

    async def begun(self, prompt: PromptSubmitted, taken: InFlight) -> "PromptProgress":
        """What is known of the samples of a prompt that is in hand now. Raises `BrokerError`."""
        reading = self._reading.get(taken.tracker)
        if reading is None:
            reading = asyncio.create_task(asyncio.to_thread(self._read, taken.message.partition))
            self._reading[taken.tracker] = reading
        number, kept = await asyncio.shield(reading)
        rollouts = [rollout_id(prompt.group_id, index) for index in samples_of(prompt)]
        return PromptProgress(self, number, taken, {each: kept.pop(each) for each in rollouts if each in kept})

    async def end(self, prompt: PromptSubmitted, taken: InFlight, close: Close) -> None:
        """End what was left of a prompt that nobody goes on with: its sessions, and its keys. Raises `BrokerError`."""
        progress = await self.begun(prompt, taken)
        await asyncio.gather(*(close(prompt, index, progress.journal(prompt, index)) for index in samples_of(prompt)))
        await progress.delete()

    def _read(self, prompts_partition: int) -> tuple[int, Kept]:
        """The partition where progress of these prompts lies, and what lies there."""
        # `prompts` may have got partitions that this topic does not have.
        number = prompts_partition % self.run.admin().shape(self.run.topic(self.topic)).num_partitions
        newest: dict[str, dict[tuple[str, str], TurnProgress]] = {}
        with self.run.reader(self.topic, only=number) as reader:
            for message in reader.to_end():
                if message.value is None and not message.undecoded:
                    _forget(newest, (message.key or b"").decode(errors="replace"))
                elif (record := self.run.decoded(self.topic, message)) is not None:
                    of_rollout = newest.setdefault(record.rollout_id, {})
                    of_rollout.pop((record.key, record.attempt_id), None)  # so that the order is that of the newest
                    of_rollout[record.key, record.attempt_id] = record
        return number, {rollout: list(records.values()) for rollout, records in newest.items() if records}


class PromptProgress:
    """What is kept of one prompt's samples. `earlier`: by an earlier owner of its partition."""

    def __init__(self, keeper: ProgressKeeper, number: int, taken: InFlight, earlier: Kept) -> None:
        self._keeper = keeper
        self._number = number
        self._taken = taken
        self._earlier = earlier
        self._keys: set[str] = set()
        self._journals: list[SampleJournal] = []
        self._deliveries = Deliveries()
        self._note({record.key for records in earlier.values() for record in records})

    def journal(self, prompt: PromptSubmitted, index: int) -> SampleJournal:
        """The journal of a new attempt at sample `index`."""
        rollout = rollout_id(prompt.group_id, index)
        earlier = earlier_of(self._earlier.get(rollout, ()))
        made = SampleJournal(rollout, new_attempt_id(), self._keeper.generator_id, self._keep, earlier)
        self._journals.append(made)
        return made

    async def _keep(self, progress: TurnProgress, is_urgent: bool) -> None:
        keeper = self._keeper
        try:
            record = replace(keeper.run.out_record(keeper.topic, progress), partition=self._number)
        except EncodeError as error:
            metrics.PROGRESS.labels(kind="too_large").inc()
            if is_urgent:
                raise ToolError(f"what is about to be done can't be kept: {error}") from error
            _LOG.warning("progress of %s is not kept: %s", progress.rollout_id, error)
            return
        # If another process has the partition, it has read what was kept, and may have deleted it: nothing is to come
        # behind that, and what follows, such as a call of a tool, is its own.
        await keeper.standstill.over()
        self._note({progress.key})
        if is_urgent:
            await keeper.publisher.publish(record)
        else:
            await keeper.publisher.send(record, self._deliveries)
        metrics.PROGRESS.labels(kind=progress.kind.value).inc()

    def _note(self, keys: set[str]) -> None:
        """These keys are on the topic: they are to be deleted when the prompt is committed."""
        self._keys |= keys
        if self._keys:
            self._taken.ending = self.delete

    async def delete(self) -> None:
        """Delete what was kept, and close what was left open for nobody. Raises `BrokerError`."""
        for journal in self._journals:
            if journal.left is not None:
                await journal.left()
        await self._deliveries.confirmed()
        topic, deleted = self._keeper.run.topic(self._keeper.topic), Deliveries()
        for key in sorted(self._keys):
            tombstone = OutRecord(topic=topic, key=key.encode(), value=None, partition=self._number)
            await self._keeper.publisher.send(tombstone, deleted)
        await deleted.confirmed()


def _forget(newest: dict[str, dict[tuple[str, str], TurnProgress]], key: str) -> None:
    of_rollout = newest.get(key.rpartition("/")[0], {})
    for deleted in [one for one in of_rollout if one[0] == key]:
        del of_rollout[deleted]
