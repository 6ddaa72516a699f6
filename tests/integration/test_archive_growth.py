"""An archive that is written for long: few files, a start that reads no more, and readers beside its writer."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow.parquet as pq
import pytest

from rollstream.archive.archiver import Archiver, Bounds
from rollstream.archive.reading import identity_of
from rollstream.archive.rows import read_rollouts
from rollstream.archive.store import Store
from rollstream.archive.tables import SCHEMAS
from rollstream.process.stop import Stop
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ledger import EntryKind
from tests.harness.archive_runs import (
    GROUP_SIZE,
    a_start,
    a_step,
    check_same_as_afresh,
    num_archived,
    on_topic,
    prompts_of,
    put_entries,
)
from tests.harness.archiving import SMALL, archive_in_small_pieces, archive_until_stopped
from tests.harness.builders import an_entry
from tests.harness.forking import start_forked
from tests.harness.running import Run, a_run
from tests.harness.waits import wait_until

BOUNDS = Bounds(records=8, remembered_entries=4)


@pytest.fixture
def run(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[Run]:
    with a_run(kafka, topic_prefix, tmp_path) as fresh:
        yield fresh


class Cost(NamedTuple):
    """Of a start. `num_reads`: calls of the system; a file takes some."""

    num_bytes: int
    num_reads: int


def cost_of_a_start(run: Run) -> Cost:
    on_bus = run.on_bus
    identity = identity_of(on_bus)
    before = reads()
    with Store.writing(run.directory / "archive", identity) as store:
        Archiver(on_bus, store, bounds=BOUNDS)
        after = reads()
    return Cost(after.num_bytes - before.num_bytes, after.num_reads - before.num_reads)


def reads() -> Cost:
    told = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return Cost(int(told["rchar"]), int(told["syscr"]))


def a_pass_with_a_step(run: Run, version: int) -> None:
    [prompt] = prompts_of(run, version)
    put_entries(run, a_step(on_topic(run), version, prompt, parent=version - 1, number=version))
    on_bus = run.on_bus
    with Store.writing(run.directory / "archive", identity_of(on_bus)) as store:
        Archiver(on_bus, store, bounds=BOUNDS).make_pass()


def num_files(archive: Path) -> dict[str, int]:
    return {table: len(list((archive / table).rglob("*.parquet"))) for table in (*SCHEMAS, "segments")} | {
        "segments": len(list((archive / "segments").iterdir()))
    }


def test_files_are_filled_and_a_start_reads_no_more_after_three_times_as_many_passes(run: Run) -> None:
    put_entries(run, a_start())
    costs, settled, versions = {}, list[list[Path]](), count(1)
    for num_passes in (7, 23):
        while (version := next(versions)) <= num_passes:
            a_pass_with_a_step(run, version)
        versions = count(version)
        costs[num_passes] = cost_of_a_start(run)
        settled.append(list((run.directory / "archive").glob("rollouts/*/step=0*/*.parquet")))
    short, long = costs[7], costs[23]
    assert long.num_bytes <= 1.25 * short.num_bytes, costs
    assert long.num_reads <= 1.25 * short.num_reads, costs
    files = num_files(run.directory / "archive")
    # 24 entries, 23 prompts and 46 samples, 8 of a topic in a segment.
    assert files["segments"] == 3 + 3 + 6
    assert {files[table] for table in ("steps", "groups", "prompts")} <= {3, 4}, "4 if a day ended meanwhile"
    assert files["rollouts"] <= 23 + 2 * 6 + 1, "a step's rows lie in one or two segments"
    assert set(settled[0]) <= set(settled[1]), "what a later pass does not change is not written again"
    check_same_as_afresh(run)


def test_an_entry_that_goes_back_behind_what_is_remembered_changes_all_that_depends_on_it(run: Run) -> None:
    put_entries(run, a_start())
    for version in range(1, 9):
        a_pass_with_a_step(run, version)
    archive = run.directory / "archive"
    assert len(json.loads((archive / "head.json").read_text())["live"]) < len(list((archive / "segments").iterdir()))
    put_entries(run, an_entry(EntryKind.ROLLBACK, step=2, weight_version=9, parent_version=2))
    a_pass_with_a_step(run, 10)
    rollouts = pd.read_parquet(archive / "rollouts")
    assert sorted(rollouts.trained_step.dropna().unique()) == [1, 2, 10]
    assert rollouts.outcome.value_counts().to_dict() == {"open": 6 * GROUP_SIZE, "trained": 3 * GROUP_SIZE}
    check_same_as_afresh(run)


def test_without_the_files_that_a_writer_goes_on_from_all_segments_are_read(run: Run) -> None:
    put_entries(run, a_start())
    archive = run.directory / "archive"
    for version, missing in enumerate((["head.json"], ["writing.json"], ["head.json", "writing.json"]), start=1):
        a_pass_with_a_step(run, version)
        for name in missing:
            (archive / name).unlink()
    # As earlier versions wrote them: such segments take no more rows.
    for path in (archive / "segments").glob("*.json"):
        path.write_text(json.dumps({name: one for name, one in json.loads(path.read_text()).items()
                                    if name != "num_bytes"}))  # fmt: skip
    before = len(list((archive / "segments").glob("*.json")))
    a_pass_with_a_step(run, 4)
    assert len(list((archive / "segments").glob("*.json"))) == before + 3
    check_same_as_afresh(run)


def test_groups_that_stay_open_are_waited_for_in_the_newest_segments_alone(run: Run) -> None:
    bounds, on_bus, archive = Bounds(records=2, open_segments=2), run.on_bus, run.directory / "archive"
    prompts = prompts_of(run, *range(4))
    with Store.writing(archive, identity_of(on_bus)) as store:
        Archiver(on_bus, store, bounds=bounds).make_pass()
    put_entries(run, a_start(), a_step(on_topic(run), 1, *prompts, parent=0, number=1))
    with Store.writing(archive, identity_of(on_bus)) as store:
        assert len(store.of_topic("scored")) == 2, "of four segments"
        Archiver(on_bus, store, bounds=bounds).make_pass()
    assert pd.read_parquet(archive / "rollouts").outcome.value_counts().to_dict() == {"open": 4, "trained": 4}
    assert set(pd.read_parquet(archive / "groups").group_id) == {prompt.group_id for prompt in prompts}


def rows_that_count(archive: Path) -> Counter[tuple[int, int]]:
    """As the README tells those who read while somebody writes."""
    found: Counter[tuple[int, int]] = Counter()
    for path in sorted((archive / "segments").glob("*.json")):
        while True:
            names = [name for name in json.loads(path.read_text())["files"] if name.startswith("rollouts/")]
            try:
                tables = [pq.ParquetFile(archive / name).read(["partition", "offset"]) for name in names]
                break
            except FileNotFoundError:
                continue
        for table in tables:
            found.update(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    return found


def has_more_than(archive: Path, num_rows: int) -> bool:
    return num_archived(archive) > num_rows


def test_readers_beside_the_writer_find_each_row_once_and_none_is_gone_again(run: Run) -> None:
    archive = run.directory / "archive"
    put_entries(run, a_start())
    process = start_forked(partial(archive_until_stopped, run.config, archive), log=run.directory / "archive.log")
    known: set[tuple[int, int]] = set()
    try:
        for version in range(1, 8):
            [prompt] = prompts_of(run, version)
            put_entries(run, a_step(on_topic(run), version, prompt, parent=version - 1, number=version))
            wait_until(partial(has_more_than, archive, len(known)), process.said)
            for found in (
                rows_that_count(archive),
                Counter(one.place for one in read_rollouts(Store(archive), lambda path: pytest.fail(f"{path}"))),
            ):
                assert set(found.values()) <= {1}
                assert found.keys() >= known
                known = set(found)
        assert process.terminate() == 0, process.said()
    finally:
        process.kill()
    # The last entry may have come after the writer had read the ledger for the last time.
    archive_in_small_pieces(run.config, archive)
    check_same_as_afresh(run)


@pytest.mark.parametrize("num_kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_kill_9_at_any_moment_of_a_writer_that_goes_on_loses_and_doubles_nothing(run: Run, num_kills: int) -> None:
    archive, chooser = run.directory / "archive", random.Random(3)
    put_entries(run, a_start())
    for version in range(1, num_kills + 1):
        prompt, *_ = prompts_of(run, *range(4 * version, 4 * version + 4))
        put_entries(run, a_step(on_topic(run), version, prompt, parent=version - 1, number=version))
        process = start_forked(partial(archive_until_stopped, run.config, archive), log=run.directory / "archive.log")
        before = num_archived(archive)
        # Within its pass, which has more to write after these rows.
        wait_until(partial(has_more_than, archive, before + chooser.randint(0, 4)), process.said)
        process.kill()
        assert set(rows_that_count(archive).values()) <= {1}
    on_bus = run.on_bus
    with Store.writing(archive, identity_of(on_bus)) as store:
        Archiver(on_bus, store, bounds=SMALL).make_pass()
    check_same_as_afresh(run)


def test_a_pass_ends_after_the_next_segment_of_each_topic_when_the_process_is_to_end(run: Run) -> None:
    prompt, *_ = prompts_of(run, *range(8))
    put_entries(run, a_start(), a_step(on_topic(run), 1, prompt, parent=0, number=1))
    on_bus, stop = run.on_bus, Stop()
    stop.ask()
    with Store.writing(run.directory / "archive", identity_of(on_bus)) as store:
        report = Archiver(on_bus, store, bounds=SMALL, stop=stop).make_pass()
        assert (report.num_entries, report.num_prompts, report.num_rollouts) == (2, 3, 3)
        assert Archiver(on_bus, store, bounds=SMALL).make_pass().num_rollouts == 8 * GROUP_SIZE
    check_same_as_afresh(run)


def test_topics_that_were_made_anew_do_not_come_into_the_archive_that_is_followed(run: Run) -> None:
    on_bus = run.on_bus
    with Store.writing(run.directory / "archive", identity_of(on_bus)) as store:
        archiver = Archiver(on_bus, store)
        prompts_of(run, 1)
        assert archiver.make_pass().num_rollouts == GROUP_SIZE
        admin = on_bus.admin()
        admin.delete_topics(run.name)
        admin.create_topics(run.name, partitions=2)
        # Past the offsets up to which the deleted ones were archived.
        prompts_of(run, 2, 3, 4, 5)
        with pytest.raises(ConfigurationError, match="deleted since, and made again: name another directory"):
            archiver.make_pass()
    assert set(pd.read_parquet(run.directory / "archive" / "rollouts").prompt_id) == {"sort_digits/1"}
