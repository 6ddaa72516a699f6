"""Aggregates, profiles and advice over files of rollouts (rows G8, G11, G12, G17, G18, G25)."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

from rollstream.gym.options import AggregateOptions, ProfileOptions, from_words
from rollstream.gym.pass_figures import pass_figures
from rollstream.gym.profile import aggregate_rollouts, profile_rewards
from rollstream.schemas.errors import ConfigurationError
from tests.harness.gym_runs import GymRun, a_gym_row, indices, read, written
from tests.harness.gym_server import AGENT, Row, a_response, graded, gym_server

# Three tasks of four rollouts: all right, all wrong, half.
DOCUMENTED = [[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0]]


def a_rollout_row(task: int, rollout: int, reward: float | None, **fields: Any) -> Row:
    stamps = {"_ng_task_index": task, "_ng_rollout_index": rollout, "agent_ref": {"name": AGENT}}
    return {**a_gym_row(task), "response": a_response("x"), "reward": reward, **stamps, **fields}


def rollout_rows(rewards: Sequence[Sequence[float]], **fields: Any) -> list[Row]:
    return [
        a_rollout_row(task, rollout, reward, **fields)
        for task, found in enumerate(rewards)
        for rollout, reward in enumerate(found)
    ]


def aggregated(pattern: Path, output: Path) -> list[Row]:
    aggregate_rollouts(from_words(AggregateOptions, [f"+input_glob={pattern}", f"+output_jsonl_fpath={output}"]), print)
    found: list[Row] = json.loads(output.with_name(f"{output.stem}_aggregate_metrics.json").read_text())
    return found


def test_g11_the_documented_case_has_its_mean_and_its_standard_deviations(tmp_path: Path) -> None:
    written(tmp_path / "shard.jsonl", rollout_rows(DOCUMENTED))
    [agent] = aggregated(tmp_path / "*.jsonl", tmp_path / "out" / "all.jsonl")
    metrics = agent["agent_metrics"]
    assert (agent["num_tasks"], agent["num_rollouts"], metrics["mean/reward"]) == (3, 12, 0.5)
    assert metrics["std/reward"] == pytest.approx(0.522, abs=5e-4)
    assert (metrics["max/reward"], metrics["min/reward"], metrics["median/reward"]) == (1.0, 0.0, 0.5)
    spreads = [task["std/reward"] for task in agent["group_level_metrics"]]
    assert spreads == [0.0, 0.0, pytest.approx(0.577, abs=5e-4)]


def test_g8_every_numeric_field_and_component_is_aggregated_and_text_and_null_are_not(tmp_path: Path) -> None:
    rows = [
        a_rollout_row(0, 0, 1.0, accuracy=0.5, seen=True, judge="good", reward_components={"format": 0.25}),
        a_rollout_row(0, 1, None, accuracy=None, seen=False, judge=None, reward_components={"format": 0.75}),
    ]
    written(tmp_path / "shard.jsonl", rows)
    [agent] = aggregated(tmp_path / "shard.jsonl", tmp_path / "all.jsonl")
    means = {name: value for name, value in agent["agent_metrics"].items() if name.startswith("mean/")}
    expected = {"mean/accuracy": 0.5, "mean/reward": 1.0, "mean/reward_components/format": 0.5, "mean/seen": 0.5}
    assert means == expected
    assert (agent["num_rollouts"], agent["agent_metrics"]["std/reward"]) == (2, None)


def test_g12_one_right_answer_of_four_is_25_50_and_100_percent() -> None:
    figures = pass_figures(lambda: [[(0.0, None), (1.0, None), (0.0, None), (0.0, None)]], has_answers=False)
    assert [figures[f"pass@{k}"] for k in (1, 2, 4)] == [25.0, 50.0, 100.0]
    assert [figures[f"pass@1[avg-of-{k}]"] for k in (1, 2, 4)] == [0.0, 50.0, 25.0]


def test_g12_rewards_between_0_and_1_take_the_best_of_the_first_k() -> None:
    tasks = [[(0.2, None), (0.6, None)], [(0.4, None), (0.1, None)]]
    figures = pass_figures(lambda: tasks, has_answers=False)
    assert (figures["pass@1"], figures["pass@2"]) == (pytest.approx(30.0), pytest.approx(50.0))
    runs = [100 * (0.2 + 0.4) / 2, 100 * (0.6 + 0.1) / 2]
    assert figures["pass@1[avg-of-2]/std_dev_across_runs"] == pytest.approx(stdev(runs))
    assert figures["pass@1[avg-of-2]/std_err_across_runs"] == pytest.approx(stdev(runs) / 2**0.5)


def test_g12_the_majority_is_that_of_the_answers_and_none_is_no_answer() -> None:
    tasks = [[(0.0, "a"), (1.0, "b"), (1.0, "b"), (0.0, None)], [(0.0, None)] * 4]
    figures = pass_figures(lambda: tasks, has_answers=True)
    assert [figures[f"majority@{k}"] for k in (1, 2, 4)] == [0.0, 0.0, 50.0]
    assert figures["no_answer"] == 100 * 5 / 8


def test_tasks_with_fewer_rollouts_bound_k() -> None:
    figures = pass_figures(lambda: [[(1.0, None)] * 3, [(0.0, None)] * 8], has_answers=False)
    assert [name for name in figures if name.startswith("pass@") and "[" not in name] == ["pass@1", "pass@2", "pass@3"]


def profiled(path: Path, *words: str) -> list[str]:
    said: list[str] = []
    profile_rewards(from_words(ProfileOptions, [f"+rollouts_jsonl_fpath={path}", *words]), said.append)
    return said


def test_g17_a_missing_rollout_is_named_and_with_the_flag_it_is_counted(tmp_path: Path) -> None:
    rows = rollout_rows(DOCUMENTED)
    path = written(tmp_path / "rollouts.jsonl", [row for row in rows if indices([row]) != [(2, 3)]])
    written(tmp_path / "rollouts_materialized_inputs.jsonl", rows)
    with pytest.raises(ConfigurationError, match=r"lacks 1 rollouts .* e\.g\. task 2 rollout 3"):
        profiled(path)
    profiled(path, "+allow_partial_rollouts=true")
    tasks = read(tmp_path / "rollouts_reward_profiling.jsonl")
    assert [(task["missing_num_rollouts"], task["completion_percent"]) for task in tasks] == [
        (0, 100.0), (0, 100.0), (1, 75.0)
    ]  # fmt: skip
    assert [task["mean/reward"] for task in tasks] == [1.0, 0.0, pytest.approx(2 / 3)]
    [agent] = json.loads((tmp_path / "rollouts_agent_metrics.json").read_text())
    assert agent["num_rollouts"] == 11


def test_g17_a_task_without_any_rollout_is_listed_with_0_percent(tmp_path: Path) -> None:
    path = written(tmp_path / "rollouts.jsonl", rollout_rows(DOCUMENTED[:2]))
    written(tmp_path / "rollouts_materialized_inputs.jsonl", rollout_rows(DOCUMENTED))
    profiled(path, "+allow_partial_rollouts=true")
    last = read(tmp_path / "rollouts_reward_profiling.jsonl")[-1]
    assert (last["_ng_task_index"], last["missing_num_rollouts"], last["completion_percent"]) == (2, 4, 0.0)


def test_g18_three_shards_have_the_metrics_of_a_single_run(tmp_path: Path) -> None:
    rows = [a_gym_row(n, _ng_task_index=n, says=str(n % 2)) for n in range(6)]
    with gym_server() as server:
        for shard in range(3):
            (tmp_path / f"shard-{shard}").mkdir()
            run = GymRun(tmp_path / f"shard-{shard}", server, rows[2 * shard : 2 * shard + 2])
            assert run.run("+num_repeats=2") == 0
        (tmp_path / "single").mkdir()
        single = GymRun(tmp_path / "single", server, rows)
        assert single.run("+num_repeats=2") == 0
    joined = aggregated(tmp_path / "shard-*" / "rollouts*.jsonl", tmp_path / "all.jsonl")
    [expected] = json.loads(single.beside("_aggregate_metrics.json").read_text())
    assert joined == [expected]
    assert indices(read(tmp_path / "all.jsonl")) == indices(single.rollouts)


def test_g18_a_rollout_in_two_shards_and_a_glob_without_files_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        written(tmp_path / f"{name}.jsonl", rollout_rows(DOCUMENTED[:1]))
    with pytest.raises(ConfigurationError, match="rollout 0 of task 0 of counter_simple_agent is there twice"):
        aggregated(tmp_path / "*.jsonl", tmp_path / "out.jsonl")
    with pytest.raises(ConfigurationError, match="no file of rollouts matches"):
        aggregated(tmp_path / "no-*.jsonl", tmp_path / "out.jsonl")


@pytest.mark.parametrize(
    "row", [{"reward": 1.0}, {"_ng_task_index": -1, "_ng_rollout_index": 0}, {"_ng_task_index": True}]
)
def test_a_file_that_is_none_of_rollouts_is_refused_with_its_line(tmp_path: Path, row: Row) -> None:
    written(tmp_path / "rows.jsonl", [row])
    with pytest.raises(ConfigurationError, match=r"rows\.jsonl line 1: no _ng_task_index"):
        aggregated(tmp_path / "rows.jsonl", tmp_path / "out.jsonl")


def test_g25_rare_success_wide_rewards_and_a_low_bound_are_told_with_their_figures(tmp_path: Path) -> None:
    def verdict(row: Row) -> Row:
        return {**graded(row), "reward": float(row["_ng_rollout_index"] == 0 and row["expected_answer"] == "0")}

    with gym_server(answer=verdict, seconds=0.1) as server:
        run = GymRun(tmp_path, server, [a_gym_row(n) for n in range(2)])
        assert run.run("+num_repeats=4", "+num_samples_in_parallel=1") == 0
    said = "\n".join(run.said)
    assert "success_rate is 0.12, below 0.3: simplify the tasks" in said
    assert "places were taken" in said
    assert "raise +num_samples_in_parallel" in said
    assert "rewards of the same task differ: their standard deviation is 0.25 on average" not in said


def test_g25_rewards_that_differ_are_told_and_good_ones_give_no_advice(tmp_path: Path) -> None:
    def verdict(row: Row) -> Row:
        return {**graded(row), "reward": float(row.get("always", row["_ng_rollout_index"] % 2 == 0))}

    with gym_server(answer=verdict) as server:
        run = GymRun(tmp_path, server, [a_gym_row(n) for n in range(2)])
        assert run.run("+num_repeats=4") == 0
        assert "rewards of the same task differ: their standard deviation is 0.58 on average" in "\n".join(run.said)
        (tmp_path / "good").mkdir()
        good = GymRun(tmp_path / "good", server, [a_gym_row(n, always=1) for n in range(2)])
        assert good.run("+num_repeats=4") == 0
    assert "of the same task differ" not in "\n".join(good.said)
    assert "below 0.3" not in "\n".join(good.said)
