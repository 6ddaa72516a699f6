"""A trainer that is away for an hour while the other stages go on: when it is back, it drops only what is too old."""

import signal
import time
from collections import Counter
from pathlib import Path

from rollstream.schemas.ledger import GroupOutcome
from rollstream.schemas.prompt import PromptSubmitted, Purpose
from rollstream.trainer.intake.upstream import ASK_EVERY_SECONDS
from tests.harness.builders import a_prompt
from tests.harness.running import Run
from tests.harness.trainer_process import HOUR, move_clock
from tests.harness.trainer_runs import (
    GROUP_SIZE,
    GROUPS_PER_STEP,
    Start,
    a_scored,
    commit_all,
    configure,
    put_scored,
    scored,
    scored_groups,
    submitted,
    survivors,
)
from tests.harness.waits import wait_until

# Longer than the test takes to publish what is missing, and nothing against an hour.
LOST_AFTER_SECONDS = 20.0
NUM_MARKERS = 12


def half_done(run: Run, first: int, version: int) -> list[PromptSubmitted]:
    """Groups that lack their last sample although every stage is done with them, read by the trainer, and aging."""
    groups = submitted(run, GROUPS_PER_STEP, first=first)
    scored(run, groups, version=version, samples=GROUP_SIZE - 1)
    # They come after the groups in every partition: once they are closed, the trainer knows the groups.
    markers = [a_prompt(first + row, run=run.name, purpose=Purpose.SERVE) for row in range(10, 10 + NUM_MARKERS)]
    run.submit(*markers)
    commit_all(run, "generators", "prompts")
    commit_all(run, "scorers", "rollouts")
    wait_until(lambda: {m.group_id for m in markers} <= survivors(run).closed.keys(), "every prompt to be read")
    let_the_trainer_ask_the_other_stages()
    return groups


def let_the_trainer_ask_the_other_stages() -> None:
    began = time.monotonic()
    wait_until(lambda: time.monotonic() > began + 2 * ASK_EVERY_SECONDS, "two rounds of questions")


def complete(run: Run, groups: list[PromptSubmitted], version: int) -> None:
    put_scored(run, [a_scored(prompt, GROUP_SIZE - 1, version) for prompt in groups])


def test_a_trainer_that_was_away_for_an_hour_drops_nothing_but_what_the_lag_bound_names(
    run: Run, start: Start, tmp_path: Path
) -> None:
    clock = tmp_path / "clock"
    move_clock(clock, 0.0)
    configure(run, lost_after_seconds=LOST_AFTER_SECONDS)
    run.shared["max_policy_lag"] = 1
    early = scored_groups(run, 2 * GROUPS_PER_STEP)
    trainer = start(clock=clock)
    wait_until(lambda: survivors(run).step == 2, "two steps")

    first = half_done(run, 100, 2)
    trainer.signal(signal.SIGSTOP)
    move_clock(clock, HOUR)
    trainer.signal(signal.SIGCONT)
    let_the_trainer_ask_the_other_stages()
    complete(run, first, 2)
    wait_until(lambda: survivors(run).step == 3, "the half-done groups to train")

    second = half_done(run, 200, 3)
    trainer.signal(signal.SIGTERM)
    assert trainer.wait() == 0
    complete(run, second, 3)
    (too_old,) = submitted(run, 1, first=300)
    scored(run, [too_old], version=0)
    move_clock(clock, 2 * HOUR)
    start(clock=clock)
    everything = [*early, *first, *second, too_old]
    wait_until(lambda: {p.group_id for p in everything} <= survivors(run).closed.keys(), "every group to close")
    found = survivors(run)

    for groups in (early, first, second):
        assert {found.closed[prompt.group_id].outcome for prompt in groups} == {GroupOutcome.TRAINED}
    assert found.closed[too_old.group_id].reason == "too_old"
    dropped = Counter(group.reason for group in found.closed.values() if group.outcome is GroupOutcome.DROPPED)
    assert dropped == {"too_old": 1, "not_for_training": 2 * NUM_MARKERS}
