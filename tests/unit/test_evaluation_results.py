"""The file of results: what a kill left is mended, and what is no file of results stays as it is."""

from pathlib import Path
from typing import Any

import pytest

from rollstream.client.results import results_at
from rollstream.schemas.errors import ConfigurationError, MachineError
from tests.harness.full_disk import room_for


def a_result(version: int, **fields: Any) -> dict[str, Any]:
    settings = {"run": "demo", "environment": "e", "num_prompts": 3, "num_samples": 2, "temperature": 1.0}
    return {**settings, "pass_threshold": 0.5, "weight_version": version, **fields}


def test_a_line_that_a_kill_cut_off_is_cut_away_and_the_last_whole_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with results_at(path) as results:
        assert results.last_version is None
        results.add(a_result(3))
        results.add(a_result(5))
    whole = path.read_bytes()
    for length in (1, 20, len(whole) // 2 - 1):
        path.write_bytes(whole + whole[:length])
        with results_at(path) as results:
            assert results.last_version == 5
        assert path.read_bytes() == whole
        path.write_bytes(whole[:length])
        with results_at(path) as results:
            assert results.last_version is None
        assert path.read_bytes() == b""


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with results_at(path) as results:
        results.add(a_result(3))
        line = path.read_bytes()
        results.add(a_result(4))
    path.write_bytes(b"not even JSON\n" * 100_000 + line)
    with results_at(path) as results:
        assert results.last_version == 3


@pytest.mark.parametrize("content", [b"a letter", b"a letter\n", b'{"weight_version": 3}\n', b"x" * 300_000, b"[]\n"])
def test_a_file_of_something_else_is_refused_and_stays_as_it_is(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"letter\.txt.*--output"), results_at(path):
        pass
    assert path.read_bytes() == content


def test_results_under_other_settings_do_not_come_into_one_file(tmp_path: Path) -> None:
    with results_at(tmp_path / "results.jsonl") as results:
        results.add(a_result(3))
        with pytest.raises(ConfigurationError, match=r"num_samples = 2, now it is 4"):
            results.add(a_result(4, num_samples=4))
        results.add(a_result(5))


def test_one_process_at_a_time_adds_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with (
        results_at(path),
        pytest.raises(ConfigurationError, match=r"another process writes .*results\.jsonl"),
        results_at(path),
    ):
        pass


def test_a_disk_that_takes_half_a_line_is_an_error_and_the_next_process_cuts_the_half_away(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with results_at(path) as results:
        results.add(a_result(3))
        whole = path.read_bytes()
        with room_for(len(whole) + 20), pytest.raises(MachineError, match=r"results\.jsonl"):
            results.add(a_result(5))
    with results_at(path) as results:
        assert results.last_version == 3
    assert path.read_bytes() == whole
