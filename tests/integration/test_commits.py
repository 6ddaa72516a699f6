"""The trainer's commits on a real broker: what they leave on the ledger and on disk, and what the next start reads."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

import pytest

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.clients import admin_client
from rollstream.bus.message import OutRecord
from rollstream.bus.run import Run
from rollstream.bus.transaction import TRANSACTION_TIMEOUT_SECONDS, TransactionalPublisher
from rollstream.history.directory_store import DirectoryWeightStore
from rollstream.history.known import HistorySnapshot, KnownHistory, read_known
from rollstream.history.ledger import surviving
from rollstream.history.passing import append_time
from rollstream.local import kafka_properties
from rollstream.local.kafka import KafkaCluster
from rollstream.local.kafka_properties import plan_cluster
from rollstream.process.crash_points import CRASH_AT
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.errors import ExpiredTransactionError, InconsistentLedgerError, TopicChangedError
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome, LedgerEntry
from rollstream.schemas.record import utc_now
from rollstream.schemas.topics import LEDGER
from rollstream.trainer.commits.checkpoint import Position, newest_history
from rollstream.trainer.commits.commit import (
    MOST_CLOSED_PER_ENTRY,
    CheckpointRequest,
    Commits,
    StepRecord,
    Stores,
    new_incarnation,
    run_mark,
)
from rollstream.trainer.commits.restart import plan_restart
from tests.harness.running import run_on
from tests.harness.waits import wait_until

KEEP_VERSIONS = 3
KEEP_CHECKPOINTS = 2


def save(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"all")


@dataclass(frozen=True, kw_only=True)
class FreshRun:
    """A run without prompts, and where its trainers write."""

    run: Run
    directory: Path
    ledger_topic_id: str

    @property
    def stores(self) -> Stores:
        return Stores(
            weights=DirectoryWeightStore(self.directory / "weights"),
            checkpoints=DirectoryWeightStore(self.directory / "checkpoints"),
        )

    def snapshot(self) -> HistorySnapshot | None:
        """What the next trainer begins with."""
        return newest_history(self.stores.checkpoints, run_mark(self.ledger_topic_id), self.ledger_topic_id)

    def known(self, snapshot: HistorySnapshot | None = None) -> KnownHistory:
        """What the snapshot and the topics say; without one, what the topics say."""
        return read_known(self.run, self.ledger_topic_id, snapshot)

    def trainer(self) -> Commits:
        """The commits of a trainer that took over and has committed its first entry."""
        publisher = TransactionalPublisher(self.run.kafka, self.run.group("trainer"))
        publisher.init()
        known = self.known(self.snapshot())
        plan = plan_restart(known.fold, known.newest_version)
        commits = Commits(
            run=self.run, publisher=publisher, stores=self.stores, known=known,
            incarnation=new_incarnation(self.ledger_topic_id), dtype="float32", keep_versions=KEEP_VERSIONS,
            keep_checkpoints=KEEP_CHECKPOINTS, remember_seconds=None,
        )  # fmt: skip
        commits.restart(version=plan.version, parent=plan.parent, step=plan.step, save_weights=save)
        return commits

    def names(self, kind: str) -> list[str]:
        """The directories of weights or checkpoints, oldest version first, hidden ones last."""
        found = [path.name for path in (self.directory / kind).iterdir()]
        return sorted(found, key=lambda name: (name.startswith("."), int(name.split("-")[0] or 0), name))

    def entries(self) -> list[LedgerEntry]:
        return list(self.run.read(LEDGER))


def a_fresh_run(kafka: KafkaSettings, name: str, directory: Path) -> FreshRun:
    admin = KafkaAdmin(kafka)
    admin.create_topics(name, partitions=1)
    run = run_on(kafka, name)
    return FreshRun(
        run=run, directory=directory, ledger_topic_id=admin.identity([run.topic(LEDGER)]).topic_ids[run.topic(LEDGER)]
    )


@pytest.fixture
def fresh(kafka: str, topic_prefix: str, tmp_path: Path) -> FreshRun:
    return a_fresh_run(KafkaSettings(bootstrap_servers=kafka), topic_prefix, tmp_path)


def groups(*numbers: int) -> tuple[ClosedGroup, ...]:
    return tuple(
        ClosedGroup(group_id=f"g{number}", outcome=GroupOutcome.DROPPED, reason="no_spread") for number in numbers
    )


def a_checkpoint() -> CheckpointRequest:
    def position(weight_version: int, step: int) -> Position:
        return Position(
            run="run", weight_version=weight_version, step=step, cluster_id="c", topic_ids={}, next_offsets=(),
            open_groups=(),
        )  # fmt: skip

    return CheckpointRequest(save_state=save, position=position)


def a_step(commits: Commits, *closes: int, checkpoint: bool = False) -> LedgerEntry:
    record = StepRecord(trained=(), closed=groups(*closes), metrics={"step_seconds": 1.0}, started_at=utc_now())
    return commits.optimizer_step(record, save, a_checkpoint() if checkpoint else None)


def test_a_trainer_begins_by_removing_what_a_killed_one_left_half_written(fresh: FreshRun) -> None:
    for kind in ("weights", "checkpoints"):
        (fresh.directory / kind / ".writing-1-one-0").mkdir(parents=True)
    fresh.trainer()
    assert len(fresh.names("weights")) == 1
    assert fresh.names("checkpoints") == []


def test_many_starts_leave_no_more_directories_than_are_kept_and_none_of_another_run_is_touched(
    fresh: FreshRun, kafka: str, topic_prefix: str
) -> None:
    neighbor = a_fresh_run(fresh.run.kafka, f"{topic_prefix}-b", fresh.directory)
    a_step(neighbor.trainer(), checkpoint=True)
    others = set(fresh.names("weights")), set(fresh.names("checkpoints"))
    for start in range(7):
        commits = fresh.trainer()
        a_step(commits, start, checkpoint=start % 3 == 0)
        # Killed between writing and committing.
        fresh.stores.weights.write(f"{commits.weight_version + 1}-{commits.incarnation}", save)
    fresh.trainer()
    weights, checkpoints = (set(fresh.names(kind)) for kind in ("weights", "checkpoints"))
    assert others[0] <= weights
    assert others[1] <= checkpoints
    assert len(weights - others[0]) <= KEEP_VERSIONS
    assert len(checkpoints - others[1]) <= KEEP_CHECKPOINTS
    newest = fresh.known().fold.checkpoint
    assert newest is not None
    assert Path(newest.uri.removeprefix("file://")).is_dir()


def test_a_reader_at_the_end_is_past_the_markers_of_transactions(fresh: FreshRun) -> None:
    a_step(fresh.trainer())
    with fresh.run.reader(LEDGER) as reader:
        offsets = [message.offset for message in reader.to_end()]
        assert reader.positions() == fresh.run.ends(LEDGER) == {(fresh.run.topic(LEDGER), 0): offsets[-1] + 2}


def test_a_predecessor_that_was_fenced_while_it_wrote_loses_its_directory_alone(fresh: FreshRun) -> None:
    first = fresh.trainer()

    def save_while_another_takes_over(directory: Path) -> None:
        save(directory)
        fresh.trainer()

    with pytest.raises(Exception, match="another process took over") as raised:
        first.optimizer_step(
            StepRecord(trained=(), closed=(), metrics={}, started_at=utc_now()), save_while_another_takes_over, None
        )
    assert getattr(raised.value, "exit_code", None) == 75
    fresh.trainer()
    assert not [name for name in fresh.names("weights") if name == f"1-{first.incarnation}"]


def test_a_start_reads_only_what_the_newest_checkpoint_does_not_hold(fresh: FreshRun) -> None:
    commits = fresh.trainer()
    a_step(commits, 1, checkpoint=True)
    a_step(commits, 2)
    commits.drops(groups(3), {})
    a_step(commits, 4, checkpoint=True)
    a_step(commits, 5)
    commits.drops(groups(6), {})
    snapshot = fresh.snapshot()
    assert snapshot is not None
    assert [len(snapshot.fold.closings), snapshot.ledger_offset > 0] == [3, True]
    assert newest(fresh.known(snapshot)) == newest(fresh.known())
    # What the snapshot says is not read again.
    marked = snapshot.fold.model_copy(update={"closings": ()})
    assert fresh.known(snapshot.model_copy(update={"fold": marked})).fold.closed == {"g4", "g5", "g6"}


def newest(history: KnownHistory) -> HistorySnapshot:
    """All of it, but for where older versions lie."""
    history.keep_newest(KEEP_VERSIONS)
    return history.snapshot()


def test_a_record_of_somebody_else_is_part_of_no_snapshot_so_that_the_next_trainer_judges_it(fresh: FreshRun) -> None:
    commits = fresh.trainer()
    a_step(commits, 1, checkpoint=True)
    before = newest(fresh.known())
    with fresh.run.publisher("stranger") as stranger:
        garbage = OutRecord(topic=fresh.run.topic(LEDGER), value=b"garbage")
        place = stranger.publish_soon(garbage).result()
    a_step(commits, 2, checkpoint=True)
    a_step(commits, 3, checkpoint=True)
    snapshot = fresh.snapshot()
    assert snapshot is not None
    assert snapshot.ledger_offset <= place.offset
    assert snapshot.fold == before.fold
    for known in (snapshot, None):
        with pytest.raises(InconsistentLedgerError, match=f"ledger@{place.offset}"):
            fresh.known(known)


def test_a_snapshot_that_the_ledger_contradicts_or_that_is_ahead_of_it_is_not_used(fresh: FreshRun) -> None:
    commits = fresh.trainer()
    a_step(commits, 1, checkpoint=True)
    a_step(commits, 2, checkpoint=True)
    snapshot = fresh.snapshot()
    assert snapshot is not None
    wrong = snapshot.fold.model_copy(update={"current_version": 0})
    assert newest(fresh.known(snapshot.model_copy(update={"fold": wrong}))) == newest(fresh.known())
    for ahead in ({"ledger_offset": 1000}, {"weights_offset": 1000}):
        assert newest(fresh.known(snapshot.model_copy(update=ahead))) == newest(fresh.known())


def test_a_ledger_that_is_deleted_or_another_one_than_was_read_gets_no_entry(fresh: FreshRun) -> None:
    commits = fresh.trainer()
    topic = fresh.run.topic(LEDGER)
    with admin_client(fresh.run.kafka) as client:
        client.delete_topics([topic])[topic].result(20)
        # The controller has answered: the broker hears of it a moment later.
        wait_until(lambda: topic not in client.list_topics(timeout=5.0).topics, "the broker to know of it")
    # Else its entry would wait, and lie in the ledger that comes in its place.
    with pytest.raises(TopicChangedError, match="was deleted while it was read"):
        a_step(commits)
    admin = fresh.run.admin()
    wait_until(lambda: topic in admin.create_topics(fresh.run.name, partitions=1), "the ledger to be made anew")
    with pytest.raises(TopicChangedError, match="was made anew while it was read"):
        fresh.trainer()
    assert fresh.entries() == []


def test_groups_closed_when_the_broker_says_so_whether_a_trainer_reads_its_entry_or_wrote_it(fresh: FreshRun) -> None:
    commits = fresh.trainer()
    a_step(commits, 1)
    a_step(commits, 2, checkpoint=True)
    with fresh.run.reader(LEDGER) as reader:
        _, *times = [append_time(message.timestamp_ms) for message in reader.to_end()]
    assert not set(times) & {entry.finished_at for entry in fresh.entries()}
    written = fresh.snapshot()
    assert written is not None
    assert [closing.closed_at for closing in written.fold.closings] == times[:1]
    assert [closing.closed_at for closing in fresh.known().fold.snapshot().closings] == times


def test_drops_beyond_one_entry_are_handed_over_in_several_that_the_next_trainer_does_not_cut(fresh: FreshRun) -> None:
    num_drops = 2 * MOST_CLOSED_PER_ENTRY + 1
    commits = fresh.trainer()
    a_step(commits)
    for start in range(0, num_drops, MOST_CLOSED_PER_ENTRY):
        commits.drops(groups(*range(start, min(start + MOST_CLOSED_PER_ENTRY, num_drops))), {})
    commits.hand_over(a_checkpoint())
    fresh.trainer()
    entries = fresh.entries()
    handed_over = [entry for entry in entries if entry.kind is EntryKind.RESTART][1:-1]
    assert [len(entry.closed) for entry in handed_over] == [MOST_CLOSED_PER_ENTRY, MOST_CLOSED_PER_ENTRY, 1]
    assert [entry.checkpoint is not None for entry in handed_over] == [False, False, True]
    found = surviving(entries)
    assert (len(found.closed), found.step) == (num_drops, 1)
    assert found.closed.keys() == fresh.known(fresh.snapshot()).fold.closed


@contextmanager
def a_broker(directory: Path) -> Iterator[KafkaCluster]:
    with ExitStack() as stack:
        cluster = KafkaCluster(directory, plan_cluster(1))
        stack.callback(cluster.stop)
        cluster.start()
        yield cluster


def test_an_idle_trainer_whose_id_the_broker_forgot_ends_so_that_it_is_started_again(
    topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kafka_properties.FIXED, "transactional.id.expiration.ms", "2000")
    monkeypatch.setitem(kafka_properties.FIXED, "transaction.remove.expired.transaction.cleanup.interval.ms", "200")
    errors: list[ExpiredTransactionError] = []
    with a_broker(tmp_path / "kafka") as broker:
        fresh = a_fresh_run(KafkaSettings(bootstrap_servers=broker.bootstrap_servers), topic_prefix, tmp_path)

        def trainer_that_steps() -> Commits | None:
            try:
                commits = fresh.trainer()
                a_step(commits)
            except ExpiredTransactionError:  # on a slow machine the broker may forget it before its first commit
                return None
            return commits

        commits = wait_until(trainer_that_steps, "a trainer to commit a step")
        assert commits is not None

        def is_forgotten() -> bool:
            try:
                commits.drops((), {})
            except ExpiredTransactionError as error:
                errors.append(error)
            return bool(errors)

        wait_until(is_forgotten, "the broker to forget the trainer", every_seconds=3.0)
        wait_until(trainer_that_steps, "a trainer that is started again to commit a step")
    assert errors[0].exit_code == 70


@pytest.mark.slow
def test_a_commit_is_not_given_up_while_its_broker_pauses_for_longer_than_the_client_waits_for_one_answer(
    topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that the broker does not give the transaction up when it goes on.
    monkeypatch.setitem(
        kafka_properties.FIXED, "transaction.abort.timed.out.transaction.cleanup.interval.ms", "3600000"
    )
    with a_broker(tmp_path / "kafka") as broker:
        fresh = a_fresh_run(KafkaSettings(bootstrap_servers=broker.bootstrap_servers), topic_prefix, tmp_path)
        commits = fresh.trainer()
        (process,) = broker.processes.values()

        def pause_the_broker(number: int, frame: object) -> None:
            os.kill(process.pid, signal.SIGSTOP)
            Timer(TRANSACTION_TIMEOUT_SECONDS + 2.0, os.kill, (process.pid, signal.SIGCONT)).start()

        signal.signal(signal.SIGUSR1, pause_the_broker)
        monkeypatch.setenv(CRASH_AT, "transaction_sent:1:SIGUSR1")
        a_step(commits)
        assert [entry.step for entry in fresh.entries()] == [0, 1]
