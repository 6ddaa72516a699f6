"""The producer of feedback: it joins what clients say with the answers that they got, and lets those answers train.

Consumes   `serve-scored` and `feedback`, from where its store says; `ledger`: which groups closed, and how old the
           weights of an answer are; `producers`: who has this work.
Produces   `scored`: an answer with the reward that feedback gave it, as a group of one; `producers`: its claim and its
           credit; `dead-letters`: feedback without an answer, and what can't be read.
Waits for  feedback to settle, and for credit.
Unblocked  by the trainer, which closes every group.

What happens when …
  … this process is killed: the store has all that was committed, with how far both topics were read. Groups that were
    published and not noted are published again: the same records, which the trainer discards as duplicates.
  … the store is lost, damaged, or of other topics or settings: it is made again from both topics, and from the
    window's ledger. Answers settle with the same rewards, since only the broker's times count.
  … another process starts under its name: this one ends with exit code 75 (`claims.py`).
  … the broker's clock stands still for this process, since nothing is written: it writes its progress, and reads its
    time from there. Brokers whose clocks differ by more than a second may make a new store settle otherwise.
  … the trainer stops: the share is used up. Answers wait, the newest are published first, and those whose window ends
    are left out.
  … the trainer restarts from a checkpoint: groups that are open again count against the share. They lie on `scored`,
    where the trainer reads them again.
  … a record can't be read: it becomes a dead letter. An entry of the ledger is passed over as other producers do.
  … the store is full: the oldest answers and the oldest feedback without an answer go first, counted.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

from rollstream.bus.deliveries import DELIVERY_TIMEOUT_SECONDS
from rollstream.bus.message import KafkaMessage, Partition
from rollstream.bus.publisher import Publisher
from rollstream.bus.reader import TopicReader
from rollstream.bus.run import Run
from rollstream.process.health import Health
from rollstream.process.stop import Stop
from rollstream.process.tracing.spans import OFF, Tracing
from rollstream.producers import metrics as of_producers
from rollstream.producers.credit import Credit, CreditMark
from rollstream.producers.feedback import metrics
from rollstream.producers.feedback.broker_time import BrokerClock, Look, has_reached
from rollstream.producers.feedback.intake import FeedbackIntake
from rollstream.producers.feedback.join import Join
from rollstream.producers.feedback.publishing import GroupPublisher
from rollstream.producers.feedback.store import FeedbackStore, opened
from rollstream.producers.feedback.topics import refuse_short_topics
from rollstream.producers.feedback.versions import SeenVersions
from rollstream.producers.settings import ProducerSettings
from rollstream.producers.standing import FoldedEntry, Standing, published
from rollstream.schemas.errors import InconsistentLedgerError
from rollstream.schemas.ledger import GroupOutcome
from rollstream.schemas.topics import FEEDBACK, LEDGER, PRODUCERS, SCORED, SERVE_SCORED

_LOG = logging.getLogger(__name__)

SOURCE: Final = "feedback"
"""What its claim says that it reads: a run has one producer of feedback."""
_WAIT_SECONDS: Final = 0.5
_ASK_EVERY_SECONDS: Final = 1.0
_REPORT_EVERY_SECONDS: Final = 5.0
_HUNG_AFTER_SECONDS: Final = 2 * DELIVERY_TIMEOUT_SECONDS + 60


class FeedbackProducer:
    """The producer of feedback of a run; `run` returns when it is asked to stop."""

    def __init__(
        self, run: Run, settings: ProducerSettings, publisher: Publisher, store: FeedbackStore, *, health: Health,
        tracing: Tracing = OFF,
    ) -> None:  # fmt: skip
        self._run = run
        self._settings = settings.feedback
        self._publisher = publisher
        self._store = store
        self._health = health
        self._standing = Standing(run, settings.name, SOURCE, share=settings.share_groups, health=health)
        self._join = Join(store, settings.feedback, run.name)
        self._intake = FeedbackIntake(run, store, self._join, publisher)
        self._groups = GroupPublisher(run, store, settings, publisher, tracing)
        self._versions = SeenVersions(store.fact("versions") or ())
        self._clock = BrokerClock()
        self._look: Look | None = None
        self._is_caught_up = False
        self._asked_at = self._reported_at = 0.0

    def run(self, stop: Stop) -> None:
        """Claim this work, read up, then join and publish. Raises `BrokerError`, and what `Claims.claim` raises."""
        claims_read_to = self._standing.claim()
        self._save()
        while True:
            try:
                self._go_on(claims_read_to, stop)
                return
            except InconsistentLedgerError as error:
                _LOG.warning("the credit is made again from the whole ledger: %s", error)
            self._standing.credit = self._standing.credit.anew()

    def _go_on(self, claims_read_to: Mapping[Partition, int], stop: Stop) -> None:
        # The answers first: the ledger says which of them closed.
        with self._run.reader(FEEDBACK, SERVE_SCORED, start=self._joined_start()) as reader:
            ends = self._joined_ends()
            while not stop.is_asked and not has_reached(reader, ends):
                self._beat()
                self._take_in(reader.poll(timeout_seconds=_WAIT_SECONDS))
        start = {**self._joined_start(), **self._ledger_start(), **claims_read_to}
        # Of the whole ledger each of them is closed again, unless that was cut.
        for group in self._store.answers.published_groups(closed_too=self._standing.credit.is_whole):
            self._standing.credit.submitted(group)
        with self._run.reader(LEDGER, PRODUCERS, FEEDBACK, SERVE_SCORED, start=start, follows=True) as reader:
            self._look = Look(0, {**self._joined_ends(), **self._run.ends(LEDGER)})
            while not stop.is_asked:
                self._turn(reader)
        self._save()

    def _joined_start(self) -> dict[Partition, int]:
        read = self._store.offsets()
        start: dict[Partition, int] = {}
        for topic in (FEEDBACK, SERVE_SCORED):
            name = self._run.topic(topic)
            start |= self._standing.start_in(topic, {number: at for (of, number), at in read.items() if of == name})
        return start

    def _joined_ends(self) -> dict[Partition, int]:
        return {**self._run.ends(FEEDBACK), **self._run.ends(SERVE_SCORED)}

    def _ledger_start(self) -> dict[Partition, int]:
        """Where the ledger says more than the store knows: after the loss of the store that is the window's start."""
        credit, is_new = self._standing.credit, self._standing.claims.own is None and self._standing.credit.is_whole
        first = credit.ledger_offset
        if is_new or not self._store.fact("has_ledger"):
            window_ms = round(self._settings.window_seconds * 1000)
            found = self._run.admin().offsets_at(self._run.topic(LEDGER), round(time.time() * 1000) - window_ms)
            first = found[0] if is_new else min(first, found[0])
        if is_new:
            mark = CreditMark(ledger_offset=first, open_groups=(), recently_closed=())
            self._standing.credit = Credit(credit.share, mark)
        return self._standing.start_in(LEDGER, {0: first})

    def _turn(self, reader: TopicReader) -> None:
        """Take in what has come, settle what is due, publish what there is room for."""
        self._beat()
        saved_offset = self._standing.credit.ledger_offset
        self._take_in(reader.poll(timeout_seconds=_WAIT_SECONDS))
        if self._look is None and self._is_due():
            self._look = Look(self._clock.safe_ms, self._joined_ends())
        if self._look is not None and has_reached(reader, self._look.ends):
            self._settle(self._look.at_ms)
            self._catch_up()
            self._look = None
        if self._publish() or saved_offset != self._standing.credit.ledger_offset:
            self._save()
        self._standing.credit.forget()
        self._report(reader)

    def _take_in(self, messages: Sequence[KafkaMessage]) -> None:
        self._clock.note(messages)
        joined = (self._run.topic(FEEDBACK), self._run.topic(SERVE_SCORED))
        self._intake.take_in([message for message in messages if message.topic in joined])
        with self._store.transaction():
            for message in (message for message in messages if message.topic not in joined):
                folded = self._standing.take_in(message)
                if folded is not None:
                    self._note(folded)
        self._intake.make_room()

    def _note(self, folded: FoldedEntry) -> None:
        if self._versions.add(folded.entry):
            self._store.note_fact("versions", self._versions.state())
        for group in folded.entry.closed:
            outcome = "trained" if group.outcome is GroupOutcome.TRAINED else group.reason
            if self._store.answers.close_group(group.group_id, outcome):
                metrics.ANSWERS.labels(metrics.bounded(outcome)).inc()

    def _is_due(self) -> bool:
        """Whether something is to be settled now; asks for the broker's time if that may be so."""
        due_ms = self._join.next_due_ms()
        if due_ms is None or due_ms <= self._clock.safe_ms:
            return due_ms is not None
        if due_ms <= self._clock.estimated_safe_ms and time.monotonic() - self._asked_at > _ASK_EVERY_SECONDS:
            self._asked_at = time.monotonic()
            self._save()
        return False

    def _settle(self, now_ms: int) -> None:
        is_more = True
        while is_more:
            self._beat()
            with self._store.transaction():
                is_more = self._join.settle(now_ms)
        self._intake.give_up(now_ms)
        with self._store.transaction():
            self._join.forget(now_ms)

    def _catch_up(self) -> None:
        """Note that both topics and the ledger were read; from now on answers are published."""
        if self._is_caught_up:
            return
        self._is_caught_up = True
        self._store.note_fact("has_ledger", True)
        credit = self._standing.credit
        ghosts = {group for group in credit.outstanding if not self._store.answers.knows(group)}
        credit.disown(ghosts)
        of_producers.GHOSTS.inc(len(ghosts))
        self._health.check("feedback", True, "read up to the ends of its topics")
        _LOG.info(
            "read up: %s, %d of %d groups open", self._store.answers.counts(), credit.num_outstanding, credit.share
        )

    def _publish(self) -> bool:
        """Publish the newest answers that have settled; whether there were some."""
        credit = self._standing.credit
        if not self._is_caught_up or not credit.free:
            return False
        groups = self._groups.publish(credit.free, self._versions.lag, self._clock.safe_ms)
        for group in groups:
            credit.submitted(group)
        return bool(groups)

    def _save(self) -> None:
        """Publish its claim and its credit. What it names as open was confirmed before."""
        progress = self._standing.progress(mark="", next_sequence=0)
        published(self._publisher, [self._run.out_record(PRODUCERS, progress)])

    def _beat(self) -> None:
        self._health.heartbeat("loop", max_age_seconds=_HUNG_AFTER_SECONDS)

    def _report(self, reader: TopicReader) -> None:
        of_producers.SHARE.set(self._standing.credit.share)
        of_producers.OUTSTANDING.set(self._standing.credit.num_outstanding)
        if time.monotonic() - self._reported_at < _REPORT_EVERY_SECONDS:
            return
        self._reported_at = time.monotonic()
        positions = reader.positions()
        metrics.BEHIND.set(sum(max(0, end - positions.get(one, 0)) for one, end in self._joined_ends().items()))
        counts = self._store.answers.counts()
        metrics.WAITING.set(counts.get("waiting", 0))
        metrics.SETTLED.set(counts.get("settled", 0))


def run_feedback(settings: ProducerSettings, stop: Stop, *, health: Health, tracing: Tracing = OFF) -> None:
    """Check the topics, open the store, and run the producer of feedback.

    Raises `ConfigurationError` for topics that keep too little, what `store.opened` raises, and what the producer does.
    """
    run = Run(settings)
    run.make_codecs(FEEDBACK, SERVE_SCORED, SCORED, PRODUCERS, LEDGER)
    run.require_topics(FEEDBACK, SERVE_SCORED, SCORED)
    refuse_short_topics(run, settings.feedback)
    with (
        run.publisher(run.group(f"producer.{settings.name}")) as publisher,
        opened(settings.feedback.store, _identity(run, settings), settings.feedback.store_bytes) as store,
    ):
        FeedbackProducer(run, settings, publisher, store, health=health, tracing=tracing).run(stop)


def _identity(run: Run, settings: ProducerSettings) -> dict[str, str]:
    """Of what the store is: with other topics or another window its rows say nothing."""
    found = run.admin().identity([run.topic(FEEDBACK), run.topic(SERVE_SCORED)])
    kept = {"weights", "component_weights", "largest", "tokenizer_sha256", "window_days"}
    return {
        "cluster": found.cluster_id,
        "settings": settings.feedback.model_dump_json(include=kept),
        **found.topic_ids,
    }
