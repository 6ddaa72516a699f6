"""Streams of the Reasoning Cache actor through the commands: what they asked is asked again, and answers scored."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from rollstream.cli.main import cli
from rollstream.process.stop import Stop
from rollstream.rc_actor.file_streams import path_of
from rollstream.rc_actor.lines import SingleStreamSpec
from rollstream.schemas.prompt import AgentChoice
from tests.harness.archiving import write_archive
from tests.harness.builders import a_prompt, a_rollout
from tests.harness.collecting import a_job, lines_of
from tests.harness.cycles import TEMPLATES, cycle_turns
from tests.harness.scoring import analyzed, put_own_rewards

STARTS = ["P:52910= S:", "P:52910= S:s1"]
"""What two cycles asked for reasoning."""


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    """The file of a group of one sample in two cycles, which the exporter wrote."""
    asked = a_prompt(group_size=1, agent=AgentChoice(name="reasoning_cache", options=TEMPLATES))
    archive = write_archive(tmp_path / "archive", [a_rollout(prompt=asked, turns=cycle_turns(2))])
    found = CliRunner().invoke(cli, ["rc-streams", str(archive), "--output-dir", str(tmp_path)])
    assert found.output == f"{tmp_path}: 1 groups with 4 texts\n", found.output
    return path_of(SingleStreamSpec(tmp_path, "rc_actor"), 0)


def test_collect_asks_what_the_cycles_started_from(stream: Path, tmp_path: Path) -> None:
    said: list[str] = []
    report = a_job(str(stream), output=tmp_path / "out.jsonl", num_samples=2).run(Stop(), said.append)
    rows = lines_of(tmp_path / "out.jsonl")
    assert [row["prompt"] for row in rows] == [start for start in STARTS for _ in range(2)]
    assert report.exit_code == 0, said


def test_analyze_rewards_scores_the_reasoning_and_no_summary(
    stream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = put_own_rewards(tmp_path / "code", monkeypatch)
    analyzed(stream, "--reward_fn", "custom", f"{own}.brevity")
    found = lines_of(stream.with_name("0_with_rewards.jsonl"))
    assert [(row["completion"], row["reward"]) for row in found] == [("r1", -2.0), ("r2", -2.0)]
