"""Turns that branch and have scores of their own have the loss and the gradient of a plain computation, in float64."""

import copy
from typing import Any

import pytest

from tests.harness.late import Late
from tests.reference.cases import PLAIN_CASES
from tests.reference.comparison import Reference, gradients, ours
from tests.reference.test_gradients import TOLERANCE

turns = Late("tests.reference.plain_turns")


@pytest.mark.parametrize("weights", [{}, {"check": 0.5, "answer/1": 0.0}])
@pytest.mark.parametrize("normalization", ["dapo", "grpo"])
def test_turns_that_branch_have_the_loss_and_the_gradient_of_a_plain_computation(
    normalization: str, weights: dict[str, float], reference: Reference
) -> None:
    groups = turns.branched_rollouts(reference.policy)
    options = {**PLAIN_CASES["reinforce"], "normalization": normalization, "minibatches": 1}
    rules: dict[str, Any] = {"credit": "turn", "turn_weights": weights}
    found, report = ours.our_gradients(reference.policy, groups, reference.directory, options, **rules)

    policy = copy.deepcopy(reference.policy)
    loss = turns.plain_turn_loss(normalization, policy, groups, weights)
    loss.backward()
    expected = {parameter_name: parameter.grad for parameter_name, parameter in policy.named_parameters()}
    assert gradients.largest_difference(found, [expected]) <= TOLERANCE
    assert report.loss == pytest.approx(float(loss.detach()), abs=TOLERANCE)
