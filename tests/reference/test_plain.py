"""What TRL has not has the loss and the gradient of a plain computation in PyTorch, in float64."""

import pytest

from tests.harness.builders import a_rollout
from tests.reference.cases import PLAIN_CASES
from tests.reference.comparison import Reference, rollouts
from tests.reference.test_gradients import TOLERANCE


@pytest.mark.parametrize("name", PLAIN_CASES)
def test_an_update_has_the_loss_and_the_gradient_of_a_plain_computation(name: str, reference: Reference) -> None:
    groups = rollouts.canned_rollouts(reference.policy, temperatures=(0.7, 1.0, 1.3))
    groups[1][2] = a_rollout(None, 2, prompt=groups[1][0].rollout.prompt)
    difference, of_losses = reference.difference_from_plain(name, groups)
    assert difference <= TOLERANCE
    assert of_losses <= TOLERANCE


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "reinforce"])
def test_groups_of_one_have_the_loss_and_the_gradient_of_a_plain_computation(name: str, reference: Reference) -> None:
    environments = rollouts.canned_ones(reference.policy)
    difference, of_losses = reference.difference_from_plain(name, environments, are_ones=True)
    assert difference <= TOLERANCE
    assert of_losses <= TOLERANCE
