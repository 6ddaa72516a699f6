"""Turns with scores of their own have the loss and the gradient of a plain computation, in float64."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rollstream.schemas.scored import RolloutScored
from tests.harness.late import Late
from tests.reference.cases import PLAIN_CASES
from tests.reference.comparison import Reference, gradients, ours
from tests.reference.test_gradients import TOLERANCE
from tests.reference.test_mistakes import Mistake, plant

turns = Late("tests.reference.plain_turns")
NO_SUMMARIES = {"reasoning": 1.0, "summarization": 0.0, "reasoning/3": 2.0}
MISTAKES = {
    "a turn is compared with all of its type": Mistake(
        "turn_credit:turn_advantages", "turn.turn_type, turn.turn_number)", "turn.turn_type, 0)", "dapo"
    ),
    "a turn whose scoring failed counts as 0": Mistake(
        "turn_credit:turn_advantages",
        "if score.reward is not None and score.turn < len(turns):",
        "score = score.model_copy(update={'reward': score.reward or 0.0})\n            if score.turn < len(turns):",
        "dapo",
    ),
    "turns of weight 0 count as trained": Mistake("samples:_sample", " and trained.weight(turn) > 0", "", "dapo"),
    "a turn without a score trains": Mistake(
        "samples:_sample", " and (of_turns is None or number in of_turns)", "", "dapo"
    ),
}


def found_by_both(
    reference: Reference, groups: Sequence[Sequence[RolloutScored]], weights: Mapping[str, float], normalization: str
) -> tuple[float, float]:
    """The difference of the gradients, and of the losses, of one update: ours and by hand."""
    found, report = ours_of(reference, groups, weights, normalization)
    policy = copy.deepcopy(reference.policy)
    loss = turns.plain_turn_loss(normalization, policy, groups, weights)
    loss.backward()
    expected = {parameter_name: parameter.grad for parameter_name, parameter in policy.named_parameters()}
    return gradients.largest_difference(found, [expected]), abs(report.loss - float(loss.detach()))


def ours_of(
    reference: Reference,
    groups: Sequence[Sequence[RolloutScored]],
    weights: Mapping[str, float],
    normalization: str = "dapo",
) -> tuple[list[Any], Any]:
    """Our gradients of one update, and the step's report."""
    options = {**PLAIN_CASES["reinforce"], "normalization": normalization, "minibatches": 1}
    rules: dict[str, Any] = {"credit": "turn", "turn_weights": weights}
    return ours.our_gradients(reference.policy, groups, reference.directory, options, **rules)


@pytest.mark.parametrize("weights", [{}, {"check": 0.5, "answer/1": 0.0}])
@pytest.mark.parametrize("normalization", ["dapo", "grpo"])
def test_turns_that_branch_have_the_loss_and_the_gradient_of_a_plain_computation(
    normalization: str, weights: dict[str, float], reference: Reference
) -> None:
    groups = turns.branched_rollouts(reference.policy)
    assert max(found_by_both(reference, groups, weights, normalization)) <= TOLERANCE


@pytest.mark.parametrize("weights", [{}, NO_SUMMARIES, {"summarization": 0.5}])
@pytest.mark.parametrize("normalization", ["dapo", "grpo"])
def test_cycles_have_the_loss_and_the_gradient_of_a_plain_computation(
    normalization: str, weights: dict[str, float], reference: Reference
) -> None:
    groups = turns.cycled_rollouts(reference.policy)
    assert max(found_by_both(reference, groups, weights, normalization)) <= TOLERANCE


def test_cycles_whose_summaries_have_no_scores_have_the_gradient_of_a_plain_computation(reference: Reference) -> None:
    groups = turns.cycled_rollouts(reference.policy, ("reasoning",))
    assert max(found_by_both(reference, groups, {"reasoning/3": 2.0}, "dapo")) <= TOLERANCE


def test_no_gradient_comes_from_the_tokens_of_a_summary_of_weight_0(reference: Reference) -> None:
    groups = turns.cycled_rollouts(reference.policy)
    others = turns.with_other_tokens(groups, "summarization")

    def difference(weights: Mapping[str, float]) -> float:
        """What it changes that summaries sampled other tokens."""
        (one,), (other,) = (ours_of(reference, asked, weights)[0] for asked in (groups, others))
        return max(float((one[name] - other[name]).abs().max()) for name in one)

    assert difference(NO_SUMMARIES) == 0.0
    assert difference({}) > 1e-3


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_credit_of_turns_is_found(
    name: str, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without scores of summaries their weight decides nothing.
    scored = ("reasoning",) if "without" in name else ("reasoning", "summarization")
    groups = turns.cycled_rollouts(reference.policy, scored)
    plant(MISTAKES[name], monkeypatch)
    assert not max(found_by_both(reference, groups, NO_SUMMARIES, MISTAKES[name].case)) <= 1e-6
