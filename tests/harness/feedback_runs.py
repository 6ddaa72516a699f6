"""A run with the producer of feedback alone: a test writes answers and feedback, and closes groups as a trainer would.

What is expected of each answer is computed here anew, from the topics: by the broker's times, without the product.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollstream.bus.message import KafkaMessage, OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.bus.reader import TopicReader
from rollstream.local.ports import free_ports
from rollstream.process.database import Database
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.feedback import FeedbackGiven
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome, LedgerEntry
from rollstream.schemas.record import utc_now
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import FEEDBACK, LEDGER, SCORED, SERVE_SCORED
from tests.harness.builders import a_feedback, a_served_prompt, a_served_rollout, an_entry
from tests.harness.processes import StartedProcess
from tests.harness.running import Run, a_run
from tests.harness.scraping import is_ready, scraped
from tests.harness.waits import wait_until

NAME = "feedback"


@dataclass
class HandTrainer:
    """Closes each group that comes on `scored` as trained, once, and notes with which reward."""

    run: Run
    rewards: dict[str, float | None] = field(default_factory=dict)
    num_duplicates: int = 0
    num_open: int = 0
    is_away: bool = False
    _version: int = -1
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waiting: dict[str, RolloutScored] = field(default_factory=dict)

    def start(self) -> None:
        """Write the first entry of the ledger."""
        self._write(EntryKind.RESTART, None)

    def follow(self, stop: threading.Event) -> None:
        """Read `scored`, and close what is there, until asked to stop."""
        codec = AvroCodec(SCORED)
        with TopicReader(self.run.kafka, [SCORED.of(self.run.name)]) as reader:
            while not stop.is_set():
                for message in reader.poll(timeout_seconds=0.1):
                    self._note(codec.decode(message.value))
                self.num_open = len(self._waiting)
                if self._waiting and not self.is_away:
                    self.step()

    def step(self) -> None:
        """Train on all groups that wait."""
        with self._lock:
            trained, self._waiting = self._waiting, {}
            closed = tuple(ClosedGroup(group_id=group, outcome=GroupOutcome.TRAINED) for group in trained)
            self._write(EntryKind.STEP, self._version, closed)
            self.rewards |= {group: scored.scoring.reward for group, scored in trained.items()}

    def _note(self, scored: RolloutScored) -> None:
        group = scored.rollout.group_id
        with self._lock:
            if group in self.rewards or group in self._waiting:
                self.num_duplicates += 1
            else:
                self._waiting[group] = scored

    def go_back(self, version: int) -> None:
        """Restart from an older version: the groups that were closed since are open again."""
        with self._lock:
            self._write(EntryKind.RESTART, version)

    def _write(self, kind: EntryKind, parent: int | None, closed: Sequence[ClosedGroup] = ()) -> None:
        self._version += 1
        entry: LedgerEntry = an_entry(
            kind=kind, weight_version=self._version, parent_version=parent, step=self._version, closed=tuple(closed),
            checkpoint=f"file:///checkpoints/{self._version}",
        )  # fmt: skip
        self.run.publish(LEDGER.name, [(self.run.name, AvroCodec(LEDGER).encode(entry))])


@dataclass(kw_only=True)
class FeedbackRun:
    """The topics, the trainer's hand, and the producer's process."""

    run: Run
    trainer: HandTrainer
    settings: dict[str, Any]
    publisher: Publisher
    process: StartedProcess | None = None
    port: int = field(default_factory=lambda: free_ports(1)[0])

    @property
    def store(self) -> Path:
        return self.run.directory / "feedback.sqlite"

    def start(self, **env: str) -> StartedProcess:
        """Start the producer."""
        feedback = {"store": self.store, **self.settings}
        table = {"source": "feedback", "name": NAME, "health_port": self.port, "feedback": feedback}
        self.run.tables["producer"] = table
        self.process = self.run.start("producer", **env)
        return self.process

    def kill(self, *, loses_store: bool = False) -> None:
        """End it with SIGKILL; what is on its disk may go too."""
        assert self.process is not None
        assert not self.process.has_ended, self.process.said()
        self.process.kill()
        if loses_store:
            for path in self.store.parent.glob(f"{self.store.name}*"):
                path.unlink()

    def stop(self) -> dict[str, int]:
        """End it in order; how many answers its store has of each state or outcome."""
        assert self.process is not None
        assert self.process.terminate() == 0, self.process.said()
        with Database(self.store, "") as database:
            return dict(database.read("SELECT coalesce(outcome, state), count(*) FROM answers GROUP BY 1"))

    def stop_when_closed(self) -> dict[str, int]:
        """The same, once it has read what the ledger says of every group: at its start it reads to the end."""
        while "published" in (counts := self.stop()):
            self.start()
            wait_until(lambda: is_ready(self.port), "it to read up")
        return counts

    @property
    def open_groups(self) -> float | None:
        """Groups that it counts as open."""
        return scraped(self.port, "rollstream_producer_outstanding_groups")

    def put(self, *records: RolloutScored | FeedbackGiven) -> None:
        """Put answers and feedback on their topics, in this order, and wait until they are there."""
        bus = self.run.on_bus
        futures = [self.publisher.publish_soon(self._record(bus, record)) for record in records]
        for future in futures:
            future.result(60)

    def _record(self, bus: Any, record: RolloutScored | FeedbackGiven) -> OutRecord:
        made: OutRecord = bus.out_record(FEEDBACK if isinstance(record, FeedbackGiven) else SERVE_SCORED, record)
        return made

    def expected(self, settle_seconds: float) -> dict[str, set[float]]:
        """Group → the rewards that it may train with: one, unless two brokers' milliseconds decide."""
        ratings: dict[str, list[tuple[int, float]]] = defaultdict(list)
        seen: set[str] = set()
        for message, feedback in self._decoded(FEEDBACK):
            if feedback.feedback_id not in seen and feedback.number is not None:
                seen.add(feedback.feedback_id)
                ratings[feedback.response_id or ""].append((message.timestamp_ms, feedback.number))
        found = {}
        for message, scored in self._decoded(SERVE_SCORED):
            served, given = scored.rollout.served, sorted(ratings[scored.rollout.served.response_id])
            is_fit = served.may_train and all(turn.is_plain for turn in scored.rollout.turns)
            if is_fit and given and scored.rollout.group_id not in found:
                ends = max(given[0][0], message.timestamp_ms) + settle_seconds * 1000
                last_ms = max(moment for moment, _ in given if moment <= ends)
                found[scored.rollout.group_id] = {number for moment, number in given if moment == last_ms}
        return found

    def letters(self) -> Counter[str]:
        """Dead letters by what was wrong, each once."""
        found = {}
        for message in self.run.messages("dead-letters"):
            headers = {name: value.decode() for name, value in message.headers}
            place = headers["original.topic"], headers["original.partition"], headers["original.offset"]
            found[place] = headers["error.message"]
        return Counter(found.values())

    def _decoded(self, topic: Any) -> Iterator[tuple[KafkaMessage, Any]]:
        codec = AvroCodec(topic)
        for message in self.run.messages(topic.name):
            yield message, codec.decode(message.value)


@contextmanager
def a_feedback_run(
    kafka: str, name: str, directory: Path, *, has_trainer: bool = False, **settings: Any
) -> Iterator[FeedbackRun]:
    """A run with its topics; the producer is not started yet. `has_trainer`: the test starts a real one."""
    stop = threading.Event()
    with a_run(kafka, name, directory) as run, closing(Publisher(run.kafka, client_id="outside")) as publisher:
        trainer = HandTrainer(run)
        thread = threading.Thread(target=trainer.follow, args=(stop,))
        if not has_trainer:
            trainer.start()
            thread.start()
        try:
            yield FeedbackRun(run=run, trainer=trainer, settings=settings, publisher=publisher)
        finally:
            stop.set()
            if thread.is_alive():
                thread.join(30)


def an_answer(run: FeedbackRun, number: int, **fields: Any) -> RolloutScored:
    response_id = f"chatcmpl-{number}"
    values = {"prompt": a_served_prompt(response_id, run=run.run.name), "finished_at": utc_now(), **fields}
    return a_served_rollout(response_id=response_id, **values)


def a_rating(number: int, value: float, *, feedback_id: str = "", **fields: Any) -> FeedbackGiven:
    return a_feedback(
        value, **{"response_id": f"chatcmpl-{number}", "feedback_id": feedback_id or f"f-{number}", **fields}
    )
