"""Statistics of rewards equal numpy's, the block that people read, and the figures that a run ends with."""

import json
import math
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollstream.local.demo.facts import RunFacts, SampleFact
from rollstream.local.demo.summary import Measured, RunSummary, summarize
from rollstream.offline.statistics import (
    MAX_NAMES,
    OTHERS,
    Reasons,
    RewardStatistics,
    StatisticsBySource,
    example_lines,
    shown_text,
    summarized,
)
from rollstream.rows.open import open_rows
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome, LedgerEntry, TrainedRollout
from tests.harness.builders import NOON, an_entry


def of(*rewards: object) -> RewardStatistics:
    found = RewardStatistics()
    for reward in rewards:
        found.add(reward)
    return found


def a_file(path: Path, rewards: list[float | None]) -> Path:
    path.write_text(
        "".join(json.dumps({"prompt": f"row {row}", "reward": one}) + "\n" for row, one in enumerate(rewards))
    )
    return path


@pytest.mark.parametrize(
    ("numbers", "mean", "std"),
    [
        ((1.0, 0.0, 0.0, 1.0), 0.5, 0.5),
        ((0.1, 0.1, 0.1), 0.1, 0.0),
        ((-1.0, 1.0, 1.0, 1.0), 0.5, math.sqrt(0.75)),
        ((2.0,), 2.0, 0.0),
        # Large ones that differ little keep their standard deviation.
        ((1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16), 1e9 + 10, math.sqrt(22.5)),
    ],
)
def test_golden_means_and_population_deviations(numbers: tuple[float, ...], mean: float, std: float) -> None:
    found = of(*numbers)
    assert found.num == len(numbers)
    assert found.plain() == {
        "mean": mean, "std": pytest.approx(std, rel=1e-9, abs=1e-15), "min": min(numbers), "max": max(numbers)
    }  # fmt: skip


def test_they_equal_numpys_also_far_from_0() -> None:
    numbers = np.random.default_rng(5).normal(1e8, 3.0, size=20_000)
    found = of(*numbers.tolist())
    assert found.mean == pytest.approx(float(numbers.mean()), rel=1e-14)
    assert found.std == pytest.approx(float(numbers.std()), rel=1e-9)


def test_without_rewards_nothing_is_known() -> None:
    assert math.isnan(of(None).mean)
    assert math.isnan(of(None).std)
    assert of(None).plain() == dict.fromkeys(("mean", "std", "min", "max"))


@pytest.mark.parametrize(
    "reward", [None, "1.3", True, math.nan, math.inf, [1.0], 10**400, -(10**400), 1e200], ids=lambda one: str(one)[:9]
)
def test_what_is_no_finite_number_is_no_reward(reward: object) -> None:
    found = of(reward)
    assert (found.num, found.num_without) == (0, 1)
    assert found.lines() == ["   No row has a reward (1 rows)"]


def test_the_block_of_a_file_equals_numpys_numbers(tmp_path: Path) -> None:
    chooser = random.Random(7)
    rewards = [chooser.choice([1.3, 0.3, 0.25, 0.22, 0.2, 0.0]) for _ in range(5000)]
    found = summarized(open_rows(a_file(tmp_path / "rollouts.jsonl", [*rewards, None]))).rewards
    assert found.mean == pytest.approx(np.mean(rewards), rel=1e-12)
    assert found.std == pytest.approx(np.std(rewards), rel=1e-12)
    assert (found.lowest, found.highest, found.num, found.num_without) == (0.0, 1.3, 5000, 1)


def test_the_block_says_that_the_standard_deviation_is_the_populations() -> None:
    # The mean is 0.713. The squares of the differences add up to 1.414228: the population's is sqrt(0.353557).
    assert of(1.3, 0.25, 1.302, 0.0).lines() == [
        "   Reward mean: 0.713",
        "   Reward std: 0.595 (population)",
        "   Min: 0.000",
        "   Max: 1.302",
    ]


def test_the_example_is_the_first_row_with_a_reward_and_the_lowest_the_first_of_the_least(tmp_path: Path) -> None:
    summary = summarized(open_rows(a_file(tmp_path / "rollouts.jsonl", [None, 0.3, 1.3, 0.2, 0.2])))
    assert summary.example is not None
    assert summary.lowest is not None
    assert (summary.example["prompt"], summary.lowest["prompt"]) == ("row 1", "row 3")


def test_a_bad_line_counts_as_a_row_without_a_reward(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text('{"reward": 1.3}\n{"reward":\n')
    assert summarized(open_rows(path)).rewards.num_without == 1


def test_an_example_is_shown_on_single_lines_without_control_characters() -> None:
    row = {
        "prompt": [
            {"role": "system", "content": "Count."},
            {"role": "user", "content": "Count the number of words in the following text:\n\n" + "word " * 45},
        ],
        "completion": [{"role": "assistant", "content": "<word_count>\n45\n</word_count>\x1b[31m"}],
        "reward": 1.3,
    }
    assert example_lines(row) == [
        "   Prompt: Count the number of words in the following text: word word word word wor...",
        "   Completion: <word_count> 45 </word_count>\\x1b[31m",
        "   Reward: 1.30",
    ]
    assert shown_text("one\ntwo") == "one two"
    assert example_lines({"prompt": "2+2=", "response": "4", "reward": 1})[1] == "   Completion: 4"


def test_sources_are_told_apart_and_rows_without_a_reward_count_in_no_mean() -> None:
    statistics = StatisticsBySource()
    for reward, passed in ((1.0, True), (-1.0, False), (None, None), (-1.0, None)):
        statistics.add("math_dapo", reward, passed)
    statistics.add("openai/gsm8k", None, None)
    dapo, gsm8k = statistics.sources["math_dapo"], statistics.sources["openai/gsm8k"]
    assert dapo.plain() == {
        "num_scored": 3,
        "num_unscored": 1,
        "mean": pytest.approx(-1 / 3),
        "std": pytest.approx(math.sqrt(8) / 3),
        "min": -1.0,
        "max": 1.0,
        "pass_rate": 0.5,
    }
    assert gsm8k.plain() == {
        "num_scored": 0, "num_unscored": 1, "mean": None, "std": None, "min": None, "max": None, "pass_rate": None
    }  # fmt: skip


def test_a_file_with_any_number_of_sources_and_reasons_takes_bounded_memory() -> None:
    statistics, reasons = StatisticsBySource(), Reasons()
    for number in range(MAX_NAMES + 7):
        statistics.add(f"source {number}", 1.0, True)
        reasons.add(f"reason_{number}: why", "row 1")
    assert len(statistics.sources) == len(reasons.counts) == MAX_NAMES + 1
    assert statistics.sources[OTHERS].rewards.num == reasons.counts[OTHERS] == 7


def test_a_source_with_a_name_as_long_as_a_row_is_one_of_the_others() -> None:
    statistics = StatisticsBySource()
    statistics.add("s" * 300, 1.0, True)
    statistics.add("t" * 301, 0.5, True)
    assert {name: one.rewards.mean for name, one in statistics.sources.items()} == {"s" * 300: 1.0, OTHERS: 0.5}


def test_reasons_are_counted_by_their_first_word_with_an_example() -> None:
    reasons = Reasons()
    reasons.add("timeout: took longer than 5 s", "row 3")
    reasons.add("timeout: took longer than 6 s", "row 4")
    reasons.add("something that a file had there", "row 5")
    assert reasons.total == 3
    assert reasons.lines() == [
        "2 x timeout, e.g. row 3: timeout: took longer than 5 s",
        "1 x other, e.g. row 5: something that a file had there",
    ]


MEASURED = Measured(seed=1, learning_rate=1e-4, eval_before=0.4, eval_after=0.8, eval_prompts=512)


def a_sample(group: str, index: int, reward: float | None, versions: tuple[int, ...], offset: int) -> SampleFact:
    return SampleFact(
        rollout_id=f"{group}-{index}",
        attempt_id="a",
        group_id=group,
        group_size=2,
        reward=reward,
        num_tokens=10,
        weight_versions=versions,
        lies_at=(0, offset),
    )


def a_step(step: int, group: str, offsets: tuple[int, int], **fields: object) -> LedgerEntry:
    trained = tuple(
        TrainedRollout(rollout_id=f"{group}-{index}", attempt_id="a", partition=0, offset=offset)
        for index, offset in enumerate(offsets)
    )
    closed = (ClosedGroup(group_id=group, outcome=GroupOutcome.TRAINED),)
    values = {"weight_version": step, "parent_version": step - 1, **fields}
    return an_entry(
        step=step, trained=trained, closed=closed, finished_at=NOON + timedelta(seconds=10 * step), **values
    )


def dropped(step: int, group: str, reason: str) -> LedgerEntry:
    closed = (ClosedGroup(group_id=group, outcome=GroupOutcome.DROPPED, reason=reason),)
    return an_entry(EntryKind.DROPS, step=step, weight_version=step, closed=closed)


START = an_entry(EntryKind.RESTART, step=0, weight_version=0, parent_version=None)


def summary_of(groups: str, ledger: tuple[LedgerEntry, ...], *samples: SampleFact, **fields: Any) -> RunSummary:
    facts = {"submitted": frozenset(groups), "started_at": NOON, "samples": samples, "ledger": (START, *ledger)}
    counts = {"published": frozenset(range(3)), "applied": frozenset({0, 2}), "dead_letters": 3}
    return summarize(RunFacts(**{**facts, **counts, **fields}), MEASURED)


def test_the_figures_of_two_steps_two_drops_and_a_group_in_flight_that_lacks_a_sample() -> None:
    summary = summary_of(
        "abcde",
        (dropped(0, "b", "no_spread"), a_step(1, "a", (0, 1)), dropped(1, "d", "too_old"), a_step(2, "c", (4, 5))),
        a_sample("a", 0, 1.0, (0,), 0),
        a_sample("a", 1, 0.0, (0,), 1),
        a_sample("b", 0, 0.5, (0,), 2),
        a_sample("b", 1, 0.5, (0,), 3),
        a_sample("c", 0, 1.0, (0, 1), 4),
        a_sample("c", 1, 0.0, (1,), 5),
        a_sample("d", 0, 1.0, (1,), 6),
        a_sample("d", 1, 1.0, (1,), 7),
        a_sample("d", 1, 1.0, (1,), 8),
        a_sample("e", 0, None, (), 9),
    )
    assert (summary.groups_submitted, summary.groups_trained, summary.groups_in_flight) == (5, 2, 1)
    assert summary.groups_dropped == {"no_spread": 1, "too_old": 1}
    assert summary.groups_lost == 1, "the one in flight lacks a sample"
    # Means over every sample of the first and of the last steps, drops included.
    assert summary.reward_first == (1.0 + 0.0 + 0.5 + 0.5) / 4
    assert summary.reward_last == (1.0 + 0.0 + 1.0 + 1.0) / 4
    # Steps between the oldest version of a sample and the one that its step started from.
    assert (summary.policy_lag_max, summary.policy_lag_mean) == (1, 0.25)
    assert (summary.weight_versions_published, summary.weight_versions_applied) == (3, 2)
    assert (summary.rollouts_with_two_versions, summary.duplicate_records, summary.dead_letters) == (1, 1, 3)
    assert (summary.loop_seconds, summary.tokens_per_second, summary.steps_per_minute) == (20.0, 5.0, 6.0)


def test_lag_across_a_restart_counts_the_steps_that_were_cut() -> None:
    restart = an_entry(EntryKind.RESTART, step=0, weight_version=3, parent_version=0)
    last = a_step(1, "c", (1, 2), weight_version=4, parent_version=3)
    samples = (a_sample("a", 0, 1.0, (0,), 0), a_sample("c", 0, 1.0, (0, 2), 1), a_sample("c", 1, 1.0, (0,), 2))
    summary = summary_of("ac", (a_step(1, "a", (0, 0)), a_step(2, "a", (0, 0)), restart, last), *samples)
    assert summary.policy_lag_max == 2


def test_a_rollout_in_two_surviving_steps_is_reported() -> None:
    samples = (a_sample("a", 0, 1.0, (0,), 0), a_sample("a", 1, 0.0, (0,), 1))
    summary = summary_of("a", (a_step(1, "a", (0, 1)), a_step(2, "a", (0, 1))), *samples)
    assert summary.rollouts_trained_twice == 2


def test_a_run_without_a_step_has_no_rates() -> None:
    summary = summary_of("", (), started_at=None)
    assert math.isnan(summary.steps_per_minute)
    assert summary.steps == 0
