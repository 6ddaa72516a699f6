"""Groups of one: which of them a step takes, what their rewards are compared with, and which never train."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.schemas.rollout import FinishReason
from rollstream.schemas.scored import RolloutScored
from rollstream.trainer.intake.admission import AdmissionRules, Admitted
from rollstream.trainer.intake.aging import Aging
from rollstream.trainer.intake.assembler import Assembler
from rollstream.trainer.intake.groups import LogPlace
from rollstream.trainer.intake.intake import Intake
from rollstream.trainer.intake.waiting import MOST_ALONE
from rollstream.training.learning.settings import AdvantageSettings
from tests.harness.builders import a_group, a_prompt, a_rollout, a_served, a_turn

RULES = AdmissionRules(max_policy_lag=2, max_served_lag=4)
CONSTANT = replace(RULES, advantages=AdvantageSettings(advantages="constant", baseline=0.25))
LAGS = {9: 0, 8: 1, 7: 2, 6: 3, 5: 4, 4: 5}


def an_answer(
    number: int, reward: float = 1.0, *, environment: str = "chat", version: int = 9, **fields: Any
) -> RolloutScored:
    """An answer to a client and its feedback, as the feedback producer publishes them."""
    prompt = a_prompt(number, prompt_id=f"serve/{number}", group_size=1, environment=environment)
    values = {"served": a_served(f"chatcmpl-{number}"), "turns": (a_turn(spans=[(version, 0, 6)]),)}
    return a_rollout(reward, prompt=prompt, **{**values, **fields})


def answers(*rewards: float, first: int = 0, **fields: Any) -> list[RolloutScored]:
    return [an_answer(first + place, reward, **fields) for place, reward in enumerate(rewards)]


def a_pair(number: int, version: int = 9) -> list[RolloutScored]:
    """A group of two with spread."""
    prompt = a_prompt(number, group_size=2)
    return a_group((0.0, 1.0), prompt=prompt, turns=(a_turn(spans=[(version, 0, 6)]),))


class Taking:
    """An intake, and the names of what it was given: `o3` is answer 3, `g3` is the group of prompt 3."""

    def __init__(self, rules: AdmissionRules = RULES, *, ones_per_group: int = 2) -> None:
        assembler = Assembler(closed=(), offsets={}, incomplete_bytes=10**9)
        self.intake = Intake(assembler, Aging(60.0), rules, expired_before={}, ones_per_group=ones_per_group)
        self.lags = dict(LAGS)
        self.num_records = 0

    def give(self, *samples: RolloutScored) -> None:
        for sample in samples:
            self.intake.assembler.add_sample(sample, LogPlace(("demo.scored", 0), self.num_records), 10)
            self.num_records += 1
        self.intake.settle(self.lags.get)

    def step(self, num_groups: int) -> tuple[Admitted, ...] | None:
        batch = self.intake.batch(num_groups, self.lags.get)
        if batch is not None:
            self.intake.assembler.close_trained(one.group.group_id for one in batch)
        return batch

    def names(self, num_groups: int) -> list[str]:
        """What the next step takes, sorted; nothing if none is due."""
        return sorted(_name(admitted) for admitted in self.step(num_groups) or ())

    def drops(self) -> list[str]:
        return [drop.reason.value for drop in self.intake.assembler.take_drops(1000)]


def _name(admitted: Admitted) -> str:
    prompt = admitted.scored[0].scored.rollout.prompt
    return ("o" if admitted.group.is_one else "g") + prompt.prompt_id.rpartition("/")[2]


def advantages(batch: Sequence[Admitted] | None) -> list[float]:
    assert batch is not None
    return [sample.advantage for admitted in batch for sample in admitted.training]


def test_a_step_compares_a_group_of_one_with_the_others_of_its_environment() -> None:
    taking = Taking()
    taking.give(*answers(1.0, -1.0, 1.0), *answers(0.5, 0.0, -1.0, first=3, environment="code"), *a_pair(9))
    assert taking.drops() == [], "no spread is judged before a step takes them"
    # chat: 1 - 0, -1 - 1, 1 - 0. code: 0.5 + 0.5, 0 + 0.25, -1 - 0.25.
    batch = taking.step(4)
    found = {_name(admitted): admitted.training[0].advantage for admitted in batch or ()}
    assert found == {"o0": 1.0, "o1": -2.0, "o2": 1.0, "o3": 1.0, "o4": 0.25, "o5": -1.25, "g9": -0.5}


def test_so_many_groups_of_one_take_the_place_of_a_group_and_what_is_left_waits() -> None:
    taking = Taking(ones_per_group=2)
    taking.give(*answers(1.0, -1.0, 1.0, -1.0, 1.0), *a_pair(0))
    assert taking.intake.num_ready == 3
    assert taking.names(3) == ["g0", "o0", "o1", "o2", "o3"]
    assert taking.intake.num_ready == 0
    taking.give(*a_pair(1), *a_pair(2), *a_pair(3))
    assert taking.names(3) == ["g1", "g2", "g3"], "one that is left over holds up no other step"
    taking.give(*answers(-1.0, first=5))
    assert taking.names(1) == ["o4", "o5"]


def test_a_group_of_one_waits_for_another_one_of_its_environment() -> None:
    taking = Taking(ones_per_group=1)
    taking.give(*answers(1.0), *answers(1.0, first=1, environment="code"))
    assert (taking.intake.num_ready, taking.names(1)) == (0, [])
    taking.give(*answers(-1.0, first=2))
    assert taking.names(1) == ["o0", "o2"], "one more than a step asks for, so that none is alone"
    assert (taking.intake.num_ready, taking.drops()) == (0, [])
    taking.give(*answers(0.0, first=3, environment="code"))
    assert taking.names(2) == ["o1", "o3"]


def test_one_whose_companions_do_not_fit_into_the_step_waits_for_the_next() -> None:
    taking = Taking(ones_per_group=2)
    kinds = ("chat", "code", "chat", "chat", "code", "chat")
    taking.give(*(an_answer(number, number, environment=kind) for number, kind in enumerate(kinds)))
    assert taking.names(1) == ["o0", "o2"], "the first of `code` would be the only one"
    assert taking.names(1) == ["o1", "o4"]
    assert taking.names(1) == ["o3", "o5"]


def test_neither_kind_holds_up_the_other() -> None:
    taking = Taking(ones_per_group=2)
    taking.give(*a_pair(0), *answers(1.0, -1.0))
    for number in range(1, 6):
        taking.give(*a_pair(number))
    assert taking.names(2) == ["g0", "o0", "o1"], "they came before the other groups"
    taking = Taking(ones_per_group=2)
    taking.give(*answers(1.0, -1.0), *a_pair(0))
    taking.give(*answers(*[1.0, -1.0] * 10, first=2))
    assert taking.names(2) == ["g0", "o0", "o1"]
    taking = Taking(ones_per_group=1)
    taking.give(*answers(*[1.0, -1.0] * 2))
    taking.give(*a_pair(0), *answers(*[1.0, -1.0] * 10, first=4))
    assert [taking.names(1) for _ in range(3)] == [["o0", "o1"], ["o2", "o3"], ["g0"]]


def test_of_each_kind_the_oldest_versions_come_first() -> None:
    taking = Taking(ones_per_group=2)
    taking.give(*answers(1.0, -1.0), *a_pair(0), *answers(1.0, -1.0, first=2, version=5), *a_pair(1, version=7))
    assert taking.names(2) == ["g1", "o2", "o3"]


def test_equal_rewards_of_all_ones_of_an_environment_teach_nothing_and_the_step_takes_others() -> None:
    taking = Taking(ones_per_group=2)
    taking.give(*answers(1.0, 1.0), *answers(1.0, -1.0, first=2, environment="code"))
    assert taking.names(1) == ["o2", "o3"]
    assert taking.drops() == ["no_spread", "no_spread"]


@pytest.mark.parametrize("rules", [replace(RULES, train_without_spread=True), replace(RULES, kl_in_reward=True)])
def test_equal_rewards_train_if_that_is_wanted(rules: AdmissionRules) -> None:
    taking = Taking(rules)
    taking.give(*answers(1.0, 1.0))
    assert advantages(taking.step(1)) == [0.0, 0.0]


def test_with_a_constant_baseline_a_group_of_one_needs_no_other() -> None:
    taking = Taking(CONSTANT, ones_per_group=1)
    taking.give(*answers(1.0), *answers(0.25, first=1, environment="code"))
    assert advantages(taking.step(1)) == [0.75]
    assert taking.drops() == ["no_spread"], "a reward that is the baseline"


def test_of_too_many_that_wait_alone_the_oldest_is_dropped() -> None:
    taking = Taking()
    for number in range(MOST_ALONE + 2):
        taking.give(an_answer(number, environment=f"environment-{number}"))
    assert taking.drops() == ["overflow", "overflow"]
    taking.give(an_answer(1000, -1.0, environment="environment-0"), *a_pair(0))
    assert taking.names(1) == ["g0"], "the first one of its environment was dropped"
    assert taking.intake.assembler.num_open == MOST_ALONE


def test_an_answer_may_be_as_old_as_its_own_bound_says() -> None:
    taking = Taking(ones_per_group=1)
    taking.give(an_answer(0, 1.0, version=5), an_answer(1, -1.0, version=6), an_answer(2, version=4))
    assert taking.drops() == ["too_old"]
    assert [sample.policy_lag for admitted in taking.step(2) or () for sample in admitted.training] == [4, 3]
    asked = a_prompt(7, group_size=1)
    taking.give(a_rollout(prompt=asked, turns=(a_turn(spans=[(6, 0, 6)]),)))
    assert taking.drops() == ["too_old"], "max_policy_lag is for what no client waited for"


def test_one_that_waits_alone_until_it_is_too_old_is_dropped_when_a_step_is_due() -> None:
    taking = Taking()
    taking.give(an_answer(0, version=5))
    taking.lags[5] = 5
    assert (taking.names(1), taking.drops()) == ([], [])
    taking.give(*a_pair(0))
    assert (taking.names(1), taking.drops()) == (["g0"], ["too_old"])


def test_answers_that_are_too_old_say_nothing_of_lengths() -> None:
    taking = Taking()
    taking.give(an_answer(0, version=4))
    assert (taking.drops(), taking.intake.lag_by_length.take()) == (["too_old"], {})
    taking.give(*a_pair(0, version=6))
    assert taking.drops() == ["too_old"]
    assert taking.intake.lag_by_length.take()["too_old_length_quartile/1"] == 1.0


NOT_PLAIN = a_turn(spans=[(9, 0, 6)], is_plain=False)


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        ("no_consent", {"served": a_served(may_train=False)}),
        ("not_plain", {"turns": (NOT_PLAIN,)}),
    ],
)
def test_what_must_not_train_never_does(reason: str, fields: dict[str, Any]) -> None:
    taking = Taking()
    taking.give(an_answer(0, **fields), an_answer(1, -1.0))
    assert (taking.drops(), taking.names(1)) == ([reason], [])


CUT = {"turns": (a_turn(spans=[(9, 0, 6)], finish_reason=FinishReason.LENGTH),)}


def test_a_truncated_answer_counts_in_what_the_others_are_compared_with_and_trains_no_token() -> None:
    taking = Taking(ones_per_group=3)
    taking.give(*answers(1.0, 0.0), an_answer(2, -1.0, **CUT))
    batch = taking.step(1) or ()
    # 1 - (0 - 1) / 2, 0 - (1 - 1) / 2 and -1 - (1 + 0) / 2.
    assert {_name(one): one.training[0].advantage for one in batch} == {"o0": 1.5, "o1": 0.0, "o2": -1.5}
    assert {_name(one): one.training[0].num_trained_tokens for one in batch} == {"o0": 6, "o1": 6, "o2": 0}


def test_truncated_answers_alone_make_no_step() -> None:
    taking = Taking()
    taking.give(an_answer(0, 1.0, **CUT), an_answer(1, -1.0, **CUT))
    assert (taking.names(1), taking.drops()) == ([], ["no_spread", "no_spread"])
    taking.give(an_answer(2, 1.0), an_answer(3, 1.0, **CUT))
    assert (taking.names(1), taking.drops()) == ([], ["no_spread", "no_spread"])


@pytest.mark.parametrize("rules", [CONSTANT, replace(RULES, train_without_spread=True)])
def test_with_a_constant_baseline_or_where_flat_groups_train_a_truncated_answer_counts_nowhere(
    rules: AdmissionRules,
) -> None:
    taking = Taking(rules)
    taking.give(an_answer(0, 1.0, **CUT), an_answer(1, -1.0))
    assert taking.drops() == ["all_truncated"]


def test_an_answer_whose_client_left_trains_if_those_at_their_token_limit_do() -> None:
    left = {"turns": (a_turn(spans=[(9, 0, 6)], finish_reason=FinishReason.ABORT),)}
    taking = Taking(replace(RULES, train_truncated=True))
    taking.give(an_answer(0, **left), an_answer(1, -1.0))
    batch = taking.step(1)
    assert advantages(batch) == [2.0, -2.0]
    assert [sample.num_trained_tokens for admitted in batch or () for sample in admitted.training] == [6, 6]


def test_of_a_rollout_the_turns_that_are_not_plain_do_not_train() -> None:
    later = a_turn(
        (7, 8, 9), prefix_turn=0, prefix_tokens=12, prompt_token_ids=np.array([20], np.int32), spans=[(9, 0, 3)]
    )
    taking = Taking()
    taking.give(an_answer(0, turns=(NOT_PLAIN, later)), an_answer(1, -1.0))
    batch = taking.step(1)
    assert batch is not None
    assert batch[0].training[0].loss_mask.tolist() == [False] * 7 + [True] * 3


@given(
    st.lists(st.sampled_from(["pair", "chat", "code", "rare"]), max_size=60),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_whatever_comes_every_step_is_full_nobody_is_alone_and_nothing_is_taken_twice(
    kinds: list[str], num_groups: int, ones_per_group: int
) -> None:
    taking = Taking(ones_per_group=ones_per_group)
    taken: list[str] = []
    for number, kind in enumerate(kinds):
        # Each pair of answers has two rewards, so few are dropped for lack of spread.
        taking.give(*(a_pair(number) if kind == "pair" else [an_answer(number, number, environment=kind)]))
        batch = taking.step(num_groups)
        if batch is None:
            assert taking.intake.num_ready < num_groups
            continue
        ones = [admitted for admitted in batch if admitted.group.is_one]
        num_places = (len(batch) - len(ones)) + len(ones) // ones_per_group
        assert num_places == num_groups or len(ones) == ones_per_group * (num_groups - len(batch) + len(ones)) + 1
        environments = [one.group.environment for one in ones]
        assert all(environments.count(environment) > 1 for environment in environments)
        taken += [admitted.group.group_id for admitted in batch]
    assert len(set(taken)) == len(taken)
    assert taking.drops() == []
