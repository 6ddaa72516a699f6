"""What a trainer's step reports, also of groups that were dropped in an entry of their own before it."""

import numpy as np
import pytest

from rollstream.history.rollback import roll_back
from rollstream.local.ports import free_ports
from rollstream.process.settings.base import StageSettings
from rollstream.schemas.ledger import EntryKind
from tests.harness.builders import a_turn
from tests.harness.running import Run
from tests.harness.scraping import scraped
from tests.harness.trainer_runs import (
    GROUP_SIZE,
    GROUPS_PER_STEP,
    Start,
    a_scored,
    configure,
    ledger,
    put_scored,
    scored,
    submitted,
    survivors,
)
from tests.harness.waits import wait_until


def test_a_steps_reward_covers_the_groups_without_spread_that_were_dropped_long_before_it(
    run: Run, start: Start
) -> None:
    right, learned = submitted(run, 4), submitted(run, 2 * GROUPS_PER_STEP, first=10)
    put_scored(run, [a_scored(prompt, index, 0, reward=1.0) for prompt in right for index in range(GROUP_SIZE)])
    configure(run, num_steps=2)
    trainer = start()
    wait_until(
        lambda: {prompt.group_id for prompt in right} <= survivors(run).closed.keys(), "the groups to be dropped"
    )
    scored(run, learned)
    assert trainer.wait() == 0
    entries = ledger(run)
    step, after_it = (entry for entry in entries if entry.kind is EntryKind.STEP)
    assert len(step.closed) == GROUPS_PER_STEP, "the others were closed by entries before it"
    # From this a producer learns how hard a task was.
    means = {group.group_id: group.reward_mean for entry in entries for group in entry.closed}
    assert means == {prompt.group_id: 1.0 for prompt in right} | {prompt.group_id: 0.5 for prompt in learned}
    num_groups = len(right) + GROUPS_PER_STEP
    assert step.metrics["reward_mean"] == pytest.approx((len(right) + 0.5 * GROUPS_PER_STEP) / num_groups)
    assert step.metrics["zero_std_ratio"] == step.metrics["dropped_ratio"] == pytest.approx(len(right) / num_groups)
    assert after_it.metrics["reward_mean"] == 0.5
    assert after_it.metrics["zero_std_ratio"] == after_it.metrics["dropped_ratio"] == 0.0
    tokens = (num_groups + GROUPS_PER_STEP) * GROUP_SIZE * 6
    assert sum(entry.metrics.get("generated_tokens", 0.0) for entry in entries) == tokens


def test_equal_rewards_train_once_each_is_lowered_by_its_distance_from_the_reference_model(
    run: Run, start: Start
) -> None:
    prompts = submitted(run, GROUPS_PER_STEP)
    places = [(prompt, index) for prompt in prompts for index in range(GROUP_SIZE)]
    put_scored(run, [a_scored(prompt, index, 0, reward=1.0, token_id=4 + index) for prompt, index in places])
    learning = {"kl_coefficient": 0.1, "kl_in": "reward", "scale_advantages": "batch", "threads": 1}
    configure(run, num_steps=1, learning=learning)
    assert start().wait() == 0
    (step,) = (entry for entry in ledger(run) if entry.kind is EntryKind.STEP)
    assert {group.group_id for group in step.closed} == {prompt.group_id for prompt in prompts}
    # Without the reference every advantage would be 0. The first step's policy still is the reference.
    assert step.metrics["grad_norm"] > 0
    assert step.metrics["kl"] == 0


def test_a_rollout_whose_turns_branch_is_named_once_and_its_turns_are_weighed(run: Run, start: Start) -> None:
    prompts = submitted(run, GROUPS_PER_STEP)
    given = np.array([5, 6], dtype=np.int32)
    again = a_turn(prefix_turn=0, prefix_tokens=9, prompt_token_ids=given, spans=[(0, 0, 6)])
    aside = a_turn(prefix_turn=1, prefix_tokens=0, prompt_token_ids=given, spans=[(0, 0, 6)], turn_type="summarization")
    for sample in (a_scored(prompt, index, 0) for prompt in prompts for index in range(GROUP_SIZE)):
        turns = (*sample.rollout.turns, again, aside)
        put_scored(run, [sample.model_copy(update={"rollout": sample.rollout.model_copy(update={"turns": turns})})])
    weights = {"summarization": 0.0, "answer/0": 0.5}
    configure(run, num_steps=1, learning={"loss": "gspo", "minibatches": 3, "turn_weights": weights, "threads": 1})
    assert start().wait() == 0
    (step,) = (entry for entry in ledger(run) if entry.kind is EntryKind.STEP)
    num_rollouts = GROUPS_PER_STEP * GROUP_SIZE
    assert len({trained.rollout_id for trained in step.trained}) == len(step.trained) == num_rollouts
    assert step.metrics["trained_tokens"] == step.metrics["trained_tokens_at_lag/0"] == num_rollouts * 12
    assert step.metrics["updates_skipped"] == 0


def exported(port: int, name: str, **labels: str) -> float | None:
    return scraped(port, f"rollstream_trainer_{name}", **labels)


def test_a_trainer_exports_its_open_groups_and_what_their_samples_take(run: Run, start: Start) -> None:
    [port] = free_ports(1)
    (prompt,) = submitted(run, 1)
    trainer = start(ROLLSTREAM_HEALTH_PORT=str(port))
    scored(run, [prompt], samples=GROUP_SIZE - 1)
    wait_until(lambda: exported(port, "incomplete_bytes"), "the samples of an incomplete group to be exported")
    assert (exported(port, "open_groups"), exported(port, "ready_groups")) == (1, 0)
    put_scored(run, [a_scored(prompt, GROUP_SIZE - 1, 0)])
    wait_until(lambda: exported(port, "ready_groups") == 1, "a complete group to be exported")
    assert (exported(port, "open_groups"), exported(port, "incomplete_bytes")) == (1, 0)
    assert trainer.terminate() == 0


def test_a_trainer_exports_what_happened_to_its_run_before_it_was_started(run: Run, start: Start) -> None:
    configure(run, checkpoint_every=1)
    [port] = free_ports(1)
    prompts = submitted(run, GROUPS_PER_STEP)
    first = start(ROLLSTREAM_HEALTH_PORT=str(port))
    # A prompt that is read after its group's step would count as a duplicate too.
    wait_until(lambda: exported(port, "open_groups") == len(prompts), "both prompts to be read")
    scored(run, prompts)
    wait_until(lambda: exported(port, "step") == 1, "a step")
    stepped_at = exported(port, "last_step_timestamp_seconds")
    assert stepped_at == exported(port, "last_checkpoint_timestamp_seconds") == ledger(run)[-1].finished_at.timestamp()
    assert exported(port, "interruptions_total", kind="restart") == 1
    assert exported(port, "interruptions_total", kind="rollback") == 0
    scored(run, prompts)
    wait_until(lambda: exported(port, "duplicate_records_total") == len(prompts) * GROUP_SIZE, "all to be duplicates")
    lag = {"group": f"{run.name}.trainer", "topic": f"{run.name}.scored"}
    assert scraped(port, "rollstream_bus_consumer_lag_records", **lag) is not None
    assert first.terminate() == 0
    roll_back(StageSettings.load(run.config), 1, force=False)
    second = start(ROLLSTREAM_HEALTH_PORT=str(port))
    wait_until(lambda: exported(port, "interruptions_total", kind="restart") == 2, "the next trainer's first entry")
    assert exported(port, "interruptions_total", kind="rollback") == 1
    assert exported(port, "last_step_timestamp_seconds") == stepped_at
    assert second.terminate() == 0
