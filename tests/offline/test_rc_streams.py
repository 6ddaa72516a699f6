"""Streams as files: paths and lines, a writer that dies, lines that are no values, sizes, and who reads meanwhile."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from rollstream.process.stop import Stop
from rollstream.rc_actor.file_streams import FileStreams, path_of
from rollstream.rc_actor.lines import SingleStreamSpec, StreamRangeSpec, StreamSpec
from rollstream.rc_actor.streams import (
    backend_named,
    read_stream,
    set_streams_backend,
    write_to_streams,
)
from rollstream.rc_actor.texts import texts_of
from rollstream.rc_actor.training_text import TrainingText
from rollstream.rows.row import MAX_ROW_BYTES
from rollstream.schemas.errors import ConfigurationError, EncodeError, MachineError, RecordTooLargeError
from tests.harness.builders import a_generated
from tests.harness.cycles import OPTIONS, cycle_turns
from tests.harness.full_disk import room_for
from tests.harness.waits import wait_until

FILES = FileStreams()


@pytest.fixture
def spec(tmp_path: Path) -> SingleStreamSpec:
    return SingleStreamSpec(tmp_path, "rc_actor")


def written(spec: StreamSpec, *values: object) -> list[int]:
    with write_to_streams(spec, backend=FILES) as writer:
        return [writer.write(value) for value in values]


def values_in(spec: SingleStreamSpec, start: int = 0) -> list[object]:
    with read_stream(spec, start=start, backend=FILES) as reader:
        return list(reader.read())


def test_a_group_is_one_line_at_the_originals_path(spec: SingleStreamSpec, tmp_path: Path) -> None:
    group = texts_of(a_generated(turns=cycle_turns(3)), None, OPTIONS)
    written(spec, group)
    path = tmp_path / "streams" / "rc_actor" / "0" / "0" / "0.jsonl"
    assert len(path.read_text().splitlines()) == 1
    assert json.loads(path.read_text()) == [text.model_dump() for text in group]
    with read_stream(spec, backend=FILES) as reader:
        assert list(reader.groups()) == [group]


def test_a_range_is_written_in_turn_and_a_partition_by_its_number(tmp_path: Path) -> None:
    with write_to_streams(StreamRangeSpec(tmp_path, "rc_actor", 3, (1, 3)), backend=FILES) as writer:
        for value in "abc":
            writer.write(value)
        writer.write("d", 2)
        with pytest.raises(ConfigurationError, match="partition 0 is not written here"):
            writer.write("e", 0)
    assert values_in(SingleStreamSpec(tmp_path, "rc_actor", 3, 1)) == ["a", "c"]
    assert values_in(SingleStreamSpec(tmp_path, "rc_actor", 3, 2)) == ["b", "d"]


def test_a_torn_last_line_is_never_read_and_goes_when_the_next_writer_begins(spec: SingleStreamSpec) -> None:
    written(spec, ["whole"])
    path = path_of(spec, 0)
    with path.open("ab") as stream:
        # A line of JSON already, but for its end.
        stream.write(b'["torn"]')
    assert values_in(spec) == [["whole"]]
    written(spec, ["next"])
    assert values_in(spec) == [["whole"], ["next"]]


def test_what_is_not_whole_alone_is_no_line(spec: SingleStreamSpec) -> None:
    path = path_of(spec, 0)
    path.parent.mkdir(parents=True)
    path.write_bytes(b'["torn' * 2**18)
    assert values_in(spec) == []
    written(spec, ["next"])
    assert path.read_bytes() == b'["next"]\n'


def test_a_corrupt_line_is_named_and_counted_and_the_rest_is_read(
    spec: SingleStreamSpec, caplog: pytest.LogCaptureFixture
) -> None:
    path = path_of(spec, 0)
    path.parent.mkdir(parents=True)
    corrupt = {7: b"[1,", 11: b"\xff", 13: b"[" * 10_000 + b"]" * 10_000}
    path.write_bytes(b"".join(corrupt.get(number, b"[%d]" % number) + b"\n" for number in range(1, 21)))
    with read_stream(spec, backend=FILES) as reader:
        assert [value[0] for value in reader.read()] == [one for one in range(1, 21) if one not in corrupt]
    assert reader.bad == {"it is no valid JSON": 1, "it is not UTF-8": 1, "its JSON is nested too deeply": 1}
    assert all(f"{path} line {number}:" in caplog.text for number in corrupt)


def test_a_value_that_is_no_group_is_named_by_line_and_field_and_the_next_is_read(
    spec: SingleStreamSpec, caplog: pytest.LogCaptureFixture
) -> None:
    group = texts_of(a_generated(turns=cycle_turns(1)), None, OPTIONS)
    written(spec, [], {"kind": "step"}, [{"text": "a", "n_predicted": 2}], group)
    with read_stream(spec, backend=FILES) as reader:
        assert list(reader.groups()) == [group]
    assert reader.bad == {"it is no group of texts": 3}
    assert f"{path_of(spec, 0)} line 3: it is no group of texts: 0: " in caplog.text


def test_a_corrupt_line_among_a_million_is_named_and_counted(
    spec: SingleStreamSpec, caplog: pytest.LogCaptureFixture
) -> None:
    path = path_of(spec, 0)
    path.parent.mkdir(parents=True)
    with path.open("wb") as stream:
        stream.writelines(b"[%d,\n" % number if number == 765_432 else b"[1]\n" for number in range(1, 1_000_001))
    with read_stream(spec, backend=FILES) as reader:
        assert sum(1 for _ in reader.read()) == 999_999
    assert reader.bad.total() == 1
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [f"passed over {path} line 765432"]


@pytest.mark.parametrize("num_bytes", [2**26, pytest.param(2**30, marks=pytest.mark.slow)])
def test_a_large_stream_takes_the_memory_of_a_small_one(spec: SingleStreamSpec, num_bytes: int) -> None:
    text = TrainingText(
        text="x" * 4000, n_predicted=2000, input_ids=[7] * 2000, labels=[7] * 2000, logprobs=[-0.5] * 1000
    )
    small, large = replace(spec, partition=0), replace(spec, partition=1)
    for one, size in ((small, 2**23), (large, num_bytes)):
        with write_to_streams(one, backend=FILES) as writer:
            while writer.write([text] * 24) < size:
                pass
    grown = peak_bytes(large) - peak_bytes(small)
    assert grown < 2**24


def peak_bytes(spec: SingleStreamSpec) -> int:
    """Memory of a process that reads all groups of the stream."""
    code = f"""
from pathlib import Path
from rollstream.rc_actor.file_streams import FileStreams
from rollstream.rc_actor.lines import SingleStreamSpec
from rollstream.rc_actor.streams import read_stream
from rollstream.rc_actor.training_text import group_of
spec = SingleStreamSpec(Path({str(spec.exp_path)!r}), {spec.topic!r}, partition={spec.partition})
with read_stream(spec, backend=FileStreams()) as reader:
    assert all(len(group_of(value)) == 24 for value in reader.read())
status = Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""
    return 1024 * int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=300).stdout)


def test_a_line_above_the_bound_is_passed_over(spec: SingleStreamSpec) -> None:
    path = path_of(spec, 0)
    path.parent.mkdir(parents=True)
    path.write_bytes(b'["' + b"x" * MAX_ROW_BYTES + b'"]\n["next"]\n')
    with read_stream(spec, backend=FILES) as reader:
        assert list(reader.read()) == [["next"]]
    assert reader.bad.total() == 1


def test_a_reader_goes_on_from_the_position_after_a_line(spec: SingleStreamSpec) -> None:
    first, second = written(spec, ["a"], ["b"])
    assert values_in(spec, first) == [["b"]]
    assert values_in(spec, second) == []
    with pytest.raises(ConfigurationError, match=f"from byte {second + 1} on: it was cut short"):
        values_in(spec, second + 1)


def test_a_line_above_its_bound_is_refused_with_size_and_key_and_the_next_is_written(spec: SingleStreamSpec) -> None:
    with write_to_streams(spec, backend=FILES, max_entry_bytes=100) as writer:
        with pytest.raises(
            RecordTooLargeError, match=r"group 0_17 has 104 bytes .*the bound is 100: raise shared_memory_entry_size"
        ):
            writer.write(["x" * 100], key="group 0_17")
        with pytest.raises(EncodeError, match="group 0_18 can't be written"):
            writer.write([object()], key="group 0_18")
        writer.write(["y"])
    assert values_in(spec) == [["y"]]


def test_a_full_disk_leaves_whole_lines(spec: SingleStreamSpec) -> None:
    with write_to_streams(spec, backend=FILES) as writer:
        writer.write(["a"])
        with room_for(2**16), pytest.raises(MachineError, match="make room"):
            writer.write(["x" * 2**17])
        writer.write(["b"])
    assert path_of(spec, 0).read_bytes() == b'["a"]\n["b"]\n'


def test_one_process_writes_a_file_at_a_time(spec: SingleStreamSpec) -> None:
    with (
        write_to_streams(spec, backend=FILES),
        pytest.raises(ConfigurationError, match="another process writes"),
        write_to_streams(spec, backend=FILES),
    ):
        pass


def test_who_writes_anew_replaces_what_was_there(spec: SingleStreamSpec) -> None:
    written(spec, ["a"])
    with write_to_streams(spec, "w", backend=FILES) as writer:
        writer.write(["b"])
    assert values_in(spec) == [["b"]]


def test_a_follower_waits_for_the_file_and_for_whole_lines_and_ends_when_asked(spec: SingleStreamSpec) -> None:
    stop, found = Stop(), list[object]()

    def follow() -> None:
        with read_stream(spec, follows=stop, backend=FILES) as reader:
            for value in reader.read():
                found.append(value)

    thread = Thread(target=follow, daemon=True)
    thread.start()
    written(spec, ["a"])
    wait_until(lambda: found == [["a"]], "the first line")
    with path_of(spec, 0).open("ab", buffering=0) as stream:
        stream.write(b'["b')
        stream.write(b'"]\n')
    wait_until(lambda: found == [["a"], ["b"]], "the second line")
    stop.ask()
    wait_until(lambda: not thread.is_alive(), "its end")


def test_backends_are_named_and_redis_is_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollstream.rc_actor.streams._chosen", None)
    with pytest.raises(ConfigurationError, match="redis is refused: its messages are pickled"):
        backend_named("redis")
    with pytest.raises(ConfigurationError, match="'file' must be files or kafka"):
        backend_named("file")
    assert isinstance(set_streams_backend("files"), FileStreams)


@pytest.mark.parametrize(
    ("topic", "partition", "why"),
    [("../up", 0, "topic '../up'"), ("rc_actor", -1, "partition -1"), ("rc_actor", 1000, "from 0 to 999")],
)
def test_a_stream_that_can_not_be_is_refused(tmp_path: Path, topic: str, partition: int, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        SingleStreamSpec(tmp_path, topic, 0, partition)
