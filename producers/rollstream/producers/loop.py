"""The producer stage: submits prompts, with as many groups open as its share allows. That bounds policy lag
(`credit.py`).

Consumes   `ledger`: which groups are closed, and how hard they were; `producers`: who has which source; at the start
           also the topic of its prompts.
Produces   `prompts`, or `serve-prompts` with purpose=serve; `producers`: its claim on its source, and after each batch
           how far it is.
Waits for  credit, i.e. for its groups to close.
Unblocked  by the trainer, which closes every group, trained on or dropped.

What happens when …
  … this process is killed: it keeps nothing on disk. The next one goes on from the newest record on `producers`. It
    reads what came after it on `prompts` and `ledger`, and submits those prompts of the last batch that are missing.
  … it is asked to stop: it waits until Kafka has confirmed the current batch, for 10 s at most, then it ends. What was
    not confirmed by then the next process finds out, as after a kill.
  … another process starts under its name: this one ends with exit code 75. A producer of another name that has the
    same source already: this one refuses to start (`claims.py`).
  … a prompt is submitted twice: the same row and epoch have the same group_id, which is one group for the trainer
    and counts once against the share.
  … somebody else submits a prompt in its name: it is passed over, with a warning, unless it is what the source gives at
    that place. No row is left out for it (`foreign.py`).
  … somebody else writes on `producers` in its name: what the log contradicts is passed over (`plausible.py`), and
    groups that nobody submitted use no credit (`foreign.py`).
  … a record of `prompts`, `ledger` or `producers` can't be read: it is passed over. Generators put the prompt into
    dead-letters. The same holds for an entry of the ledger that contradicts those before it. This producer is not ready
    then, since credit may not come back. `rollstream ledger repair` writes which entries do not count: then the credit
    is made again without them.
  … the trainer stops, or falls behind: the share is used up, so nothing is submitted that would become too old.
  … the trainer restarts from a checkpoint: groups closed by the steps that were cut are open again, and count again.
    If a rollback goes back further than is remembered, the credit is made again from the whole of `prompts` and
    `ledger`.
  … nothing can be learned of its groups, since so many in a row have no spread: it ends with 78 and a report.
  … its source is what clients gave to `rollstream ingest`: it poses them in the order in which they came, and waits for
    more. A record that is no prompt to be posed becomes a dead letter (`sources/ingest.py`).
  … it has a curriculum: each pass over the source poses what `curriculum.py` chooses. What a pass chooses is noted
    before it begins, so that a later process goes on in it.
  … the broker takes no more records: the process ends, non-zero.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from itertools import islice

from rollstream.bus.deliveries import DELIVERY_TIMEOUT_SECONDS
from rollstream.bus.message import KafkaMessage, OutRecord, Partition
from rollstream.bus.publisher import Publisher
from rollstream.bus.reader import TopicReader
from rollstream.bus.run import Run
from rollstream.bus.tracing import sending
from rollstream.process.crash_points import crash_point
from rollstream.process.health import Health
from rollstream.process.stop import Stop, ending_within
from rollstream.process.tracing.begin import require_tracing, tracing_of
from rollstream.process.tracing.spans import OFF, Tracing
from rollstream.producers import metrics
from rollstream.producers.credit import Credit
from rollstream.producers.flat_groups import FlatGroups
from rollstream.producers.foreign import FoundPrompts, have_prompts_expired, not_on_prompts
from rollstream.producers.numbering import group_of_row, prompt_of_row
from rollstream.producers.posed_rows import PosedRows
from rollstream.producers.settings import ProducerSettings, idle_engine_warning
from rollstream.producers.shares import reported
from rollstream.producers.sources.build import opened_source, sampling_of
from rollstream.producers.sources.protocol import Source
from rollstream.producers.standing import Standing, published
from rollstream.schemas.errors import ConfigurationError, EncodeError, InconsistentLedgerError
from rollstream.schemas.ledger import LedgerEntry
from rollstream.schemas.prompt import PromptSubmitted, Sampling
from rollstream.schemas.topics import LEDGER, PRODUCERS, PROMPTS, SERVE_PROMPTS, Topic

_LOG = logging.getLogger(__name__)
_MOST_AT_ONCE = 500
_WAIT_SECONDS = 0.5


@dataclass(eq=False)
class Producer:
    """One producer; `run` returns when a finite source is done, or when it is asked to stop."""

    settings: ProducerSettings
    source: Source
    _: KW_ONLY
    sampling: Sampling
    health: Health
    tracing: Tracing = OFF

    def __post_init__(self) -> None:
        self._rows = PosedRows(self.settings, self.source)
        self._flat = FlatGroups(self.settings)
        # Groups that were found at the start, and must not be submitted.
        self._known: set[str] = set()
        self._prompts_offsets: dict[int, int] = {}
        self._topic = _prompts_topic(self.settings)
        self._run = Run(self.settings)
        self._run.make_codecs(self._topic, PRODUCERS, LEDGER)
        self._standing = Standing(
            self._run, self.settings.name, self.source.dataset, share=self.settings.share_groups, health=self.health
        )

    def run(self, stop: Stop) -> None:
        """Claim the source, find out what happened before, then submit as the credit allows.

        Raises `BrokerError` when the broker takes no more records, and what `Claims.claim` raises.
        """
        with self._run.publisher(self._run.group(f"producer.{self.settings.name}")) as publisher:
            claims_read_to = self._claim(publisher)
            while True:
                try:
                    self._go_on(claims_read_to, publisher, stop)
                    return
                except InconsistentLedgerError as error:
                    _LOG.warning("the credit is made again from the whole ledger: %s", error)
                self._forget_marks()

    def _claim(self, publisher: Publisher) -> Mapping[Partition, int]:
        """Returns the place on `producers` to read on from."""
        read_to = self._standing.claim()
        claims = self._standing.claims
        self._rows.go_on_from(claims.own, claims.own_of_source)
        if claims.own is not None:
            offsets = claims.own.prompts_offsets.items()
            self._prompts_offsets = {int(name): offset for name, offset in offsets if name.isdecimal()}
        self._save(publisher)
        return read_to

    def _forget_marks(self) -> None:
        """Read everything again, from the beginning. Prompts of groups that are open may be gone from the topic."""
        self._standing.credit = self._credit.anew()
        self._prompts_offsets = {}

    def _go_on(self, claims_read_to: Mapping[Partition, int], publisher: Publisher, stop: Stop) -> None:
        start = {**self._standing.start_in(LEDGER, {0: self._credit.ledger_offset}), **claims_read_to}
        with self._run.reader(LEDGER, PRODUCERS, start=start, follows=True) as reader:
            self._read_up(reader)
            self._submit_all(reader, publisher, stop)

    def _read_up(self, reader: TopicReader) -> None:
        self._read_prompts()
        for message in reader.to_end():
            entry = self._take_in(message)
            if entry is not None:
                self._known.update(group.group_id for group in entry.closed)
        self._disown_ghosts()
        self._credit.forget()
        self._report()
        self.health.check("credit", True, "made from producers, prompts and ledger")
        _LOG.info(
            "producer %s looks for prompts to submit from %d on, with %d of %d groups outstanding",
            self.settings.name, self._rows.place.sequence, self._credit.num_outstanding, self._credit.share,
        )  # fmt: skip

    def _disown_ghosts(self) -> None:
        """Give up groups that its record names, and that nobody submitted: they would never close."""
        doubtful = self._credit.outstanding - self._known if self._needs_credit else frozenset()
        ghosts = not_on_prompts(self._run, doubtful, self._prompts_offsets)
        if ghosts and have_prompts_expired(self._run):
            ghosts -= self._rows.found_earlier(ghosts)
        if ghosts:
            self._credit.disown(ghosts)
            metrics.GHOSTS.inc(len(ghosts))
            _LOG.warning("its record on producers names %d open groups that nobody submitted: they count no more, the "
                         "first %s", len(ghosts), min(ghosts))  # fmt: skip

    def _read_prompts(self) -> None:
        found = FoundPrompts(self.settings.name, self._rows.place.sequence)
        with self._run.reader(self._topic, start=self._standing.start_in(self._topic, self._prompts_offsets)) as reader:
            for message in reader.to_end():
                prompt = self._run.decoded(self._topic, message)
                if prompt is not None:
                    found.note(prompt)
            self._prompts_offsets = {number: offset for (_, number), offset in reader.positions().items()}
        rows = ((row.place.sequence, group_of_row(row, self._run.name)) for row in self._rows.rows())
        own = {*found.take_own(rows, longest_gap=_MOST_AT_ONCE)}
        if self._credit.is_whole:
            # A mark would name those that are open. Here the whole ledger follows, which closes the others.
            own |= found.earlier
        self._known |= own
        for group_id in own if self._needs_credit else ():
            self._credit.submitted(group_id)
        self._report_foreign(found)

    def _report_foreign(self, found: FoundPrompts) -> None:
        if not found.foreign:
            return
        metrics.FOREIGN.inc(len(found.foreign))
        sequence, group_id = min(found.foreign)
        _LOG.warning(
            "passed over %d prompts that somebody else submitted in the name of producer %s, the first with sequence "
            "%d where %d comes next: give each producer a name of its own",
            len(found.foreign), self.settings.name, sequence, self._rows.place.sequence, extra={"group_id": group_id},
        )  # fmt: skip

    def _take_in(self, message: KafkaMessage) -> LedgerEntry | None:
        """Note a record of `producers`, or an entry of the ledger, which is returned if it counts."""
        folded = self._standing.take_in(message)
        if folded is None:
            return None
        own = set(folded.own)
        for group in {group.group_id: group for group in folded.entry.closed if group.group_id in own}.values():
            self._rows.note(group)
            self._flat.note(group)
        return folded.entry

    @property
    def _credit(self) -> Credit:
        return self._standing.credit

    def _submit_all(self, reader: TopicReader, publisher: Publisher, stop: Stop) -> None:
        prompts = self._new_prompts()
        is_exhausted = False
        # Whoever started it again has changed something, so what closed before counts no more.
        self._flat = FlatGroups(self.settings)
        saved_offset = self._credit.ledger_offset
        while not stop.is_asked:
            self.health.heartbeat("loop", max_age_seconds=2 * DELIVERY_TIMEOUT_SECONDS + 60)
            batch = [] if is_exhausted else list(islice(prompts, self._room))
            if not batch and self._room > 0 and self._grows:
                prompts = self._new_prompts()
            elif not batch and self._room > 0 and not is_exhausted:
                is_exhausted = not self._rows.begin_next_pass()
                if not is_exhausted:
                    # Before anything of a pass is submitted it is noted what it poses, so that a later process knows.
                    self._save(publisher)
                    prompts = self._new_prompts()
                    batch = list(islice(prompts, self._room))
            self._publish(publisher, batch)
            if batch:
                crash_point("batch_submitted")
            if batch or saved_offset != self._credit.ledger_offset:
                self._save(publisher)
                saved_offset = self._credit.ledger_offset
            if is_exhausted and self._is_done:
                _LOG.info("producer %s is done: %d prompts", self.settings.name, self._rows.place.sequence)
                break
            for message in reader.poll(timeout_seconds=0 if batch else _WAIT_SECONDS):
                self._take_in(message)
            self._credit.forget()
            self._report()
            self._flat.check(self._rows.sizes())
        self._save(publisher)

    @property
    def _needs_credit(self) -> bool:
        return self.settings.purpose == "train"

    @property
    def _grows(self) -> bool:
        """Whether the source gets more rows while it is read."""
        return self.settings.source == "ingest"

    @property
    def _room(self) -> int:
        return min(_MOST_AT_ONCE, self._credit.free) if self._needs_credit else _MOST_AT_ONCE

    @property
    def _is_done(self) -> bool:
        return not (self.settings.wait_until_closed and self._credit.num_outstanding)

    def _new_prompts(self) -> Iterator[PromptSubmitted]:
        """The prompts that are still to be submitted, each counted against credit as it is handed out."""
        for row in self._rows.rows():
            self._rows.place = row.place.next
            prompt = prompt_of_row(row, settings=self.settings, dataset=self.source.dataset, sampling=self.sampling)
            if prompt.group_id in self._known:
                continue
            if self._needs_credit:
                self._credit.submitted(prompt.group_id)
            self._rows.submitted(row.row)
            yield prompt

    def _publish(self, publisher: Publisher, batch: list[PromptSubmitted]) -> None:
        with sending(self.tracing, [self._record(prompt) for prompt in batch], operation="submit") as records:
            ends = published(publisher, records)
        for (_, number), end in ends.items():
            self._prompts_offsets[number] = max(end, self._prompts_offsets.get(number, 0))
        metrics.SUBMITTED.inc(len(batch))

    def _record(self, prompt: PromptSubmitted) -> OutRecord:
        try:
            return self._run.out_record(self._topic, prompt)
        except EncodeError as error:
            # After a restart the row would be the same.
            raise ConfigurationError(
                f"row {prompt.source.row} of {prompt.source.dataset} is no prompt: {error}; change or remove it"
            ) from error

    def _save(self, publisher: Publisher) -> None:
        """Publish how far this producer is. Its prompts are confirmed before, so a later process repeats none."""
        progress = self._standing.progress(
            mark=self._rows.place.mark(self.settings.seed),
            next_sequence=self._rows.place.sequence,
            prompts_offsets={str(number): offset for number, offset in self._prompts_offsets.items()},
            curriculum=self._rows.state(),
        )
        published(publisher, [self._run.out_record(PRODUCERS, progress)])

    def _report(self) -> None:
        metrics.SHARE.set(self._credit.share)
        metrics.OUTSTANDING.set(self._credit.num_outstanding)
        metrics.SEQUENCE.set(self._rows.place.sequence)
        metrics.FLAT.set(self._flat.num_groups)
        for pool, size in self._rows.sizes().items():
            metrics.POOL_TASKS.labels(pool=pool).set(size)


def _prompts_topic(settings: ProducerSettings) -> Topic[PromptSubmitted]:
    """Where the prompts go: what is not for training never comes where the trainer would have to close it."""
    return PROMPTS if settings.purpose == "train" else SERVE_PROMPTS


def run_producer(settings: ProducerSettings, stop: Stop) -> None:
    """Build a producer and its health endpoint, run it, close both."""
    settings.log_resolved()
    require_tracing(settings.tracing)
    if warning := idle_engine_warning(settings):
        _LOG.warning(warning)
    health = Health()
    health.serve(settings.health_host, settings.health_port)
    try:
        with ending_within(stop):
            Run(settings).require_topics(PROMPTS, SERVE_PROMPTS, PRODUCERS, LEDGER)
            with tracing_of(settings.tracing, stage="producer", run=settings.run) as tracing, reported(settings):
                _run_source(settings, stop, health, tracing)
    finally:
        health.close()


def _run_source(settings: ProducerSettings, stop: Stop, health: Health, tracing: Tracing) -> None:
    if settings.source == "feedback":
        # Imported here: other producers export none of its metrics, by which alerts know that there is one.
        from rollstream.producers.feedback.loop import run_feedback

        run_feedback(settings, stop, health=health, tracing=tracing)
    elif settings.source == "states":
        from rollstream.producers.states.loop import run_states

        run_states(settings, stop, health=health, tracing=tracing)
    else:
        with opened_source(settings) as source:
            Producer(settings, source, sampling=sampling_of(settings), health=health, tracing=tracing).run(stop)
