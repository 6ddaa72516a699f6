"""Credit by turns: which turns are compared with each other, and what a group trains of them."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from rollstream.schemas.failure import FailureCode
from rollstream.schemas.rollout import FinishReason, Turn
from rollstream.schemas.scored import RolloutScored, TurnScore
from rollstream.trainer.intake.admission import AdmissionRules, Admitted, admit
from rollstream.trainer.intake.groups import DropReason
from rollstream.trainer.settings import TrainerSettings
from rollstream.training.learning.turn_credit import turn_advantages
from tests.harness.builders import a_failure, a_rollout, a_scoring, a_turn
from tests.harness.cycles import a_cycled, cycle_turns
from tests.unit.test_admission import LAGS, a_complete_group

RULES = AdmissionRules(max_policy_lag=2, credit="turn")
TOO_LATE = a_failure("late", FailureCode.TIMEOUT)


def a_turn_of(number: int, turn_type: str = "reasoning") -> Turn:
    return a_turn([4, 5], turn_type=turn_type, turn_number=number)


def scored(index: int, *rewards: float | None, reward: float = 1.0) -> RolloutScored:
    """A sample of reasoning turns 1, 2, … with these scores, and a summary after each; None: its scoring failed."""
    turns = [turn for number, _ in enumerate(rewards, 1) for turn in (a_turn_of(number), a_turn_of(number, "summary"))]
    scores = tuple(
        TurnScore(turn=2 * place, reward=one, failure=TOO_LATE if one is None else None)
        for place, one in enumerate(rewards)
    )
    return a_rollout(reward, index, turns=tuple(turns), scoring=a_scoring(reward, turn_scores=scores))


def test_a_turn_is_compared_with_the_groups_turns_of_its_type_and_number():
    # Turn 1: 1, 0, 0.5 with mean 0.5. Turn 2: 1, 0 with mean 0.5, the third rollout has none.
    found = turn_advantages([scored(0, 1.0, 1.0), scored(1, 0.0, 0.0), scored(2, 0.5)])
    assert found == [{0: 0.5, 2: 0.5}, {0: -0.5, 2: -0.5}, {0: 0.0}]


def test_a_turn_whose_scoring_failed_is_neither_compared_nor_trained():
    found = turn_advantages([scored(0, 1.0, None), scored(1, 0.0, 1.0), scored(2, None, 0.0)])
    assert found == [{0: 0.5}, {0: -0.5, 2: 0.5}, {2: -0.5}]


def test_a_cell_whose_scores_are_equal_drops_out_unless_flat_ones_are_wanted():
    group = [scored(0, 1.0, 0.0), scored(1, 1.0, 1.0)]
    assert turn_advantages(group) == [{2: -0.5}, {2: 0.5}]
    assert turn_advantages(group, keeps_flat=True) == [{0: 0.0, 2: -0.5}, {0: 0.0, 2: 0.5}]
    assert turn_advantages([scored(0, 0.1, 1.0), scored(1, 0.1)]) == [{}, {}], "a turn alone has nobody to compare with"


def test_a_score_of_a_turn_that_does_not_exist_is_passed_over():
    stranger = a_rollout(1.0, 0, scoring=a_scoring(1.0, turn_scores=(TurnScore(turn=7, reward=1.0),)))
    assert turn_advantages([stranger, stranger]) == [{}, {}]


def test_a_group_trains_each_turn_at_its_own_advantage_and_no_turn_without_score():
    found = admit(a_complete_group([scored(0, 1.0), scored(1, 0.0)]), RULES, LAGS.get)
    assert isinstance(found, Admitted)
    assert [sample.token_advantages.tolist() for sample in found.training if sample.num_trained_tokens] == [
        [0.5, 0.5],
        [-0.5, -0.5],
    ]
    weighed = replace(RULES, turn_weights={"reasoning/1": 0.0})
    assert admit(a_complete_group([scored(0, 1.0), scored(1, 0.0)]), weighed, LAGS.get) is DropReason.UNTRAINABLE


def cycled(index: int, *rewards: float | None) -> RolloutScored:
    """A sample of three cycles of the agent `reasoning_cache`, of which each turn was scored."""
    scores = tuple(
        TurnScore(turn=number, reward=reward, failure=TOO_LATE if reward is None else None)
        for number, reward in enumerate(rewards)
    )
    return a_cycled(7, "demo", sample_index=index, scoring=a_scoring(turn_scores=scores))


def test_three_cycles_are_six_samples_of_one_rollout_each_at_its_own_advantage_and_weight():
    group = [
        cycled(0, 1.0, 1.0, 1.0, 0.5, 1.0, 0.0),
        cycled(1, 0.0, 1.0, 1.0, None, None, 0.0),
        cycled(2, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0),
    ]
    weights = {"reasoning": 1.0, "summarization": 0.0, "reasoning/3": 2.0}
    found = admit(a_complete_group(group), replace(RULES, turn_weights=weights), LAGS.get)
    assert isinstance(found, Admitted)
    assert len(found.training) == 18
    assert len({sample.rollout_id for sample in found.training}) == 3
    # Reasoning 1: 1, 0, 0. Reasoning 2 has no spread. Reasoning 3: 1 and 0, at twice the weight; one has no score.
    of_turns = [sorted(set(sample.token_advantages.tolist())) for sample in found.training]
    third = pytest.approx([-1 / 3])
    assert of_turns[:6] == [pytest.approx([2 / 3]), [], [], [], [1.0], []]
    assert of_turns[6:12] == [third, [], [], [], [], []]
    assert of_turns[12:] == [third, [], [], [], [-1.0], []]


@pytest.mark.parametrize(("train_truncated", "trained"), [(False, []), (True, [-0.5])])
def test_reasoning_that_was_cut_off_counts_in_the_mean_and_the_turns_after_it_train(train_truncated, trained):
    cut = a_turn(turn_type="reasoning", turn_number=1, finish_reason=FinishReason.LENGTH)
    turns = (cut, *cycle_turns(3)[1:])
    scores = tuple(TurnScore(turn=number, reward=reward) for number, reward in ((0, 0.0), (4, 1.0)))
    first = a_cycled(7, "demo", sample_index=0, turns=turns, scoring=a_scoring(turn_scores=scores))
    rules = replace(RULES, train_truncated=train_truncated)
    found = admit(a_complete_group([first, cycled(1, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)]), rules, LAGS.get)
    assert isinstance(found, Admitted)
    of_turns = [sorted(set(sample.token_advantages.tolist())) for sample in found.training]
    assert of_turns == [trained, [], [], [], [0.5], [], [0.5], [], [], [], [-0.5], []]


def test_cycles_without_spread_in_any_cell_are_dropped_whatever_their_rewards_are():
    flat = [cycled(index, 0.0, 1.0, 0.5, 1.0, 1.0, 0.0) for index in range(3)]
    assert admit(a_complete_group(flat), RULES, LAGS.get) is DropReason.NO_SPREAD


def test_a_group_without_spread_in_any_turn_is_dropped_although_its_rewards_have_spread():
    flat = [scored(0, 1.0, reward=1.0), scored(1, 1.0, reward=0.0)]
    assert admit(a_complete_group(flat), RULES, LAGS.get) is DropReason.NO_SPREAD
    assert isinstance(admit(a_complete_group(flat), replace(RULES, credit="rollout"), LAGS.get), Admitted)
    kept = admit(a_complete_group(flat), replace(RULES, train_without_spread=True), LAGS.get)
    assert isinstance(kept, Admitted)
    assert not kept.has_spread
    assert [sample.num_trained_tokens for sample in kept.training] == [2, 0, 2, 0]


@pytest.mark.parametrize(
    ("learning", "said"),
    [
        ({"advantages": "rloo"}, "group_mean"),
        ({"scale_advantages": "batch"}, "scale_advantages 'batch'"),
        ({"kl_coefficient": 0.1, "kl_in": "reward", "kl_estimator": "k1"}, "kl_in"),
    ],
)
def test_credit_by_turns_refuses_what_compares_rollouts(learning, said, tmp_path):
    with pytest.raises(ValidationError, match=said):
        TrainerSettings(run="demo", model="policy", model_path=tmp_path, credit="turn", learning=learning)
