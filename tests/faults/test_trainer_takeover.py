"""A trainer that comes back late, to another cluster or to topics made anew: it changes nothing and says what to do."""

import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.presence import is_trainer_present
from rollstream.local.kafka import KafkaCluster
from rollstream.local.kafka_properties import plan_cluster
from rollstream.process.crash_points import CRASH_AT
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.topics import LEDGER, PROMPTS, SCORED, WEIGHTS
from tests.chaos.accounting import Account, OutsideClient
from tests.harness.processes import StartedProcess
from tests.harness.running import Run
from tests.harness.trainer_runs import (
    GROUPS_PER_STEP,
    Start,
    a_trainer_run,
    configure,
    ledger,
    scored_groups,
    survivors,
    trainers,
    weight_directories,
)
from tests.harness.waits import wait_until

# Both are in the second step, all of whose files are written: with its transaction open, and before any.
STOP_POINTS = {"open": "transaction_sent:3:SIGSTOP", "before": "checkpoint_written:2:SIGSTOP"}


def has_open_transaction(run: Run) -> bool:
    """Whether something on the ledger is neither committed nor aborted."""
    admin = AdminClient(run.kafka.client_config())
    partition = TopicPartition(LEDGER.of(run.name), 0)

    def end(isolation: IsolationLevel) -> int:
        asked = admin.list_offsets({partition: OffsetSpec.latest()}, isolation_level=isolation)
        return int(asked[partition].result(30).offset)

    return end(IsolationLevel.READ_COMMITTED) < end(IsolationLevel.READ_UNCOMMITTED)


def is_given_up(run: Run) -> bool:
    """Whether the broker has done with a trainer that says nothing any more: its transaction and its membership."""
    return not has_open_transaction(run) and not is_trainer_present(run.kafka, run.name)


def account_of(run: Run) -> Account:
    account = OutsideClient(run.kafka.bootstrap_servers, run.name).account()
    account.check()
    return account


def checkpoints(run: Run) -> set[str]:
    return {path.name for path in (run.directory / "checkpoints").glob("[0-9]*")}


def check_no_orphans(run: Run) -> None:
    """Every version and every checkpoint on the disk is named on the topics."""
    assert weight_directories(run) <= {Path(record.uri).name for record in run.records(WEIGHTS)}
    assert checkpoints(run) <= {Path(entry.checkpoint).name for entry in ledger(run) if entry.checkpoint}


@dataclass(frozen=True, kw_only=True)
class Takeover:
    """A run whose first trainer is to be stopped while another takes over."""

    run: Run
    start: Start
    first: StartedProcess
    prompts: list[PromptSubmitted]


def begin(run: Run, start: Start, crash_at: str) -> Takeover:
    configure(run, checkpoint_every=1, keep_checkpoints=9, num_steps=4)
    prompts = scored_groups(run, 3 * GROUPS_PER_STEP)
    return Takeover(run=run, start=start, first=start(**{CRASH_AT: crash_at}), prompts=prompts)


def finish(takeover: Takeover) -> None:
    """Another trainer takes over and trains on; then the first goes on, finds out and changes nothing."""
    run = takeover.run
    second = takeover.start()
    wait_until(lambda: survivors(run).step == 3, "the second trainer's steps")
    takeover.first.signal(signal.SIGCONT)
    assert takeover.first.wait() == 75
    more = scored_groups(run, GROUPS_PER_STEP, first=100)
    assert second.wait() == 0
    account = account_of(run)
    assert (account.steps, account.open_groups, account.dropped.total()) == (4, set(), 0)
    assert account.closed.keys() == {prompt.group_id for prompt in [*takeover.prompts, *more]}
    check_no_orphans(run)


def take_over_from_stopped_trainers(
    kafka: str, name: str, directory: Path, model: Path, *, for_seconds: float = 0.0
) -> None:
    """One trainer for each point where it is stopped, past every timeout."""
    with ExitStack() as stack:
        takeovers = []
        for place, crash_at in STOP_POINTS.items():
            run = stack.enter_context(a_trainer_run(kafka, f"{name}-{place}", directory / place, model))
            takeovers.append(begin(run, stack.enter_context(trainers(run)), crash_at))
        for takeover in takeovers:
            wait_until(lambda: takeover.first.is_stopped, "the first trainer to stop")  # noqa: B023
        stopped_at = time.monotonic()
        wait_until(lambda: time.monotonic() - stopped_at > for_seconds, "the time to pass", for_seconds + 1)
        for takeover in takeovers:
            wait_until(lambda: is_given_up(takeover.run), "the broker to give the first trainer up")  # noqa: B023
        for takeover in takeovers:
            finish(takeover)


def test_a_trainer_stopped_past_every_timeout_of_the_broker_is_fenced_and_its_directories_are_deleted(
    kafka: str, topic_prefix: str, tmp_path: Path, model: Path
) -> None:
    take_over_from_stopped_trainers(kafka, topic_prefix, tmp_path, model)


@pytest.mark.slow
def test_a_trainer_stopped_past_every_timeout_of_its_client_is_fenced_too(
    kafka: str, topic_prefix: str, tmp_path: Path, model: Path
) -> None:
    # librdkafka's longest is the socket's, 60 s.
    take_over_from_stopped_trainers(kafka, topic_prefix, tmp_path, model, for_seconds=75.0)


def test_a_trainer_stopped_for_too_long_without_a_successor_is_started_again_and_loses_nothing(
    run: Run, start: Start
) -> None:
    """The broker aborted its transaction, which looks fenced; 75 would keep the supervisor from starting it again."""
    takeover = begin(run, start, STOP_POINTS["open"])
    wait_until(lambda: takeover.first.is_stopped, "the trainer to stop")
    wait_until(lambda: not has_open_transaction(run), "the broker to abort its transaction")
    takeover.first.signal(signal.SIGCONT)
    assert takeover.first.wait() == 70
    configure(run, num_steps=3)
    assert start().wait() == 0
    account = account_of(run)
    assert (account.steps, account.open_groups, account.dropped.total()) == (3, set(), 0)


def test_a_trainer_that_is_told_to_end_while_it_starts_changes_nothing(run: Run, start: Start) -> None:
    scored_groups(run, GROUPS_PER_STEP)
    living = start()
    wait_until(lambda: len(ledger(run)) == 2, "the trainer's first step")
    assert start(**{CRASH_AT: "model_loaded:1:SIGTERM"}).wait() == 0
    scored_groups(run, GROUPS_PER_STEP, first=100, version=1)
    wait_until(lambda: len(ledger(run)) == 3, "the trainer's second step: nobody fenced it")
    assert living.terminate() == 0
    before = len(ledger(run))
    assert start(**{CRASH_AT: "taken_over:1:SIGTERM"}).wait() == 0
    assert len(ledger(run)) == before


def mirror(run: Run, copy: Run) -> None:
    """Every record of the run in the copy's cluster, as a mirroring tool would leave it there."""
    for topic in (PROMPTS, SCORED, WEIGHTS, LEDGER):
        records = [((message.key or b"").decode(), message.value) for message in run.messages(topic.name)]
        copy.publish(topic.name, records)


def test_a_trainer_refuses_another_cluster_that_holds_a_copy_of_its_run(
    run: Run, start: Start, tmp_path: Path, model: Path
) -> None:
    configure(run, num_steps=1)
    scored_groups(run, GROUPS_PER_STEP)
    assert start().wait() == 0
    with ExitStack() as stack:
        cluster = KafkaCluster(tmp_path / "other", plan_cluster(1))
        stack.callback(cluster.stop)
        cluster.start()
        copy = stack.enter_context(a_trainer_run(cluster.bootstrap_servers, run.name, tmp_path, model))
        configure(copy, num_steps=2)
        mirror(run, copy)
        refused = stack.enter_context(trainers(copy))()
        assert refused.wait() == 78
        there, here = (KafkaAdmin(one.kafka).identity([]).cluster_id for one in (run, copy))
        assert f"belongs to cluster {there}, this is {here}" in refused.said()
        assert "connect to the old one or start a new run" in refused.said()
        assert len(ledger(copy)) == len(ledger(run)), "it wrote nothing"
