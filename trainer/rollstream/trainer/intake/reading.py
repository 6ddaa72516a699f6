"""Reads and decodes `prompts` and `scored`, and hands the records to the assembler."""

import logging
from collections.abc import Mapping
from typing import Final

from rollstream.bus.deliveries import DELIVERY_TIMEOUT_SECONDS
from rollstream.bus.message import KafkaMessage, Partition
from rollstream.bus.metrics import DEAD_LETTERS as NUM_DEAD_LETTERS
from rollstream.bus.run import Run
from rollstream.process.tracing.context import context_in, log_keys
from rollstream.schemas.errors import BrokerError, DecodeError
from rollstream.schemas.record import utc_now
from rollstream.schemas.topics import DEAD_LETTERS, PROMPTS, SCORED
from rollstream.stage.dead_letters import dead_letter
from rollstream.trainer import metrics
from rollstream.trainer.intake.aging import ReadUpTo
from rollstream.trainer.intake.assembler import Assembler
from rollstream.trainer.intake.groups import LogPlace
from rollstream.trainer.settings import TrainerSettings

_LOG = logging.getLogger(__name__)
# Few enough that records of a megabyte each fit into memory.
_MOST_AT_ONCE: Final = 64


class RolloutReader:
    """Reads `prompts` and `scored` of the run whose rollouts are trained on; reads only when `poll` is called."""

    def __init__(self, settings: TrainerSettings, start: Mapping[Partition, int]) -> None:
        self._is_traced = settings.tracing.is_on
        run = Run(settings)
        source = run.sibling(settings.rollouts_run)
        self._prompts_topic = source.topic(PROMPTS)
        self._prompts = source.codec(PROMPTS)
        self._scored = source.codec(SCORED)
        self._group = run.group("trainer")
        self._dead_letters = run.topic(DEAD_LETTERS)
        self._publisher = run.publisher(f"{self._group}.dead-letters")
        self.committed = dict(start)
        """The offsets that monitors see as the trainer's."""
        self._reader = source.reader(PROMPTS, SCORED, start=start, monitor_group=self._group, follows=True)

    def close(self) -> None:
        self._reader.close()
        self._publisher.close()

    @property
    def topic_ids(self) -> dict[str, str]:
        return self._reader.topic_ids

    def poll(self, timeout_seconds: float) -> list[KafkaMessage]:
        """The next messages, at most 64; waits at most `timeout_seconds` for the first, empty if none came."""
        return self._reader.poll(_MOST_AT_ONCE, timeout_seconds)

    def read_up_to(self) -> ReadUpTo:
        positions = self._reader.positions()
        return ReadUpTo(
            prompts={number: offset for (topic, number), offset in positions.items() if topic == self._prompts_topic},
            scored={number: offset for (topic, number), offset in positions.items() if topic != self._prompts_topic},
        )

    def assemble(self, messages: list[KafkaMessage], assembler: Assembler) -> None:
        """Decode and assemble; a sample that can't be read goes to dead-letters, and its group lacks it."""
        for message in messages:
            place = LogPlace(message.topic_partition, message.offset)
            trace = context_in(message.headers) if self._is_traced else None
            try:
                if message.topic == self._prompts_topic:
                    assembler.add_prompt(self._prompts.decode(message.checked_value()), place, trace)
                else:
                    scored = self._scored.decode(message.checked_value())
                    assembler.add_sample(scored, place, len(message.value or b""), trace)
            except DecodeError as error:
                self._pass_over(message, error)
                assembler.skip(place)

    def commit_for_monitoring(self, offsets: Mapping[Partition, int]) -> None:
        """Commit offsets for lag monitors alone; the trainer itself restarts from its checkpoint."""
        self._reader.commit_for_monitoring(offsets)
        self.committed = dict(offsets)

    def _pass_over(self, message: KafkaMessage, error: DecodeError) -> None:
        if message.topic == self._prompts_topic:
            # The generators put it into dead-letters too. A second dead letter would be replayed as a second prompt.
            metrics.UNREADABLE_PROMPTS.inc()
            return
        record = dead_letter(message, topic=self._dead_letters, group=self._group, error=error, failed_at=utc_now())
        try:
            self._publisher.publish_soon(record).result(DELIVERY_TIMEOUT_SECONDS)
        except TimeoutError as late:
            raise BrokerError(f"no delivery report from {self._dead_letters} in {DELIVERY_TIMEOUT_SECONDS} s") from late
        NUM_DEAD_LETTERS.labels(message.topic, "unreadable").inc()
        trace = context_in(message.headers) if self._is_traced else None
        _LOG.warning("unreadable sample: %s", error, extra={**message.place(), **log_keys(trace)})
