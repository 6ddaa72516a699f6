"""The files of an archive, in a directory and in a bucket: what is written when, what is refused, who may write."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollstream.archive.appending import Appender
from rollstream.archive.archive import Archive
from rollstream.archive.options import ReplayOptions
from rollstream.archive.replay import replay
from rollstream.archive.tables import SCHEMAS, RowFile
from rollstream.schemas.errors import ConfigurationError, MachineError
from tests.harness.archiving import IDENTITY, a_piece, passes, write_archive, writing
from tests.harness.builders import a_group, a_prompt
from tests.harness.full_disk import room_for
from tests.harness.late import Late
from tests.harness.small_s3 import SmallS3, a_small_s3

pd = Late("pandas")
reading = Late("rollstream.archive.reading")

PASSES = 200
URL = "s3://bucket/runs/archive"


@pytest.fixture
def s3() -> Iterator[SmallS3]:
    with a_small_s3() as server:
        yield server


def written_bytes() -> int:
    told = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(told["wchar"])


def read_calls() -> int:
    told = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(told["syscr"])


def sizes(directory: Path) -> dict[str, int]:
    return {str(path.relative_to(directory)): path.stat().st_size for path in directory.rglob("*") if path.is_file()}


def test_what_200_passes_write_is_what_is_kept_and_a_start_reads_no_more_than_after_twelve(
    tmp_path: Path,
) -> None:
    directory, calls = tmp_path / "archive", list[int]()
    before = written_bytes()
    for first, end in ((0, 12), (12, PASSES)):
        with writing(directory) as archive:
            passes(Appender(archive), range(first, end))
        with writing(directory) as archive:
            at_start = read_calls()
            Appender(archive)
            calls.append(read_calls() - at_start)
    kept = sum(sizes(directory).values())
    assert kept <= written_bytes() - before <= 1.1 * kept
    assert calls[1] <= 1.25 * calls[0], "the newest file of the ledger alone"
    tables = reading.joined(directory)
    assert tables.rollouts.trained.sum() == 2 * PASSES
    assert sorted(tables.rollouts.trained_step.unique()) == list(range(PASSES))


def test_a_bucket_holds_the_same_archive_and_answers_the_same(tmp_path: Path, s3: SmallS3) -> None:
    storage = s3.storage(tmp_path / "cache", 5)
    for first, end in ((0, 4), (4, 8)):
        with Archive.writing(URL, IDENTITY, storage) as archive:
            passes(Appender(archive), range(first, end))
        with writing(tmp_path / "archive") as archive:
            passes(Appender(archive), range(first, end))
    names = {name.removeprefix("runs/archive/"): len(content) for name, content in s3.objects.items()}
    assert names == sizes(tmp_path / "archive")
    assert s3.bytes_put == sum(names.values()), "each object is put once"
    for found, expected in zip(reading.joined(URL, storage=storage), reading.joined(tmp_path / "archive"), strict=True):
        pd.testing.assert_frame_equal(found.astype(str), expected.astype(str))
    output = tmp_path / "rows.jsonl"
    assert replay(ReplayOptions(directory=URL, output=output), storage=storage).num_written == 16


def test_of_two_writers_in_a_bucket_neither_replaces_what_the_other_wrote(tmp_path: Path, s3: SmallS3) -> None:
    storage = s3.storage(tmp_path / "cache", 5)
    groups = [a_group([0.0, 1.0], prompt=a_prompt(row, group_size=2)) for row in range(3)]
    with Archive.writing(URL, IDENTITY, storage) as one, Archive.writing(URL, IDENTITY, storage) as other:
        Appender(one).append(a_piece("scored", groups[0]))
        with pytest.raises(ConfigurationError, match="another process writes there"):
            Appender(other).append(a_piece("scored", groups[1]))
        Appender(other).append(a_piece("scored", [*groups[0], *groups[1]]))
        Appender(one).append(a_piece("scored", [*groups[1], *groups[2]], first=2))
    found = reading.joined(URL, storage=storage, columns=["reward"]).rollouts
    assert len(found) == 6, "each counts once"
    with Archive.writing(URL, IDENTITY, storage) as archive:
        assert archive.ends("rollouts", "scored") == {0: 6}


def test_a_full_disk_ends_with_70_and_the_next_process_goes_on(tmp_path: Path) -> None:
    group = a_group([0.0, 1.0])
    directory = write_archive(tmp_path / "archive", group[:1])
    with writing(directory) as archive, room_for(1000), pytest.raises(MachineError, match=str(directory)) as full:
        Appender(archive).append(a_piece("scored", group[1:], 1))
    assert full.value.exit_code == 70
    assert archived_offsets(directory) == [0]
    with writing(directory) as archive:
        Appender(archive).append(a_piece("scored", group[1:], 1))
    assert archived_offsets(directory) == [0, 1]


def archived_offsets(directory: Path) -> list[int]:
    return sorted(pd.read_parquet(directory / "rollouts").offset)


def test_what_a_killed_process_left_is_removed_and_the_files_of_people_stay(tmp_path: Path) -> None:
    directory = write_archive(tmp_path / "archive", a_group([0.0, 1.0]))
    [kept] = (directory / "rollouts").glob("scored-*.parquet")
    left = directory / "rollouts" / f".{RowFile('rollouts', 'scored', 0, 2, 5).name.partition('/')[2]}.part"
    left.write_bytes(b"half a file")
    (directory / "notes.txt").write_text("a person's")
    with writing(directory) as archive:
        assert archive.ends("rollouts", "scored") == {0: 2}
    assert not left.exists()
    assert (directory / "notes.txt").exists()
    assert kept.exists()


def test_there_is_one_writer_at_a_time(tmp_path: Path) -> None:
    with (
        writing(tmp_path / "archive"),
        pytest.raises(ConfigurationError, match="another process writes"),
        writing(tmp_path / "archive"),
    ):
        pass


def test_an_archive_may_lie_behind_a_link_and_still_has_one_writer(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    with (
        writing(tmp_path / "link"),
        pytest.raises(ConfigurationError, match="another process writes"),
        writing(tmp_path / "disk"),
    ):
        pass
    assert (tmp_path / "disk" / "archive.json").exists()


def test_a_process_that_died_before_its_first_file_is_followed_by_another(tmp_path: Path) -> None:
    (tmp_path / ".archive.json.part").write_text('{"run')
    with writing(tmp_path) as archive:
        assert archive.ends("rollouts", "scored") == {}
    assert {f"{table}/empty.parquet" for table in SCHEMAS} < sizes(tmp_path).keys()


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"run": "else"}, "is the archive of run demo on cluster one, not of else on one"),
        ({"cluster_id": "two"}, "is the archive of run demo on cluster one, not of demo on two"),
        ({"topic_ids": {"demo.scored": "b"}}, "topics of demo that were deleted since, and made again"),
    ],
)
def test_the_archive_of_another_run_or_cluster_is_refused(tmp_path: Path, other: dict[str, object], why: str) -> None:
    write_archive(tmp_path / "archive")
    with (
        pytest.raises(ConfigurationError, match=why),
        Archive.writing(tmp_path / "archive", IDENTITY.model_copy(update=other)),
    ):
        pass


def test_nothing_is_removed_from_a_directory_that_is_no_archive(tmp_path: Path) -> None:
    theirs = tmp_path / "work" / ".rollouts.jsonl.part"
    theirs.parent.mkdir()
    for path in (theirs, tmp_path / "notes.txt"):
        path.write_text("somebody else's")
    with pytest.raises(ConfigurationError, match="no archive"), writing(tmp_path):
        pass
    assert theirs.exists()


def other_files(directory: Path) -> None:
    (directory / "thesis.tex").write_text("")


def another_format(directory: Path) -> None:
    (directory / "archive.json").write_text(IDENTITY.model_copy(update={"format": 1}).model_dump_json())


def a_damaged_identity(directory: Path) -> None:
    (directory / "archive.json").write_bytes(b"\0" * 40)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (other_files, r"no archive and has other files \(thesis.tex\)"),
        (another_format, "archive of format 1, and this rollstream knows 2"),
        (a_damaged_identity, r"archive\.json is damaged"),
    ],
)
def test_what_is_no_archive_is_neither_written_nor_read(tmp_path: Path, make: Callable[[Path], None], why: str) -> None:
    make(tmp_path)
    with pytest.raises(ConfigurationError, match=why), writing(tmp_path):
        pass
    with pytest.raises(ConfigurationError, match=why if "other files" not in why else "no archive"):
        Archive.reading(tmp_path)


def test_a_place_where_nothing_can_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot write"), writing(tmp_path / "file" / "archive"):
        pass


@pytest.mark.parametrize("name", ["s3://bucket/runs/nothing", "s3://other-bucket/archive"])
def test_a_bucket_without_an_archive_is_said_to_have_none(tmp_path: Path, s3: SmallS3, name: str) -> None:
    with pytest.raises(ConfigurationError, match="is no archive"):
        Archive.reading(name, s3.storage(tmp_path / "cache", 1))


@pytest.mark.parametrize(
    "name",
    [
        "../rollouts/scored-00000-0000000000000000000-0000000000000000001.parquet",
        "/etc/passwd",
        "rollouts/scored-00000-0000000000000000000-0000000000000000001.parquet\n",
        "rollouts/empty.parquet",
    ],
)
def test_names_that_are_no_files_of_rows_are_not_taken_for_some(name: str) -> None:
    assert RowFile.of(name) is None
    assert RowFile.of(RowFile("rollouts", "scored", 3, 17, 2**62).name) == ("rollouts", "scored", 3, 17, 2**62)
