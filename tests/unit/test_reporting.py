"""What a step and each entry report of groups, and what a trainer exports of its run."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from prometheus_client import REGISTRY

from rollstream.history.milestones import Milestones
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.ledger import MOST_REWARD_COMPONENTS, EntryKind
from rollstream.schemas.rollout import FinishReason, Status
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import PROMPTS, SCORED
from rollstream.trainer import metrics
from rollstream.trainer.intake.admission import AdmissionRules, Admitted, admit
from rollstream.trainer.intake.aging import Upstream
from rollstream.trainer.intake.groups import DroppedGroup, DropReason, Group, LogPlace, PlacedSample
from rollstream.trainer.intake.upstream import export_own_lag
from rollstream.trainer.reporting import StepClock, metrics_of_drops, metrics_of_step
from rollstream.trainer.since_step import SampleSums, SinceStep
from rollstream.training.learning.step_metrics import StepReport
from tests.harness.builders import NOON, a_failure, a_group, a_prompt, a_rollout, a_scoring, a_served, a_turn, an_entry
from tests.harness.running import run_on

RULES = AdmissionRules(max_policy_lag=4, train_without_spread=True)
REPORT = StepReport(
    loss=0.5,
    grad_norm=1.0,
    num_updates=1,
    skipped=False,
    metrics={"trained_tokens": 24.0},
    seconds={"packing": 0.125, "forward_backward": 0.5, "optimizer": 0.25},
)


def a_group_of(samples: Sequence[RolloutScored]) -> Group:
    group = Group(group_id=samples[0].rollout.group_id, content_hash="", group_size=len(samples))
    for offset, scored in enumerate(samples):
        place = LogPlace(("demo.scored", 0), offset)
        group.samples[scored.rollout.sample_index] = PlacedSample(scored=scored, place=place, num_bytes=100)
    return group


def trained(row: int, *rewards: float) -> Admitted:
    group = a_group_of(a_group(rewards, prompt=a_prompt(row, group_size=len(rewards))))
    found = admit(group, RULES, lambda version: 0)
    assert isinstance(found, Admitted)
    return found


def dropped(row: int, *rewards: float, reason: DropReason = DropReason.NO_SPREAD) -> DroppedGroup:
    return DroppedGroup(
        group=a_group_of(a_group(rewards, prompt=a_prompt(row, group_size=len(rewards)))), reason=reason
    )


def sums_of(*samples: RolloutScored) -> dict[str, float]:
    sums = SampleSums()
    sums.add(samples)
    return sums.metrics()


def test_samples_without_a_reward_are_left_out() -> None:
    found = sums_of(a_rollout(1.0, 0), a_rollout(0.0, 1), a_rollout(None, 2))
    assert found["reward_mean"] == 0.5
    assert found["reward_std"] == 0.5
    assert found["completion_tokens_mean"] == found["completion_tokens_max"] == 6.0
    assert found["reward_component/exact_match"] == 0.5
    assert sums_of(a_rollout(None, 0)) == sums_of() == {}


def test_lengths_and_cut_off_samples_are_shares_of_the_completed_ones() -> None:
    cut_off = a_rollout(0.0, 1, turns=(a_turn((4, 5), finish_reason=FinishReason.LENGTH),))
    found = sums_of(a_rollout(1.0, 0), cut_off, a_rollout(None, 2), a_rollout(0.0, 3))
    assert found["truncated_ratio"] == pytest.approx(1 / 3)
    assert found["completion_tokens_mean"] == pytest.approx(14 / 3)


def test_rewards_that_are_all_the_same_have_no_deviation() -> None:
    assert sums_of(*(a_rollout(0.1) for _ in range(7)))["reward_std"] == 0.0


def test_a_component_that_few_samples_have_is_a_mean_over_those() -> None:
    named = a_rollout(1.0, 0, scoring=a_scoring(1.0, components={"format": 0.5, "exact_match": 1.0}))
    found = sums_of(named, a_rollout(0.0, 1))
    assert (found["reward_component/format"], found["reward_component/exact_match"]) == (0.5, 0.5)


def test_names_of_strangers_do_not_become_series_without_bound() -> None:
    strange = (a_rollout(scoring=a_scoring(components={f"c{number}": 1.0})) for number in range(100))
    assert sum(name.startswith("reward_component/") for name in sums_of(*strange)) == 64


def test_a_step_reports_the_groups_that_were_dropped_between_the_steps_too() -> None:
    since = SinceStep()
    # Four groups are all right. They were closed by entries of their own, before the step was due.
    since.add_drops([dropped(row, 1.0, 1.0, 1.0, 1.0) for row in range(4)])
    own = dropped(9, 0.0, 0.0, 0.0, 0.0)
    since.add_drops([own])
    batch = [trained(row, 0.0, 0.0, 0.0, 1.0) for row in (4, 5)]
    since.add_trained(batch)
    found = metrics_of_step(batch, [own], since, REPORT, StepClock())
    # Over the groups of its own entry it would be 2 / 12.
    assert found["reward_mean"] == pytest.approx((16 + 2) / 28)
    assert found["zero_std_ratio"] == found["dropped_ratio"] == pytest.approx(5 / 7)
    assert found["generated_tokens_per_second"] * found["step_seconds"] == pytest.approx(28 * 6)


def test_the_forward_pass_of_a_reference_model_is_a_part_of_the_steps_time() -> None:
    found = metrics_of_step([trained(0, 0.0, 1.0)], [], SinceStep(), REPORT, StepClock(preparing_seconds=2.0))
    phases = ("packing_seconds", "forward_backward_seconds", "optimizer_seconds")
    assert [found[phase] for phase in phases] == [0.125, 2.5, 0.25]


def unresolved(index: int, code: FailureCode, **fields: Any) -> RolloutScored:
    return a_rollout(None, index, status=Status.UNRESOLVED, failure=a_failure("why", code), **fields)


def test_samples_that_are_missing_from_a_group_that_trains_show_with_their_failure() -> None:
    """Of 3 right, 1 wrong and 4 that were not scored the four train at +0.25 and -0.75, as if there were no others."""
    prompt = a_prompt(0, group_size=8)
    there = [a_rollout(reward, index, prompt=prompt) for index, reward in enumerate((1.0, 1.0, 1.0, 0.0))]
    codes = {4: FailureCode.TIMEOUT, 5: FailureCode.TIMEOUT, 6: FailureCode.TIMEOUT, 7: FailureCode.ENGINE}
    missing = [unresolved(index, code, prompt=prompt) for index, code in codes.items()]
    found = admit(a_group_of([*there, *missing]), RULES, lambda version: 0)
    assert isinstance(found, Admitted)
    assert [sample.advantage for sample in found.training] == [0.25, 0.25, 0.25, -0.75]
    since = SinceStep()
    since.add_trained([found])
    step = metrics_of_step([found], [], since, REPORT, StepClock())
    assert shares(step) == {"missing_ratio": 0.5, "missing_ratio/timeout": 0.375, "missing_ratio/engine": 0.125}


def shares(step: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in step.items() if name.startswith("missing_ratio")}


def test_missing_samples_of_dropped_groups_count_too_and_those_that_never_came() -> None:
    prompt = a_prompt(0, group_size=4)
    half = a_group_of([a_rollout(1.0, 0, prompt=prompt), unresolved(1, FailureCode.CRASH, prompt=prompt)])
    half.group_size = 4
    assert shares(metrics_of_drops([DroppedGroup(group=half, reason=DropReason.LOST)])) == {
        "missing_ratio": 0.75, "missing_ratio/crash": 0.25, "missing_ratio/lost": 0.5,
    }  # fmt: skip
    assert shares(metrics_of_drops([DroppedGroup(group=half, reason=DropReason.NOT_FOR_TRAINING)])) == {
        "missing_ratio": 0.0
    }
    expected = Group(group_id="g", content_hash="", group_size=0)
    assert shares(metrics_of_drops([DroppedGroup(group=expected, reason=DropReason.EXPIRED)])) == {"missing_ratio": 0.0}


def test_counts_of_all_entries_add_up_to_the_run() -> None:
    early, own = dropped(0, 1.0, 1.0), dropped(1, 0.0, 0.0)
    since = SinceStep()
    since.add_drops([early, own])
    batch = [trained(2, 0.0, 1.0)]
    since.add_trained(batch)
    entries = [metrics_of_drops([early]), metrics_of_step(batch, [own], since, REPORT, StepClock())]
    assert sum(entry["generated_tokens"] for entry in entries) == 6 * 6
    assert [entry["groups_dropped"] for entry in entries] == [1.0, 1.0]
    assert [entry["groups_dropped/no_spread"] for entry in entries] == [1.0, 1.0]
    assert [entry["groups_trained"] for entry in entries] == [0.0, 1.0]


def test_an_entry_of_drops_reports_its_own_groups() -> None:
    found = metrics_of_drops([dropped(0, 1.0, 1.0), dropped(1, 0.0, 1.0, reason=DropReason.TOO_OLD)])
    assert found["reward_mean"] == 0.75
    assert (found["dropped_ratio"], found["zero_std_ratio"]) == (1.0, 0.5)


def test_a_group_that_trains_without_spread_counts_as_one_without_spread() -> None:
    since = SinceStep()
    since.add_trained([trained(0, 1.0, 1.0), trained(1, 0.0, 1.0)])
    assert (since.metrics()["zero_std_ratio"], since.metrics()["dropped_ratio"]) == (0.5, 0.0)


def test_a_step_reports_answers_to_clients_apart() -> None:
    prompts = [a_prompt(row, group_size=1) for row in (1, 2)]
    served = [
        a_rollout(reward, prompt=prompt, served=a_served(), turns=(a_turn(spans=[(version, 0, 6)]),))
        for prompt, reward, version in zip(prompts, (1.0, -0.5), (1, 2), strict=True)
    ]
    lags = {1: 40, 2: 20, 3: 1}
    rules = replace(RULES, max_served_lag=50)
    asked = a_group_of(a_group((0.0, 1.0), prompt=a_prompt(0, group_size=2)))
    batch = [admit(group, rules, lags.get) for group in (asked, *(a_group_of([one]) for one in served))]
    admitted = [one for one in batch if isinstance(one, Admitted)]
    found = metrics_of_step(admitted, [], SinceStep(), REPORT, StepClock())
    names = ("served_ratio", "served_policy_lag_mean", "served_policy_lag_max", "ones_reward_mean")
    assert [found[name] for name in names] == [0.5, 30.0, 40.0, 0.25]
    assert (found["policy_lag_mean"], found["policy_lag_max"]) == (1.0, 1.0)
    without = metrics_of_step(admitted[:1], [], SinceStep(), REPORT, StepClock())
    assert [name for name in names if name in without] == ["served_ratio"]
    alone = metrics_of_step(admitted[1:], [], SinceStep(), REPORT, StepClock())
    assert (alone["served_ratio"], alone["policy_lag_mean"], alone["policy_lag_max"]) == (1.0, 0.0, 0.0)


def test_how_long_answers_to_clients_took_says_nothing_of_the_lag_bound() -> None:
    assert "rollout_seconds_p99" not in sums_of(a_rollout(served=a_served()))
    slow = {"started_at": NOON, "finished_at": NOON + timedelta(hours=1)}
    assert sums_of(a_rollout(), a_rollout(1.0, 1, served=a_served(), **slow))["rollout_seconds_p99"] == 1.0


def test_prompts_that_are_not_for_training_change_no_share() -> None:
    empty = Group(group_id="g", content_hash="", group_size=2)
    since = SinceStep()
    since.add_trained([trained(0, 0.0, 1.0)])
    since.add_drops([DroppedGroup(group=empty, reason=DropReason.NOT_FOR_TRAINING)])
    assert (since.metrics()["zero_std_ratio"], since.metrics()["dropped_ratio"]) == (0.0, 0.0)


def exported(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"rollstream_trainer_{name}", labels) or 0.0


def interruptions() -> tuple[float, float]:
    restarts, rollbacks = (exported("interruptions_total", kind=kind) for kind in ("restart", "rollback"))
    return restarts, rollbacks


def test_entries_are_counted_and_the_newest_step_and_checkpoint_are_kept() -> None:
    entries = (
        an_entry(EntryKind.RESTART, weight_version=0, parent_version=None, step=0),
        an_entry(EntryKind.STEP, finished_at=NOON, checkpoint="file:///c/1-ab"),
        an_entry(EntryKind.STEP, finished_at=NOON + timedelta(minutes=1)),
        an_entry(EntryKind.DROPS, finished_at=NOON + timedelta(minutes=2)),
        an_entry(EntryKind.ROLLBACK, finished_at=NOON + timedelta(minutes=3)),
        an_entry(EntryKind.RESTART, finished_at=NOON + timedelta(minutes=4)),
    )
    found = Milestones()
    for entry in entries:
        found = found.after(entry)
    assert found == Milestones(
        restarts=2, rollbacks=1, last_step_at=NOON + timedelta(minutes=1), last_checkpoint_at=NOON
    )


def test_a_trainer_goes_on_from_what_the_ledger_held_before_it() -> None:
    restarts, rollbacks = interruptions()
    metrics.begin(Milestones(restarts=7, rollbacks=2, last_step_at=NOON, last_checkpoint_at=None))
    assert interruptions() == (restarts + 7, rollbacks + 2)
    assert exported("last_step_timestamp_seconds") == NOON.timestamp()
    assert exported("last_checkpoint_timestamp_seconds") == 0
    metrics.export(an_entry(EntryKind.RESTART))
    assert interruptions() == (restarts + 8, rollbacks + 2)


def test_a_step_sets_its_time_and_that_of_its_checkpoint() -> None:
    later, latest = NOON + timedelta(hours=1), NOON + timedelta(hours=2)
    metrics.export(an_entry(finished_at=later, checkpoint="file:///c/1-ab"))
    metrics.export(an_entry(finished_at=latest))
    assert exported("last_step_timestamp_seconds") == latest.timestamp()
    assert exported("last_checkpoint_timestamp_seconds") == later.timestamp()
    metrics.export(an_entry(EntryKind.DROPS, finished_at=latest + timedelta(hours=1)))
    assert exported("last_step_timestamp_seconds") == latest.timestamp()


def test_before_the_ledger_is_read_no_count_of_interruptions_is_exported() -> None:
    # A count of 0 first would make all of them look new. In a process of its own, since tests before this one count.
    code = (
        "from prometheus_client import generate_latest; from rollstream.trainer import metrics;"
        "from rollstream.history.milestones import Milestones; print('interruptions_total{' in str(generate_latest()));"
        "metrics.begin(Milestones()); print(str(generate_latest()).count('interruptions_total{'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "2"]


def test_the_trainers_lag_is_what_lies_behind_its_commits_and_grows_while_it_does_nothing() -> None:
    run = run_on(KafkaSettings(), "lagging")
    prompts, scored = run.topic(PROMPTS), run.topic(SCORED)
    ends = [Upstream()]
    committed = {(prompts, 0): 4, (prompts, 1): 9, (scored, 0): 30}
    export_own_lag("lagging.trainer", run, lambda: ends[-1], lambda: committed)

    def lag(topic: str) -> float | None:
        labels = {"group": "lagging.trainer", "topic": topic}
        return REGISTRY.get_sample_value("rollstream_bus_consumer_lag_records", labels)

    assert (lag(prompts), lag(scored)) == (0, 0), "nothing is known yet"
    # A partition end may be older than the commit.
    ends.append(Upstream(prompts_end={0: 5, 1: 8}, scored_end={0: 30, 1: 2}))
    assert (lag(prompts), lag(scored)) == (1, 2)
    ends.append(Upstream(prompts_end={0: 50, 1: 9}, scored_end={0: 100, 1: 2}))
    assert (lag(prompts), lag(scored)) == (46, 72)


def test_names_of_reward_functions_do_not_become_series_without_bound() -> None:
    for number in range(100):
        metrics.export(an_entry(metrics={f"reward_component/of_step_{number}": 0.5}))
    (family,) = metrics.REWARD_COMPONENT.collect()
    assert len(family.samples) == MOST_REWARD_COMPONENTS


def test_missing_samples_are_exported_by_their_failure_until_a_step_has_none() -> None:
    def share(code: str) -> float | None:
        return REGISTRY.get_sample_value("rollstream_trainer_missing_ratio", {"code": code})

    metrics.export(
        an_entry(metrics={"missing_ratio": 0.5, "missing_ratio/timeout": 0.5, "missing_ratio/of a stranger": 1.0})
    )
    assert (share("timeout"), share("lost"), share("of a stranger")) == (0.5, 0.0, None)
    metrics.export(an_entry(metrics={"missing_ratio": 0.0}))
    assert share("timeout") == 0.0


def test_a_module_of_the_library_does_not_stand_in_for_the_stages_of_the_same_name() -> None:
    import_module("rollstream.training.metrics")
    with pytest.raises(AttributeError, match="metrics"):
        import_module("rollstream.trainer").__getattr__("metrics")
