"""`rollstream archive` on a real broker: fates that come later or are cut, bad records, kill -9 and lost records."""

import random
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from rollstream.archive.archiver import Archiver, Report
from rollstream.archive.reading import identity_of
from rollstream.archive.store import Store
from rollstream.bus.admin import KafkaAdmin
from rollstream.cli.archive import command
from rollstream.process.crash_points import CRASH_AT
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome, LedgerEntry, SkippedRecord
from rollstream.schemas.prompt import PromptSubmitted
from tests.harness.archive_runs import (
    GROUP_SIZE,
    Key,
    a_start,
    a_step,
    check_same_as_afresh,
    num_archived,
    on_topic,
    prompts_of,
    put_entries,
)
from tests.harness.archiving import archive_in_small_pieces, follow
from tests.harness.builders import an_entry
from tests.harness.forking import start_forked
from tests.harness.processes import StartedProcess
from tests.harness.running import Run, a_run
from tests.harness.waits import wait_until

POINTS = ("archive_note_written", "archive_file_written", "archive_files_written", "archive_segment_replaced")
BATCHES = 3
PROMPTS = 8


@pytest.fixture
def run(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[Run]:
    with a_run(kafka, topic_prefix, tmp_path) as fresh:
        yield fresh


def archived(run: Run, *options: str) -> Result:
    words = ["--config", str(run.config), "--output", str(run.directory / "archive"), *options]
    return CliRunner().invoke(command, words)


def one_pass(run: Run) -> Report:
    on_bus = run.on_bus
    with Store.writing(run.directory / "archive", identity_of(on_bus)) as store:
        return Archiver(on_bus, store).make_pass()


def some_drops(version: int, *prompts: PromptSubmitted, number: int) -> LedgerEntry:
    closed = tuple(
        ClosedGroup(group_id=one.group_id, outcome=GroupOutcome.DROPPED, reason="no_spread") for one in prompts
    )
    return an_entry(EntryKind.DROPS, step=number, weight_version=version, closed=closed)


def rollouts(run: Run) -> pd.DataFrame:
    return pd.read_parquet(run.directory / "archive" / "rollouts")


def fates(run: Run) -> dict[str, set[tuple[str, str, str]]]:
    """group -> (directory of its step, outcome, reason) of its rows."""
    found: dict[str, set[tuple[str, str, str]]] = {}
    for path in list_files(run.directory / "archive"):
        for row in pd.read_parquet(path, partitioning=None).itertuples():
            fate = (path.parent.name.removeprefix("step="), row.outcome, row.reason)
            found.setdefault(row.group_id, set()).add(fate)
    return found


def test_rows_move_to_their_step_when_their_group_closes_and_back_when_its_entry_is_cut(run: Run) -> None:
    first, second, third = prompts_of(run, 1, 2, 3)
    put_entries(run, a_start())
    assert one_pass(run).num_open_groups == 3
    assert set.union(*fates(run).values()) == {("none", "open", "")}

    there = on_topic(run)
    put_entries(run, a_step(there, 1, first, parent=0, number=1), some_drops(1, second, number=1))
    put_entries(run, a_step(there, 2, third, parent=1, number=2))
    report = one_pass(run)
    assert (report.num_open_groups, report.num_rollouts, report.num_entries) == (0, 6, 4)
    assert fates(run) == {
        first.group_id: {("000001", "trained", "")},
        second.group_id: {("none", "dropped", "no_spread")},
        third.group_id: {("000002", "trained", "")},
    }
    assert rollouts(run).trained.sum() == 4
    by_group = rollouts(run).groupby("group_id").closed_in_step.first()
    assert [by_group[one.group_id] for one in (first, second, third)] == [1, 2, 2]

    # Back to version 1: what came after its entry is open again, and is trained on in another second step.
    rollback = an_entry(EntryKind.ROLLBACK, step=1, weight_version=3, parent_version=1)
    put_entries(run, rollback)
    assert one_pass(run).num_open_groups == 2
    assert fates(run)[third.group_id] == fates(run)[second.group_id] == {("none", "open", "")}
    put_entries(run, a_step(there, 4, second, third, parent=3, number=2))
    assert one_pass(run).num_open_groups == 0
    assert fates(run)[third.group_id] == fates(run)[second.group_id] == {("000002", "trained", "")}
    steps = pd.read_parquet(run.directory / "archive" / "steps").sort_values("ledger_offset")
    assert steps.kind.tolist() == ["restart", "step", "drops", "step", "rollback", "step"]
    assert steps.survives.tolist() == [True, True, False, False, True, True]
    groups = pd.read_parquet(run.directory / "archive" / "groups")
    assert sorted(groups[groups.survives].group_id) == sorted(one.group_id for one in (first, second, third))
    assert len(groups) == 5, "what was cut is still there"


def test_a_repair_takes_a_strangers_entry_out_and_puts_what_it_contradicted_back(run: Run) -> None:
    first, second = prompts_of(run, 1, 2)
    put_entries(run, a_start())
    there = on_topic(run)
    [stranger] = put_entries(run, a_step(there, 9, second, parent=0, number=1))
    put_entries(run, a_step(there, 1, first, parent=0, number=1))
    one_pass(run)
    assert fates(run)[second.group_id] == {("000001", "trained", "")}
    assert fates(run)[first.group_id] == {("none", "open", "")}
    named = (SkippedRecord(topic="ledger", partition=0, offset=stranger),)
    put_entries(run, an_entry(EntryKind.SKIP, step=0, weight_version=9, skipped=named))
    one_pass(run)
    assert fates(run)[second.group_id] == {("none", "open", "")}
    assert fates(run)[first.group_id] == {("000001", "trained", "")}
    steps = pd.read_parquet(run.directory / "archive" / "steps").sort_values("ledger_offset")
    assert steps.survives.tolist() == [True, False, True, False]


def test_entries_that_name_many_groups_are_archived_few_at_a_time(run: Run) -> None:
    put_entries(run, a_start())
    groups = tuple(
        ClosedGroup(group_id=f"{number:032x}", outcome=GroupOutcome.DROPPED, reason="lost") for number in range(16_000)
    )
    # Each entry takes some 700 kB on the topic, and far more in memory.
    put_entries(run, *(an_entry(EntryKind.DROPS, step=0, weight_version=0, closed=groups) for _ in range(5)))
    assert one_pass(run).num_entries == 6
    segments = Store(run.directory / "archive").of_topic("ledger")
    assert [segment.num_rows for segment in segments] == [5, 1]


def test_bad_records_are_listed_and_the_rest_goes_on(run: Run) -> None:
    prompts_of(run, 1)
    bad = [b"", b"no record", b"\0\0\0\0\3" + b"\xff" * 40, None, b"\0\0\0\0\3" + b"\0" * (5 * 2**20)]
    run.publish("scored", [(f"stranger-{number}", value) for number, value in enumerate(bad)])
    prompts_of(run, 2)
    result = archived(run)
    assert result.exit_code == 0, result.output
    assert "4 rollouts, 0 ledger entries, 2 prompts, 5 unreadable records, 2 open groups" in result.output
    listed = pd.read_parquet(run.directory / "archive" / "unreadable")
    assert sorted(listed.num_bytes.dropna()) == [0, 9, 45, 5 * 2**20 + 5]
    assert set(listed.topic) == {"scored"}
    assert listed.why.str.startswith("scored: ").all()
    assert "5 unreadable" in archived(run).output, "each is listed once"


def test_records_that_were_deleted_before_they_were_archived_are_said_to_be_lost(run: Run) -> None:
    prompts_of(run, 1)
    assert archived(run).exit_code == 0
    prompts_of(run, 2, 3, 4, 5)
    admin = AdminClient(run.kafka.client_config())
    ends = KafkaAdmin(run.kafka).end_offsets(f"{run.name}.scored", 2)
    cut = [TopicPartition(f"{run.name}.scored", number, end) for number, end in ends.items()]
    for future in admin.delete_records(cut).values():
        future.result()
    refused = archived(run)
    assert isinstance(refused.exception, ConfigurationError)
    assert "were deleted before they were archived" in str(refused.exception)
    prompts_of(run, 6)
    assert archived(run, "--accept-loss").exit_code == 0
    assert sorted(rollouts(run).prompt_id.unique()) == ["sort_digits/1", "sort_digits/6"]


def test_the_archive_of_another_run_is_refused(run: Run, kafka: str) -> None:
    assert archived(run).exit_code == 0
    with a_run(kafka, f"{run.name[:50]}-other", run.directory) as other:
        refused = archived(other)
    assert isinstance(refused.exception, ConfigurationError)
    assert f"is the archive of run {run.name}" in str(refused.exception)


def test_following_goes_on_until_it_is_asked_to_end(run: Run) -> None:
    archive = run.directory / "archive"
    process = start_forked(partial(follow, run.config, archive), log=run.directory / "archive.log")
    try:
        for row in (1, 2):
            prompts_of(run, row)
            wait_until(lambda count=row: num_archived(archive) >= count * GROUP_SIZE, f"the rollouts of prompt {row}")
        assert process.terminate() == 0
    finally:
        process.kill()
    assert len(rollouts(run)) == 2 * GROUP_SIZE


def list_files(archive: Path) -> list[Path]:
    return list((archive / "rollouts").rglob("part-*.parquet"))


def killed_pass(run: Run, crash_at: str) -> StartedProcess:
    main = partial(archive_in_small_pieces, run.config, run.directory / "archive")
    return start_forked(main, log=run.directory / "archive.log", env={CRASH_AT: crash_at})


def keys_of(path: Path) -> pd.DataFrame:
    return pq.ParquetFile(path).read(["partition", "offset", "attempt_id"]).to_pandas()


def in_files(frames: list[pd.DataFrame]) -> Counter[Key]:
    return Counter(
        key for frame in frames for key in zip(frame.partition, frame.offset, frame.attempt_id, strict=True)
    )  # fmt: skip


@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_kills", [1, pytest.param(7, marks=pytest.mark.slow)])
def test_kill_9_at_any_point_loses_nothing_and_doubles_nothing(run: Run, num_kills: int) -> None:
    """`num_kills`: in each batch, besides those while files are removed, and when the pass has ended."""
    archive, chooser = run.directory / "archive", random.Random(12)
    put_entries(run, a_start())
    kills, kept = 0, 0
    for batch in range(BATCHES):
        prompts, first = prompts_of(run, *range(PROMPTS * batch, PROMPTS * (batch + 1))), 4 * batch + 1
        there = on_topic(run)
        # Of the steps before it, the rollback leaves the first.
        put_entries(
            run,
            an_entry(EntryKind.ROLLBACK, step=batch, weight_version=first, parent_version=kept),
            *(a_step(there, first + n, prompts[n], parent=first + n - 1, number=batch + n) for n in (1, 2, 3)),
        )
        kept = first + 1
        crashes = [f"{POINTS[(batch + n) % len(POINTS)]}:{chooser.randint(1, 2)}" for n in range(num_kills)]
        # What a pass does at its end is tried last.
        for crash_at in (*crashes, f"archive_file_removed:{batch}", "archive_head_replaced"):
            process = killed_pass(run, crash_at)
            kills += process.wait() == -signal.SIGKILL
            store = Store(archive)
            found = in_files([keys_of(path) for path in store.named("rollouts", store.segments.values())])
            assert set(found.values()) <= {1}, "a record is in two files that count"
            assert found.keys() <= there.keys()
    assert kills == (num_kills + 2) * BATCHES - 2, "in the first batch the pass that is to remove files ends"
    final = killed_pass(run, "")
    assert final.wait() == 0, final.said()
    num_trained = BATCHES + 2
    outcomes = rollouts(run).groupby("outcome").group_id.nunique().to_dict()
    assert outcomes == {"open": PROMPTS * BATCHES - num_trained, "trained": num_trained}
    # All files that lie there, as pandas reads them: also what a killed pass left must be gone.
    assert in_files([rollouts(run)]) == Counter(there.keys())
    check_same_as_afresh(run)
