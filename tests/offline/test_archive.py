"""`rollstream archive` on a real broker: fates that come later or are cut, bad records, kill -9 and lost records."""

import random
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from rollstream.archive.archive import Archive
from rollstream.archive.archiver import ENOUGH_RECORDS, Archiver, PassReport
from rollstream.archive.archiver import archive as follow_run
from rollstream.archive.options import ArchiveOptions
from rollstream.archive.pieces import identity_of
from rollstream.archive.reading import Joined, joined
from rollstream.bus.admin import KafkaAdmin
from rollstream.cli.archive import command
from rollstream.process.crash_points import CRASH_AT
from rollstream.process.stop import Stop
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome, LedgerEntry, SkippedRecord
from rollstream.schemas.prompt import PromptSubmitted
from tests.harness.archive_runs import (
    GROUP_SIZE,
    a_start,
    a_step,
    archived_keys,
    check_same_as_afresh,
    on_topic,
    prompts_of,
    put_entries,
    rows,
)
from tests.harness.archiving import FEW, archive_in_small_pieces, archive_until_stopped, archive_whole, follow
from tests.harness.builders import an_entry
from tests.harness.forking import start_forked
from tests.harness.processes import StartedProcess
from tests.harness.running import Run, a_run
from tests.harness.waits import wait_until

POINTS = ("archive_file_written", "archive_file_named")
PROMPTS = 4


@pytest.fixture
def run(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[Run]:
    with a_run(kafka, topic_prefix, tmp_path) as fresh:
        yield fresh


@pytest.fixture
def archive(run: Run) -> Path:
    return run.directory / "archive"


def archived(run: Run, *options: str) -> Result:
    words = ["--config", str(run.config), "--output", str(run.directory / "archive"), *options]
    return CliRunner().invoke(command, words)


def after_a_pass(run: Run) -> Joined:
    archive_whole(run.config, run.directory / "archive")
    return joined(run.directory / "archive", columns=["prompt_id"])


def some_drops(version: int, *prompts: PromptSubmitted, number: int) -> LedgerEntry:
    closed = tuple(
        ClosedGroup(group_id=one.group_id, outcome=GroupOutcome.DROPPED, reason="no_spread") for one in prompts
    )
    return an_entry(EntryKind.DROPS, step=number, weight_version=version, closed=closed)


def fates(tables: Joined, *prompts: PromptSubmitted) -> list[tuple[str, str, int]]:
    """Of each group: its outcome, the reason, and the step that was gathered when it closed, 0 while it is open."""
    found = tables.rollouts.fillna({"closed_in_step": 0}).groupby("group_id")[["outcome", "reason", "closed_in_step"]]
    assert (found.nunique() == 1).all(axis=None)
    return [tuple(found.first().loc[prompt.group_id]) for prompt in prompts]


def test_rollouts_get_their_fate_when_their_group_closes_and_lose_it_when_its_entry_is_cut(run: Run) -> None:
    first, second, third = prompts_of(run, 1, 2, 3)
    put_entries(run, a_start())
    assert set(fates(after_a_pass(run), first, second, third)) == {("open", "", 0)}

    there = on_topic(run)
    put_entries(run, a_step(there, 1, first, parent=0, number=1), some_drops(1, second, number=1))
    put_entries(run, a_step(there, 2, third, parent=1, number=2))
    tables = after_a_pass(run)
    assert fates(tables, first, second, third) == [("trained", "", 1), ("dropped", "no_spread", 2), ("trained", "", 2)]
    assert tables.rollouts.trained.sum() == 4

    # Back to version 1: what came after its entry is open again, and is trained on in another second step.
    put_entries(run, an_entry(EntryKind.ROLLBACK, step=1, weight_version=3, parent_version=1))
    assert fates(after_a_pass(run), first, second, third) == [("trained", "", 1), ("open", "", 0), ("open", "", 0)]
    put_entries(run, a_step(there, 4, second, third, parent=3, number=2))
    tables = after_a_pass(run)
    assert fates(tables, second, third) == [("trained", "", 2), ("trained", "", 2)]
    assert tables.steps.kind.tolist() == ["restart", "step", "drops", "step", "rollback", "step"]
    assert tables.steps.survives.tolist() == [True, True, False, False, True, True]
    assert tables.groups.survives.tolist() == [True, False, False, True, True], "what was cut is still there"


def test_a_repair_takes_a_strangers_entry_out_and_puts_what_it_contradicted_back(run: Run) -> None:
    first, second = prompts_of(run, 1, 2)
    put_entries(run, a_start())
    there = on_topic(run)
    [stranger] = put_entries(run, a_step(there, 9, second, parent=0, number=1))
    put_entries(run, a_step(there, 1, first, parent=0, number=1))
    assert fates(after_a_pass(run), first, second) == [("open", "", 0), ("trained", "", 1)]
    named = (SkippedRecord(topic="ledger", partition=0, offset=stranger),)
    put_entries(run, an_entry(EntryKind.SKIP, step=0, weight_version=9, skipped=named))
    tables = after_a_pass(run)
    assert fates(tables, first, second) == [("trained", "", 1), ("open", "", 0)]
    assert tables.steps.survives.tolist() == [True, False, True, False]


def test_entries_that_name_many_groups_are_archived_few_at_a_time(run: Run, archive: Path) -> None:
    put_entries(run, a_start())
    groups = tuple(
        ClosedGroup(group_id=f"{number:032x}", outcome=GroupOutcome.DROPPED, reason="lost") for number in range(16_000)
    )
    # Each entry takes some 700 kB on the topic, and far more in memory.
    put_entries(run, *(an_entry(EntryKind.DROPS, step=0, weight_version=0, closed=groups) for _ in range(5)))
    assert archive_whole(run.config, archive).num_entries == 6
    files = Archive.reading(archive).row_files("steps")
    assert [(file.first, file.end) for file in files] == [(0, 5), (5, 6)]


def test_bad_records_are_listed_and_the_rest_goes_on(run: Run, archive: Path) -> None:
    prompts_of(run, 1)
    bad = [b"", b"no record", b"\0\0\0\0\3" + b"\xff" * 40, None, b"\0\0\0\0\3" + b"\0" * (5 * 2**20)]
    run.publish("scored", [(f"stranger-{number}", value) for number, value in enumerate(bad)])
    prompts_of(run, 2)
    result = archived(run)
    assert result.exit_code == 0, result.output
    assert "4 rollouts, 0 ledger entries, 2 prompts and 5 unreadable records" in result.output
    listed = rows(archive, "unreadable")
    assert sorted(listed.num_bytes.dropna()) == [0, 9, 45, 5 * 2**20 + 5]
    assert set(listed.topic) == {"scored"}
    assert listed.why.str.startswith("scored: ").all()
    assert "0 unreadable" in archived(run).output, "each is listed once"


def test_records_that_were_deleted_before_they_were_archived_are_said_to_be_lost(
    kafka: str, topic_prefix: str, tmp_path: Path
) -> None:
    # A gap shows once a later record of its partition is archived, so there is one partition.
    with a_run(kafka, topic_prefix, tmp_path, partitions=1) as run:
        prompts_of(run, 1)
        assert archived(run).exit_code == 0
        prompts_of(run, 2, 3, 4, 5)
        topic = f"{run.name}.scored"
        [end] = KafkaAdmin(run.kafka).end_offsets(topic, 1).values()
        client = AdminClient(run.kafka.client_config())
        [deleted] = client.delete_records([TopicPartition(topic, 0, end)]).values()
        deleted.result(30)
        refused = archived(run)
        assert isinstance(refused.exception, ConfigurationError)
        lost = f"scored/0: offsets {GROUP_SIZE} to {end - 1}"
        assert f"{run.name}.{lost} were deleted before they were archived" in str(refused.exception)
        assert "--accept-loss" in str(refused.exception)
        prompts_of(run, 6)
        assert archived(run, "--accept-loss").exit_code == 0
        archive = run.directory / "archive"
        assert sorted(joined(archive).rollouts.prompt_id.unique()) == ["sort_digits/1", "sort_digits/6"]
        assert Archive.reading(archive).gaps("rollouts") == [lost]


def test_the_archive_of_another_run_is_refused(run: Run, kafka: str) -> None:
    assert archived(run).exit_code == 0
    with a_run(kafka, f"{run.name[:50]}-other", run.directory) as other:
        refused = archived(other)
    assert isinstance(refused.exception, ConfigurationError)
    assert f"is the archive of run {run.name}" in str(refused.exception)


def test_topics_that_were_made_anew_do_not_come_into_the_archive_that_is_followed(run: Run, archive: Path) -> None:
    on_bus = run.on_bus
    with Archive.writing(archive, identity_of(on_bus)) as opened:
        archiver = Archiver(on_bus, opened)
        prompts_of(run, 1)
        assert archiver.make_pass().num_rollouts == GROUP_SIZE
        admin = on_bus.admin()
        admin.delete_topics(run.name)
        admin.create_topics(run.name, partitions=2)
        # Past the offsets up to which the deleted ones were archived.
        prompts_of(run, 2, 3, 4, 5)
        with pytest.raises(ConfigurationError, match="deleted since, and made again: name another directory"):
            archiver.make_pass()
    assert set(rows(archive, "rollouts").prompt_id) == {"sort_digits/1"}


def test_a_pass_ends_after_the_next_piece_of_each_topic_when_the_process_is_to_end(run: Run, archive: Path) -> None:
    prompt, *_ = prompts_of(run, *range(8))
    put_entries(run, a_start(), a_step(on_topic(run), 1, prompt, parent=0, number=1))
    on_bus, stop = run.on_bus, Stop()
    stop.ask()
    with Archive.writing(archive, identity_of(on_bus)) as opened:
        report = Archiver(on_bus, opened, most_records=FEW, stop=stop).make_pass()
        assert report.num_entries == 2
        assert 0 < report.num_prompts <= FEW
        assert 0 < report.num_rollouts <= FEW
        Archiver(on_bus, opened, most_records=FEW).make_pass()
    assert archived_keys(archive).keys() == on_topic(run).keys()
    check_same_as_afresh(run)


def test_following_goes_on_until_it_is_asked_to_end(run: Run, archive: Path) -> None:
    prompts_of(run, 1)
    process = start_forked(partial(follow, run.config, archive), log=run.directory / "archive.log")
    try:
        wait_until(lambda: archived_keys(archive).total() == GROUP_SIZE, process.said)
        assert process.terminate() == 0
    finally:
        process.kill()


def test_following_writes_what_has_come_when_there_is_enough_or_after_some_looks(run: Run, archive: Path) -> None:
    on_bus, stop, reports = run.on_bus, Stop(), list[PassReport]()

    def told(report: PassReport) -> None:
        reports.append(report)
        if len(reports) == 2:
            stop.ask()
        prompts_of(run, len(reports))

    often = ArchiveOptions(output=str(archive), follow=True).model_copy(update={"every": 0.01})
    follow_run(on_bus, often, told, stop=stop)
    assert [report.num_rollouts for report in reports] == [0, GROUP_SIZE]
    with Archive.writing(archive, identity_of(on_bus)) as opened:
        archiver = Archiver(on_bus, opened)
        assert not archiver.is_worth_a_pass(), "the prompts that came last"
        run.publish("scored", [("same-partition", b"no record")] * ENOUGH_RECORDS)
        assert archiver.is_worth_a_pass()
        assert archiver.make_pass().num_unreadable == ENOUGH_RECORDS
        assert not archiver.is_worth_a_pass()


def killed_pass(run: Run, crash_at: str) -> StartedProcess:
    main = partial(archive_in_small_pieces, run.config, run.directory / "archive")
    return start_forked(main, log=run.directory / "archive.log", env={CRASH_AT: crash_at})


@pytest.mark.parametrize("point", POINTS)
def test_kill_9_at_each_file_loses_nothing_and_doubles_nothing(run: Run, archive: Path, point: str) -> None:
    """The first files are those that every archive has; then come those of `ledger`, `prompts` and `scored`."""
    prompts = prompts_of(run, *range(PROMPTS))
    put_entries(run, a_start(), a_step(on_topic(run), 9, prompts[0], parent=0, number=1))
    [stranger] = put_entries(run, a_step(on_topic(run), 1, prompts[1], parent=0, number=1))
    named = (SkippedRecord(topic="ledger", partition=0, offset=stranger - 1),)
    put_entries(run, an_entry(EntryKind.SKIP, step=0, weight_version=9, skipped=named))
    run.publish("scored", [("stranger", b"no record")])
    there, kills = on_topic(run), 0
    # At the fourth file that each process writes: so none gets far.
    while killed_pass(run, f"{point}:4").wait() == -signal.SIGKILL:
        kills += 1
        found = archived_keys(archive)
        assert set(found.values()) <= {1}
        assert found.keys() <= there.keys()
    assert kills >= 4
    assert archived_keys(archive) == Counter(there.keys())
    check_same_as_afresh(run)


@pytest.mark.parametrize("num_kills", [4, pytest.param(10, marks=pytest.mark.slow)])
def test_kill_9_at_any_moment_of_a_writer_that_goes_on_loses_and_doubles_nothing(
    run: Run, archive: Path, num_kills: int
) -> None:
    chooser = random.Random(3)
    put_entries(run, a_start())
    for version in range(1, num_kills + 1):
        prompt, *_ = prompts_of(run, *range(4 * version, 4 * version + 4))
        put_entries(run, a_step(on_topic(run), version, prompt, parent=version - 1, number=version))
        process = start_forked(partial(archive_until_stopped, run.config, archive), log=run.directory / "archive.log")
        # Within its pass, which has more to write after these rows.
        enough = archived_keys(archive).total() + chooser.randint(1, 5)
        wait_until(lambda enough=enough: archived_keys(archive).total() >= enough, process.said)
        process.kill()
        assert set(archived_keys(archive).values()) <= {1}
    archive_in_small_pieces(run.config, archive)
    assert archived_keys(archive) == Counter(on_topic(run).keys())
    tables = joined(archive)
    assert tables.rollouts.trained.sum() == num_kills * GROUP_SIZE
    check_same_as_afresh(run)
