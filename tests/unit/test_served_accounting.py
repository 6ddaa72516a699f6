"""The accounting of answers fails when it must: each kind of damage to a correct one is found."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.chaos.accounting import Account
from tests.chaos.records import Fields
from tests.chaos.served_accounting import ChoiceKey, ServedAccount

TRAINED, WAITING, UNRATED = ("call-1", 0), ("call-1", 1), ("call-2", 0)


def a_rollout(choice: ChoiceKey, *, rollout_id: str = "") -> Fields:
    turn = {
        "token_ids": np.arange(2, dtype="<i4").tobytes(),
        "behavior_logprobs": np.full(2, -0.5, dtype="<f4").tobytes(),
        "weight_spans": [{"weight_version": 0, "start": 0, "end": 2}],
        "text": f"answer {choice}",
    }
    return {
        "rollout_id": rollout_id or f"{choice}",
        "attempt_id": "first",
        "group_id": f"{choice}",
        "status": "completed",
        "turns": [turn],
        "served": {"response_id": choice[0], "choice": choice[1]},
    }


def a_scored(choice: ChoiceKey, reward: float) -> Fields:
    return {"rollout": a_rollout(choice), "scoring": {"reward": reward}}


@dataclass
class Parts:
    """What an account is made of, to be damaged."""

    answered: dict[ChoiceKey, str]
    rated: dict[ChoiceKey, set[float]]
    recorded: list[Fields]
    rewarded: list[Fields]
    scored: dict[tuple[int, int], Fields]
    named: list[Fields]

    def account(self) -> ServedAccount:
        step = {"kind": "step", "step": 1, "weight_version": 1, "parent_version": 0, "trained": self.named}
        return ServedAccount(
            answered=self.answered,
            rated=self.rated,
            recorded=self.recorded,
            rewarded=self.rewarded,
            account=Account(ledger=[step], scored=self.scored, rollouts=(), prompts={}),
        )

    def trains(self, choice: ChoiceKey, reward: float = 1.0) -> None:
        """One more record of `scored` that the step names."""
        self.scored[0, len(self.scored)] = a_scored(choice, reward)
        self.named.append({"partition": 0, "offset": len(self.scored) - 1})


def sound() -> Parts:
    """Two choices of a call are rated, of which one trained; a second call is not rated."""
    choices = (TRAINED, WAITING, UNRATED)
    return Parts(
        answered={choice: f"answer {choice}" for choice in choices},
        rated={TRAINED: {-1.0, 1.0}, WAITING: {1.0}},
        recorded=[a_rollout(choice) for choice in choices],
        rewarded=[a_scored(choice, 0.5) for choice in choices],
        scored={(0, 0): a_scored(TRAINED, 1.0), (0, 1): a_scored(WAITING, 1.0)},
        named=[{"partition": 0, "offset": 0}],
    )


DAMAGES: dict[str, tuple[Callable[[Parts], Any], str]] = {
    "a record is missing": (lambda parts: parts.recorded.pop(), "not recorded"),
    "two rollouts of one choice": (
        lambda parts: (
            parts.recorded.append(a_rollout(UNRATED, rollout_id="other")),
            parts.rewarded.append({"rollout": a_rollout(UNRATED, rollout_id="other"), "scoring": {"reward": 0.5}}),
        ),
        "several rollouts",
    ),
    "another text": (lambda parts: parts.answered.update({UNRATED: "else"}), "is recorded"),
    "a logprob is missing": (
        lambda parts: parts.recorded[2]["turns"][0].update(behavior_logprobs=b"\0\0\0\xbf"), "1 logprobs"
    ),
    "never scored": (lambda parts: parts.rewarded.pop(), "not scored"),
    "never published": (lambda parts: parts.scored.pop((0, 1)), "not on scored"),
    "a reward that nobody gave": (lambda parts: parts.scored.update({(0, 1): a_scored(WAITING, -1.0)}), "has reward"),
    "trained twice": (lambda parts: parts.trains(TRAINED), "trained twice"),
    "published without a rating": (lambda parts: parts.trains(UNRATED), "has reward"),
}  # fmt: skip


def test_a_sound_account_of_answers_holds() -> None:
    account = sound().account()
    account.check()
    assert account.is_settled
    assert account.trained == [TRAINED]


@pytest.mark.parametrize("what", DAMAGES)
def test_each_damage_to_an_account_of_answers_is_found(what: str) -> None:
    damage, said = DAMAGES[what]
    parts = sound()
    damage(parts)
    with pytest.raises(AssertionError, match=said):
        parts.account().check()


def test_a_record_that_comes_twice_is_no_second_rollout() -> None:
    parts = sound()
    parts.recorded.append(a_rollout(TRAINED))
    parts.scored[0, 2] = a_scored(TRAINED, 1.0)
    parts.account().check()


def test_groups_of_one_are_parts_of_a_group_that_waits() -> None:
    prompts = {"a": {"group_size": 4}, **{str(number): {"group_size": 1} for number in range(4)}}
    assert Account(ledger=(), scored={}, rollouts=(), prompts=prompts).num_waiting(8) == 1.5
