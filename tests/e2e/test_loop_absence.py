"""The loop while its trainer is away: generation stops when the credit is used up, no group is dropped as too old."""

from functools import partial
from pathlib import Path

import pytest

from tests.chaos.accounting import Account
from tests.harness.loops import SHARE, a_loop
from tests.harness.running import Run
from tests.harness.trainer_process import HOUR, move_clock, start_trainer

STEPS_BEFORE = 3
NUM_STEPS = 14


def is_credit_used_up(account: Account) -> bool:
    """Every group that the producer may have open is there, and scored."""
    return len(account.open_groups) == SHARE and not account.unfinished


def check_only_dropped_for_lag_or_want_of_spread(account: Account) -> None:
    assert account.dropped.keys() <= {"too_old", "no_spread"}
    for group, closed in account.closed.items():
        if closed["reason"] == "no_spread":
            assert len({sample["scoring"]["reward"] for sample in account.samples(group)}) == 1


@pytest.mark.slow
def test_a_trainer_that_starts_again_after_an_hour_trains_what_the_credit_let_through(
    run: Run, model: Path, tmp_path: Path
) -> None:
    clock = tmp_path / "clock"
    move_clock(clock, 0.0)
    with a_loop(run, model, num_steps=NUM_STEPS) as loop:
        # Far more than a group takes, far less than an hour.
        loop.configure("trainer", lost_after_seconds=30.0)
        loop.start("generator", "scorer", "producer")
        loop.keep_alive("trainer", partial(start_trainer, run, clock=clock))
        loop.until_step(STEPS_BEFORE)
        loop.stop("trainer")
        stopped = loop.until_account(is_credit_used_up, "the credit to be used up")
        later = loop.until_account(is_credit_used_up, "the credit to be used up still")
        assert later.prompts.keys() == stopped.prompts.keys()
        assert len(later.rollouts) == len(stopped.rollouts)

        move_clock(clock, HOUR)
        loop.keep_alive("trainer", partial(start_trainer, run, clock=clock))
        account = loop.finish(NUM_STEPS)
        check_only_dropped_for_lag_or_want_of_spread(account)
        assert stopped.open_groups <= account.closed.keys()
