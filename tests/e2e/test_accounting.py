"""The outside client's accounting fails when it must: each kind of damage to a correct account is found."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.chaos.accounting import Account, Place
from tests.chaos.records import Fields

NUM_TOKENS = 3


def a_record(sample: str, attempt: str) -> Fields:
    turn = {
        "token_ids": np.arange(NUM_TOKENS, dtype="<i4").tobytes(),
        "behavior_logprobs": np.full(NUM_TOKENS, -0.5, dtype="<f4").tobytes(),
        "weight_spans": [
            {"weight_version": 0, "start": 0, "end": 1},
            {"weight_version": 1, "start": 1, "end": NUM_TOKENS},
        ],
    }
    rollout = {"rollout_id": sample, "attempt_id": attempt, "group_id": "a", "status": "completed", "turns": [turn]}
    return {"rollout": rollout, "scoring": {"reward": 1.0}}


def an_entry(kind: str, version: int, parent: int | None, step: int) -> Fields:
    is_step = kind == "step"
    named = [{"rollout_id": f"a-{n}", "attempt_id": f"try-{n}", "partition": 0, "offset": n} for n in range(2)]
    closed = [{"group_id": "a", "outcome": "trained", "reason": ""}]
    return {
        "kind": kind,
        "weight_version": version,
        "parent_version": parent,
        "step": step,
        "trained": named if is_step else [],
        "closed": closed if is_step else [],
    }


def an_account() -> Account:
    """Version 1 was trained, cut by a restart, and trained again as version 3; group b is in flight."""
    return Account(
        ledger=[
            an_entry("restart", 0, None, 0),
            an_entry("step", 1, 0, 1),
            an_entry("restart", 2, 0, 0),
            an_entry("step", 3, 2, 1),
        ],
        scored={(0, n): a_record(f"a-{n}", f"try-{n}") for n in range(2)},
        rollouts=[],
        prompts={group: {"purpose": "train", "group_size": 2} for group in "ab"},
    )


def test_a_sound_account_holds() -> None:
    account = an_account()
    account.check()
    assert (account.steps, account.num_trained, account.open_groups) == (1, 1, {"b"})
    assert account.unfinished == {"b"}


def changed(account: Account, place: int, **fields: Any) -> None:
    """Change fields of an entry of the ledger."""
    account.ledger[place].update(fields)


def closes(account: Account, group: str, reason: str) -> None:
    account.ledger[3]["closed"].append({"group_id": group, "outcome": "dropped", "reason": reason})


def turn_of(account: Account) -> Fields:
    turn: Fields = account.scored[0, 0]["rollout"]["turns"][0]
    return turn


DAMAGES: dict[str, Callable[[Account], object]] = {
    "trained twice": lambda account: account.ledger[3]["trained"].append(account.ledger[3]["trained"][0]),
    "closed twice": lambda account: changed(account, 3, closed=account.ledger[3]["closed"] * 2),
    "a cut forgotten": lambda account: changed(account, 2, parent_version=1),
    "another attempt": lambda account: account.scored[0, 1]["rollout"].update(attempt_id="other"),
    "trained on what is served": lambda account: account.prompts["a"].update(purpose="serve"),
    "a group lost": lambda account: closes(account, "b", "lost"),
    "a stranger's group closed": lambda account: closes(account, "z", "no_spread"),
    "a gap between spans": lambda account: turn_of(account)["weight_spans"][1].update(start=2),
    "a logprob missing": lambda account: turn_of(account).update(
        behavior_logprobs=turn_of(account)["behavior_logprobs"][:-4]
    ),
}


def test_each_damage_is_found() -> None:
    for what, damage in DAMAGES.items():
        account = an_account()
        damage(account)
        try:
            account.check()
        except AssertionError:
            continue
        pytest.fail(f"not found: {what}")


def test_a_group_may_be_lost_whose_samples_may_have_lain_in_a_topic_that_was_deleted() -> None:
    account = an_account()
    closes(account, "b", "lost")
    replace(account, may_be_lost=frozenset({"b"})).check()
    with pytest.raises(AssertionError, match="1 groups lost"):
        replace(account, may_be_lost=frozenset({"a"})).check()


def test_a_step_that_names_a_place_where_nothing_lies_is_found() -> None:
    account = an_account()
    places: dict[Place, Fields] = {place: record for place, record in account.scored.items() if place != (0, 1)}
    with pytest.raises(AssertionError):
        Account(ledger=account.ledger, scored=places, rollouts=[], prompts=account.prompts).check()
