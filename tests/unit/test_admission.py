"""Which complete groups are trained on, why the others are not, and the advantages of their samples."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rollstream.schemas.failure import FailureCode
from rollstream.schemas.prompt import Sampling
from rollstream.schemas.rollout import FinishReason, Status
from rollstream.schemas.scored import RolloutScored
from rollstream.trainer.intake.admission import AdmissionRules, Admitted, admit
from rollstream.trainer.intake.groups import DropReason, Group, LogPlace, PlacedSample
from rollstream.trainer.reporting import tokens_by_lag
from rollstream.training.learning.bounds import ModelBounds
from rollstream.training.learning.settings import AdvantageSettings
from tests.harness.builders import a_failure, a_generator, a_prompt, a_rollout, a_text_turn, a_turn

RULES = AdmissionRules(max_policy_lag=2)
LAGS = {3: 1, 2: 2, 1: 3}


def a_complete_group(samples: Sequence[RolloutScored]) -> Group:
    group = Group(group_id=samples[0].rollout.group_id, content_hash="", group_size=len(samples))
    for offset, scored in enumerate(samples):
        place = LogPlace(("demo.scored", 0), offset)
        group.samples[scored.rollout.sample_index] = PlacedSample(scored=scored, place=place, num_bytes=100)
    return group


def verdict(*samples: RolloutScored, rules: AdmissionRules = RULES) -> Admitted | DropReason:
    return admit(a_complete_group(samples), rules, LAGS.get)


def admitted(*samples: RolloutScored, rules: AdmissionRules = RULES) -> Admitted:
    found = verdict(*samples, rules=rules)
    assert isinstance(found, Admitted), found
    return found


def a_truncated(reward: float, index: int) -> RolloutScored:
    return a_rollout(reward, index, turns=(a_turn(finish_reason=FinishReason.LENGTH),))


def from_version(version: int, reward: float, index: int) -> RolloutScored:
    return a_rollout(reward, index, turns=(a_turn(spans=[(version, 0, 6)]),))


def test_a_group_with_spread_is_admitted_with_the_group_mean_as_baseline() -> None:
    group = admitted(a_rollout(1.0, 0), a_rollout(0.0, 1), a_rollout(0.0, 2), a_rollout(0.0, 3))
    assert [sample.advantage for sample in group.training] == [0.75, -0.25, -0.25, -0.25]
    assert [sample.policy_lag for sample in group.training] == [1, 1, 1, 1]


def test_a_group_without_spread_trains_with_advantages_of_zero_if_that_is_wanted() -> None:
    group = admitted(a_rollout(1.0, 0), a_rollout(1.0, 1), rules=replace(RULES, train_without_spread=True))
    assert not group.has_spread
    assert [sample.advantage for sample in group.training] == [0.0, 0.0]


def test_unfinished_samples_neither_train_nor_count_in_the_baseline() -> None:
    group = admitted(a_rollout(1.0, 0), a_rollout(0.0, 1), a_rollout(None, 2), a_rollout(None, 3, status=Status.FAILED))
    assert [sample.advantage for sample in group.training] == [0.5, -0.5]


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (Status.FAILED, FailureCode.PROMPT_TOO_LONG, DropReason.FAILED),
        (Status.UNRESOLVED, FailureCode.ENGINE, DropReason.UNRESOLVED),
        (Status.FAILED, FailureCode.UNSUPPORTED_SAMPLING, DropReason.UNSUPPORTED_SAMPLING),
    ],
)
def test_a_group_of_which_less_than_half_is_completed_is_dropped_by_what_the_others_say(
    status: Status, code: FailureCode, reason: DropReason
) -> None:
    others = [a_rollout(None, index, status=status, failure=a_failure("why", code)) for index in (1, 2)]
    assert verdict(a_rollout(1.0, 0), *others) is reason


def test_truncated_samples_stay_in_the_baseline_and_leave_the_loss() -> None:
    group = admitted(a_rollout(1.0, 0), a_rollout(0.0, 1), a_truncated(0.5, 2), a_truncated(0.5, 3))
    assert [sample.advantage for sample in group.training] == [0.5, -0.5, 0.0, 0.0]
    assert [sample.num_trained_tokens for sample in group.training] == [6, 6, 0, 0]


def test_truncated_samples_train_if_that_is_wanted_and_then_count_in_the_spread() -> None:
    rules = replace(RULES, train_truncated=True)
    group = admitted(a_rollout(1.0, 0), a_rollout(1.0, 1), a_truncated(0.0, 2), rules=rules)
    assert [sample.num_trained_tokens for sample in group.training] == [6, 6, 6]
    assert admitted(a_truncated(1.0, 0), a_truncated(0.0, 1), rules=rules)


def a_group_with_some_cut_off(num_right: int, num_cut_off: int, *, reward: float = 0.0) -> list[RolloutScored]:
    num_samples = num_right + num_cut_off
    prompt = a_prompt(group_size=num_samples)
    right = [a_rollout(1.0, index, prompt=prompt) for index in range(num_right)]
    turns = (a_turn(finish_reason=FinishReason.LENGTH),)
    return right + [a_rollout(reward, index, prompt=prompt, turns=turns) for index in range(num_right, num_samples)]


@pytest.mark.parametrize(("num_right", "num_cut_off"), [(7, 1), (4, 4), (1, 7)])
def test_equal_rewards_of_finished_samples_train_if_those_cut_off_make_their_advantage(
    num_right: int, num_cut_off: int
) -> None:
    group = admitted(*a_group_with_some_cut_off(num_right, num_cut_off))
    assert {sample.advantage for sample in group.training[:num_right]} == {num_cut_off / 8}
    assert [sample.num_trained_tokens for sample in group.training] == [6] * num_right + [0] * num_cut_off


def test_a_group_is_as_old_as_its_oldest_span() -> None:
    straddling = a_rollout(0.0, 1, turns=(a_turn(spans=[(1, 0, 2), (3, 2, 6)]),))
    assert verdict(from_version(3, 1.0, 0), straddling) is DropReason.TOO_OLD
    group = admitted(from_version(3, 1.0, 0), from_version(2, 0.0, 1))
    assert [sample.policy_lag for sample in group.training] == [1, 2]


def test_with_lag_scope_token_only_the_tokens_that_are_too_old_are_masked() -> None:
    rules = AdmissionRules(max_policy_lag=2, lag_scope="token")
    straddling = a_rollout(0.0, 1, turns=(a_turn(spans=[(1, 0, 2), (3, 2, 6)]),))
    group = admitted(from_version(3, 1.0, 0), straddling, rules=rules)
    np.testing.assert_array_equal(group.training[1].loss_mask, [False, False, True, True, True, True])
    assert verdict(from_version(1, 1.0, 0), from_version(1, 0.0, 1), rules=rules) is DropReason.TOO_OLD


def test_another_tokenizer_is_refused() -> None:
    rules = AdmissionRules(max_policy_lag=2, tokenizer_sha256="ab" * 32)
    assert isinstance(verdict(a_rollout(1.0, 0), a_rollout(0.0, 1), rules=rules), Admitted)
    other = a_rollout(0.0, 1, generator=a_generator(tokenizer_sha256="cd" * 32))
    assert verdict(a_rollout(1.0, 0), other, rules=rules) is DropReason.TOKENIZER_MISMATCH


BOUNDED = AdmissionRules(max_policy_lag=2, bounds=ModelBounds(vocab_size=64, max_tokens=20))


def sampled_at(temperature: float) -> list[RolloutScored]:
    prompt = a_prompt(sampling=Sampling(temperature=temperature, max_tokens=12))
    return [a_rollout(float(index), index, prompt=prompt) for index in range(2)]


def answered(*token_ids: int) -> list[RolloutScored]:
    return [a_rollout(0.0, 0), a_rollout(1.0, 1, turns=(a_turn(token_ids),))]


def asked(*prompt_token_ids: int) -> list[RolloutScored]:
    turn = a_turn(prompt_token_ids=np.array(prompt_token_ids, dtype=np.int32))
    return [a_rollout(0.0, 0), a_rollout(1.0, 1, turns=(turn,))]


def test_tokens_of_a_generator_that_does_not_know_its_tokenizer_are_refused() -> None:
    unknown = a_rollout(0.0, 1, generator=a_generator(tokenizer_sha256=""))
    rules = replace(RULES, tokenizer_sha256="ab" * 32)
    assert verdict(a_rollout(1.0, 0), unknown, rules=rules) is DropReason.TOKENIZER_MISMATCH
    assert isinstance(verdict(a_rollout(1.0, 0), unknown), Admitted)


def test_trained_tokens_are_counted_by_the_lag_of_the_weights_that_sampled_them() -> None:
    across_an_update = a_rollout(0.0, 1, turns=(a_turn(spans=[(2, 0, 4), (3, 4, 6)]),))
    group = admitted(from_version(3, 1.0, 0), across_an_update, a_truncated(0.0, 2))
    found = tokens_by_lag([group], LAGS.get)
    assert found == {"trained_tokens_at_lag/1": 8.0, "trained_tokens_at_lag/2": 4.0}
    assert sum(found.values()) == sum(sample.num_trained_tokens for sample in group.training)


def test_tokens_of_later_turns_are_counted_by_lag_where_they_lie_behind_what_they_were_given() -> None:
    given = np.array([20, 21], dtype=np.int32)
    later = a_turn((7, 8, 9), prefix_turn=0, prefix_tokens=12, prompt_token_ids=given, spans=[(2, 0, 1), (3, 1, 3)])
    group = admitted(a_rollout(1.0, 0, turns=(a_turn(spans=[(2, 0, 6)]), later)), from_version(3, 0.0, 1))
    assert tokens_by_lag([group], LAGS.get) == {"trained_tokens_at_lag/1": 8.0, "trained_tokens_at_lag/2": 7.0}


def test_a_rollout_whose_turns_branch_trains_with_one_advantage_and_is_counted_token_by_token() -> None:
    given = np.array([20, 21], dtype=np.int32)
    branch = a_turn((7, 8, 9), prefix_turn=0, prefix_tokens=9, prompt_token_ids=given, spans=[(2, 0, 1), (3, 1, 3)])
    group = admitted(a_rollout(1.0, 0, turns=(a_turn(spans=[(2, 0, 6)]), branch)), from_version(3, 0.0, 1))
    assert [sample.advantage for sample in group.training] == [0.5, 0.5, -0.5]
    assert [sample.policy_lag for sample in group.training] == [2, 2, 1]
    assert tokens_by_lag([group], LAGS.get) == {"trained_tokens_at_lag/1": 8.0, "trained_tokens_at_lag/2": 7.0}


def test_a_turns_weight_comes_from_the_rules() -> None:
    turns = (a_turn(turn_type="reasoning"),)
    rules = replace(RULES, turn_weights={"reasoning": 2.0})
    group = admitted(a_rollout(1.0, 0, turns=turns), a_rollout(0.0, 1), rules=rules)
    assert [sample.turn_weights.tolist() for sample in group.training if sample.turn_weights is not None] == [
        [2.0] * 6,
        [1.0] * 6,
    ]


@pytest.mark.parametrize(
    "samples",
    [
        answered(63),
        asked(63),
        answered(*[4] * 14),  # 20 tokens with the prompt's 6
        sampled_at(0.01),
        sampled_at(100.0),
        [a_rollout(1e9, 0), a_rollout(-1e9, 1)],
        [a_rollout(1.0, 0), a_rollout(0.0, 1), a_rollout(None, 2, turns=(a_turn((64,)),))],  # the third is unfinished
    ],
)
def test_numbers_at_their_bounds_are_trained_on(samples: list[RolloutScored]) -> None:
    assert isinstance(verdict(*samples, rules=BOUNDED), Admitted)


OF_TOKENS = AdmissionRules(max_policy_lag=2, lag_scope="token")
OF_A_SERVER = {"generator": a_generator(tokenizer_sha256="", chat_template_sha256="")}
KNOWN = replace(RULES, tokenizer_sha256="ab" * 32)
REFUSED: list[tuple[DropReason, AdmissionRules, list[RolloutScored]]] = [
    *(
        (DropReason.OUT_OF_BOUNDS, BOUNDED, samples)
        for samples in (
            answered(64), answered(2**31 - 1), asked(64, 3), answered(*[4] * 15), asked(*[4] * 200_000),
            sampled_at(0.0), sampled_at(1e-300), sampled_at(0.009), sampled_at(1e308),
        )
    ),
    (DropReason.NO_SPREAD, RULES, [a_rollout(1.0, 0), a_rollout(1.0, 1)]),
    (DropReason.NO_SPREAD, RULES, a_group_with_some_cut_off(7, 1, reward=1.0)),
    (DropReason.NO_SPREAD, RULES, [a_rollout(0.3, 0), a_truncated(0.2, 1), a_truncated(0.4, 2)]),
    # What is masked for its lag makes no spread.
    (DropReason.NO_SPREAD, OF_TOKENS, [from_version(1, 1.0, 0), from_version(1, 0.0, 1), from_version(3, 0.5, 2)]),
    (DropReason.ALL_TRUNCATED, RULES, [a_truncated(1.0, 0), a_truncated(0.0, 1)]),
    (DropReason.UNKNOWN_VERSION, RULES, [from_version(9, 1.0, 0), from_version(3, 0.0, 1)]),
    (DropReason.UNTRAINABLE, RULES, [a_rollout(float(index), index, turns=()) for index in range(2)]),
    # A turn that extends one that does not exist, and one that extends more tokens than there are.
    (DropReason.UNTRAINABLE, RULES, [a_rollout(1.0, 0, turns=(a_turn(prefix_turn=1),)), a_rollout(0.0, 1)]),
    (DropReason.UNTRAINABLE, RULES, [a_rollout(1.0, 0, turns=(a_turn(), a_turn((7,), prefix_turn=0, prefix_tokens=13))),
                                     a_rollout(0.0, 1)]),
    # A server that speaks only text.
    (DropReason.NO_TOKENS, KNOWN, [a_rollout(float(n), n, turns=(a_text_turn(),), **OF_A_SERVER) for n in range(2)]),
    (DropReason.NO_TOKENS, KNOWN, [a_rollout(1.0, 0), a_rollout(0.0, 1, turns=(a_turn(), a_text_turn()))]),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "rules", "samples"), REFUSED)
def test_a_group_that_teaches_nothing_or_would_break_a_step_is_dropped_with_its_reason(
    reason: DropReason, rules: AdmissionRules, samples: list[RolloutScored]
) -> None:
    assert verdict(*samples, rules=rules) is reason


def test_a_flat_group_is_admitted_if_the_chosen_advantages_learn_from_it() -> None:
    flat = [a_rollout(1.0, 0), a_rollout(1.0, 1)]
    for estimator in ("group_mean", "rloo", "reinforce_plus_plus"):
        rules = replace(RULES, advantages=AdvantageSettings(advantages=estimator))
        assert verdict(*flat, rules=rules) is DropReason.NO_SPREAD
    constant = replace(RULES, advantages=AdvantageSettings(advantages="constant"))
    assert [sample.advantage for sample in admitted(*flat, rules=constant).training] == [1.0, 1.0]
    level = replace(RULES, advantages=AdvantageSettings(advantages="constant", baseline=1.0))
    assert verdict(*flat, rules=level) is DropReason.NO_SPREAD
    assert not admitted(*flat, rules=replace(RULES, kl_in_reward=True)).has_spread


def test_a_group_of_one_is_admitted_without_an_advantage_unless_its_baseline_is_a_constant() -> None:
    prompt = a_prompt(group_size=1)
    assert [sample.advantage for sample in admitted(a_rollout(1.0, 0, prompt=prompt)).training] == [0.0]
    constant = replace(RULES, advantages=AdvantageSettings(advantages="constant", baseline=0.25))
    assert admitted(a_rollout(1.0, 0, prompt=prompt), rules=constant).training[0].advantage == 0.75
