"""Stored rollouts are verified again (row G16)."""

from pathlib import Path

import pytest

from rollstream.gym.options import ReverifyOptions, from_words
from rollstream.gym.reverify import reverify
from rollstream.process.stop import Stop
from rollstream.schemas.errors import ConfigurationError
from tests.harness.gym_runs import GymRun, a_gym_row, read, written
from tests.harness.gym_server import GymServer, Row, gym_server


def verified_again(run: GymRun, *words: str) -> list[Row]:
    output = run.output.with_name("again.jsonl")
    files = [f"+rollouts_jsonl_fpath={run.output}", f"+output_jsonl_fpath={output}"]
    place = ["+resources_server_name=counter", f"+head_server.port={run.server.port}"]
    assert reverify(from_words(ReverifyOptions, [*files, *place, *words]), Stop(), print) == 0
    return read(output.with_name("unsafe_again.jsonl") if "+force=true" in words else output)


def collected(tmp_path: Path, server: GymServer) -> GymRun:
    run = GymRun(tmp_path, server, [a_gym_row(0), a_gym_row(1, says="no")])
    assert run.run() == 0
    return run


def test_g16_another_grading_changes_the_rewards_without_a_model_call(tmp_path: Path) -> None:
    with gym_server() as server:
        run = collected(tmp_path, server)
        again = verified_again(run)
    assert [row["reward"] for row in run.rollouts] == [1.0, 0.0]
    assert [(row["reward"], row["success"]) for row in again] == [(0.0, False), (1.0, True)]
    assert [row["metadata"]["verification_score"] for row in again] == [0.0, 1.0]
    assert [row["response"] for row in again] == [row["response"] for row in run.rollouts]
    assert len(server.asked) == 2
    assert [name for row in server.verified for name in ("reward", "success", "output") if name in row] == []


@pytest.mark.parametrize("mode", ["unsupported", "unknown", "something else"])
def test_g16_a_server_that_needs_its_sessions_is_refused_and_force_names_the_output_unsafe(
    tmp_path: Path, mode: str
) -> None:
    with gym_server(reverify_mode=mode) as server:
        run = collected(tmp_path, server)
        with pytest.raises(ConfigurationError, match=f"/reverify_mode is '{mode}', not 'stateless'"):
            verified_again(run)
        assert server.verified == []
        assert [row["reward"] for row in verified_again(run, "+force=true")] == [0.0, 1.0]
    assert not run.output.with_name("again.jsonl").exists()


def test_g16_only_rollouts_without_a_reward_are_asked_when_only_the_judge_failed(tmp_path: Path) -> None:
    with gym_server() as server:
        run = collected(tmp_path, server)
        first, second = run.rollouts
        written(run.output, [first, {**second, "reward": None, "success": None}])
        again = verified_again(run, "+judge_failed_only=true")
    assert [row["reward"] for row in again] == [1.0, 1.0]
    assert [row["expected_answer"] for row in server.verified] == ["1"]


def test_g16_a_file_that_holds_no_rollouts_is_refused(tmp_path: Path) -> None:
    with gym_server() as server:
        run = collected(tmp_path, server)
        written(run.output, [{**run.rollouts[0], "response": None}])
        with pytest.raises(ConfigurationError, match=r"line 1: no responses_create_params and response\.output"):
            verified_again(run)
