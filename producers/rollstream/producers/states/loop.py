"""The producer of states: it has the states that cycles of clients' answers started from answered again, to train.

Consumes   `serve-scored`: completed rollouts of the agent `reasoning_cache`; `ledger`: which groups closed;
           `producers`: who has this work; at the start also `prompts`.
Produces   `prompts`: at most `per_rollout` states of a rollout, each once; `producers`: its claim, its credit, and how
           far `serve-scored` is read.
Waits for  credit, as every producer of training prompts.
Unblocked  by the trainer, which closes every group.

What happens when …
  … this process is killed: the next one reads on from the newest record on `producers`. States whose prompts lie on
    `prompts` already, after that record, are not submitted again.
  … another process starts under its name: this one ends with exit code 75 (`claims.py`).
  … the share is used up: it reads no further. What the broker deletes meanwhile is passed over, with a warning.
  … a rollout can't be posed, for example since a record names options that its agent does not take: it is counted.
  … a record can't be read: it is passed over.
"""

import logging
from collections.abc import Mapping
from contextlib import closing
from typing import Final

from rollstream.bus.deliveries import DELIVERY_TIMEOUT_SECONDS
from rollstream.bus.message import Partition
from rollstream.bus.publisher import Publisher
from rollstream.bus.reader import TopicReader
from rollstream.bus.run import Run
from rollstream.bus.tracing import sending
from rollstream.process.crash_points import crash_point
from rollstream.process.health import Health
from rollstream.process.stop import Stop
from rollstream.process.tracing.spans import OFF, Tracing
from rollstream.producers import metrics as of_producers
from rollstream.producers.flat_groups import FlatGroups
from rollstream.producers.foreign import have_prompts_expired, not_on_prompts
from rollstream.producers.settings import ProducerSettings
from rollstream.producers.standing import Standing, published
from rollstream.producers.states.reading import StateReader
from rollstream.schemas.errors import InconsistentLedgerError
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.topics import LEDGER, PRODUCERS, PROMPTS, SERVE_SCORED

_LOG = logging.getLogger(__name__)
_MOST_AT_ONCE: Final = 500
_WAIT_SECONDS: Final = 0.5


class StatesProducer:
    """The producer of states of a run; `run` returns when it is asked to stop."""

    def __init__(
        self, run: Run, settings: ProducerSettings, publisher: Publisher, states: StateReader, *, health: Health,
        tracing: Tracing = OFF,
    ) -> None:  # fmt: skip
        self._run = run
        self._settings = settings
        self._publisher = publisher
        self._states = states
        self._health = health
        self._tracing = tracing
        self._standing = Standing(run, settings.name, states.dataset, share=settings.share_groups, health=health)
        self._flat = FlatGroups(settings)
        self._sequence = 0
        # Groups that were found on `prompts` at the start, and must not be submitted again.
        self._known: set[str] = set()
        self._prompts_offsets: dict[int, int] = {}
        # Before them nothing is left to do: the mark in `serve-scored`, and the offsets in `prompts`.
        self._done: tuple[str, dict[int, int]] = ("", {})

    def run(self, stop: Stop) -> None:
        """Claim this work, find out what happened before, then submit as the credit allows."""
        claims_read_to = self._standing.claim()
        self._go_on_from_mark()
        self._save()
        while True:
            try:
                self._go_on(claims_read_to, stop)
                return
            except InconsistentLedgerError as error:
                _LOG.warning("the credit is made again from the whole ledger: %s", error)
            self._standing.credit = self._standing.credit.anew()

    def _go_on_from_mark(self) -> None:
        claims = self._standing.claims
        own = claims.own_of_source
        if claims.own is not None:
            self._sequence = claims.own.next_sequence
        offsets = {} if own is None else own.prompts_offsets
        self._prompts_offsets = {int(name): offset for name, offset in offsets.items() if name.isdecimal()}
        mark = "" if own is None else own.mark
        self._done = (mark, dict(self._prompts_offsets))
        self._states.go_on_from(mark)
        self._read_prompts()

    def _read_prompts(self) -> None:
        """Find what was submitted after the mark: it needs credit until it closes, and no second prompt."""
        start = self._standing.start_in(PROMPTS, self._prompts_offsets)
        numbers: list[int] = []
        with self._run.reader(PROMPTS, start=start) as reader:
            for message in reader.to_end():
                prompt = self._run.decoded(PROMPTS, message)
                if prompt is not None and prompt.source.dataset == self._states.dataset:
                    self._known.add(prompt.group_id)
                    self._standing.credit.submitted(prompt.group_id)
                    numbers.append(prompt.sequence)
        # Its own have no gaps. Anybody may write there, with any number.
        bound = self._sequence + len(numbers)
        self._sequence = max([self._sequence, *(number + 1 for number in numbers if number < bound)])

    def _go_on(self, claims_read_to: Mapping[Partition, int], stop: Stop) -> None:
        start = {**self._standing.start_in(LEDGER, {0: self._standing.credit.ledger_offset}), **claims_read_to}
        with self._run.reader(LEDGER, PRODUCERS, start=start, follows=True) as reader:
            for message in reader.to_end():
                self._standing.take_in(message)
            self._disown_ghosts()
            self._health.check("credit", True, "made from producers, prompts and ledger")
            self._flat = FlatGroups(self._settings)
            while not stop.is_asked:
                self._turn(reader)
            self._save()

    def _disown_ghosts(self) -> None:
        """Give up groups that its record names, and that nobody submitted: they would never close."""
        credit = self._standing.credit
        ghosts = not_on_prompts(self._run, credit.outstanding - self._known, self._prompts_offsets)
        # Else their prompts may have been there.
        if ghosts and not have_prompts_expired(self._run):
            credit.disown(ghosts)
            of_producers.GHOSTS.inc(len(ghosts))

    def _turn(self, reader: TopicReader) -> None:
        """Take in what has come, and submit what there is room for."""
        self._health.heartbeat("loop", max_age_seconds=2 * DELIVERY_TIMEOUT_SECONDS + 60)
        credit, saved_offset = self._standing.credit, self._standing.credit.ledger_offset
        if not self._states.pending:
            self._done = (self._states.mark, dict(self._prompts_offsets))
            self._states.read()
        batch = self._batch()
        if batch:
            self._publish(batch)
        for message in reader.poll(timeout_seconds=0 if batch else _WAIT_SECONDS):
            folded = self._standing.take_in(message)
            own = set() if folded is None else set(folded.own)
            for group in () if folded is None else folded.entry.closed:
                if group.group_id in own:
                    self._flat.note(group)
        if batch or saved_offset != credit.ledger_offset:
            self._save()
        credit.forget()
        self._flat.check({})
        of_producers.SHARE.set(credit.share)
        of_producers.OUTSTANDING.set(credit.num_outstanding)
        of_producers.SEQUENCE.set(self._sequence)

    def _batch(self) -> list[PromptSubmitted]:
        """The next prompts, each counted against credit."""
        found: list[PromptSubmitted] = []
        credit, pending = self._standing.credit, self._states.pending
        while pending and credit.free and len(found) < _MOST_AT_ONCE:
            prompt = pending.popleft()
            if prompt.group_id in self._known:
                self._known.discard(prompt.group_id)
                continue
            credit.submitted(prompt.group_id)
            found.append(prompt.model_copy(update={"sequence": self._sequence}))
            self._sequence += 1
        return found

    def _publish(self, batch: list[PromptSubmitted]) -> None:
        records = [self._run.out_record(PROMPTS, prompt) for prompt in batch]
        with sending(self._tracing, records, operation="submit") as sent:
            ends = published(self._publisher, sent)
        for (_, number), end in ends.items():
            self._prompts_offsets[number] = max(end, self._prompts_offsets.get(number, 0))
        crash_point("states_submitted")
        of_producers.SUBMITTED.inc(len(batch))

    def _save(self) -> None:
        """Publish its claim, its credit and its place. What it names as open was confirmed before."""
        mark, offsets = self._done
        progress = self._standing.progress(
            mark=mark,
            next_sequence=self._sequence,
            prompts_offsets={str(number): offset for number, offset in offsets.items()},
        )
        published(self._publisher, [self._run.out_record(PRODUCERS, progress)])


def run_states(settings: ProducerSettings, stop: Stop, *, health: Health, tracing: Tracing = OFF) -> None:
    """Run the producer of states. Raises `BrokerError`, and what `Claims.claim` raises."""
    run = Run(settings)
    run.make_codecs(SERVE_SCORED, PROMPTS, PRODUCERS, LEDGER)
    run.require_topics(SERVE_SCORED)
    with (
        run.publisher(run.group(f"producer.{settings.name}")) as publisher,
        closing(StateReader(run, settings)) as states,
    ):
        StatesProducer(run, settings, publisher, states, health=health, tracing=tracing).run(stop)
