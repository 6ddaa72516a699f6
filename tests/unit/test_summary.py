"""The figures that a run ends with, from hand-made facts."""

import math
from datetime import timedelta
from typing import Any

from rollstream.local.demo.facts import RunFacts, SampleFact
from rollstream.local.demo.summary import Measured, RunSummary, summarize
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome, LedgerEntry, TrainedRollout
from tests.harness.builders import NOON, an_entry

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
