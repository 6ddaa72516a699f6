"""`python -m tests.bench long-tail` at a small size: the whole loop runs, and every group that counts has closed."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.bench.long_tail import command


@pytest.mark.slow
def test_every_group_that_counts_is_closed_and_its_lengths_are_compared(tmp_path: Path) -> None:
    plot = tmp_path / "lengths.png"
    options = {
        "--steps": 4, "--groups-per-step": 4, "--group-size": 4, "--concurrency": 8, "--step-seconds": 0.5,
        "--max-policy-lag": 2, "--plot": plot,
    }  # fmt: skip
    ended = CliRunner().invoke(command, [str(word) for pair in options.items() for word in pair])
    assert ended.exit_code == 0, ended.output
    report = json.loads(ended.stdout)
    assert set(report["length_by"]) == {"sample", "prompt"}
    assert report["ratio"] == max(one["ratio"] for one in report["length_by"].values())
    for name, found in report["length_by"].items():
        assert found["num_steps"] == 4
        # A producer submits a group for each that closes.
        assert sum(found["groups"].values()) >= 8
        assert found["num_samples"] == 4 * sum(found["groups"].values())
        assert set(found["groups"]) <= {"trained", "too_old", "no_spread", "all_truncated"}
        assert 0 <= found["ratio"] <= 1
        assert 0 <= found["ks_distance"] < 1
        assert found["tokens_of_an_answer"]["generated"]["max"] <= 4096
        assert found["policy_lag"]["max"] <= 2
        assert plot.with_stem(f"lengths-{name}").stat().st_size > 0
