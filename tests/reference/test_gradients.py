"""Our gradients are those of TRL's own trainer object, run by its `train()`, to 1e-9 of each parameter's largest.

Each case is a step of two updates of two micro-batches each, on the rollouts of `rollouts.py`.
"""

import copy
from dataclasses import replace
from typing import Any, get_args

import pytest

from rollstream.training.learning.objective_settings import Normalization
from rollstream.training.learning.plan import Minibatch
from tests.reference.cases import CASES
from tests.reference.comparison import Reference, gradients, ours

TOLERANCE = 1e-9


@pytest.mark.parametrize("name", CASES)
def test_a_step_has_the_gradients_of_trl(name: str, reference: Reference) -> None:
    assert reference.difference(name) <= TOLERANCE


def test_in_float32_a_step_differs_by_rounding_alone(reference: Reference) -> None:
    policy = copy.deepcopy(reference.policy).float()
    options = {**CASES["together"].ours, "dtype": "float32"}
    found, _ = ours.our_gradients(policy, reference.groups, reference.directory, options)
    assert gradients.largest_difference(found, reference.theirs("together")) <= 1e-4


def test_the_head_that_stands_for_that_of_trl_differs_from_it_by_rounding_alone(reference: Reference) -> None:
    with_its_own = reference.theirs("together", own_head=True)
    assert gradients.largest_difference(reference.theirs("together"), with_its_own) <= 1e-5


@pytest.mark.parametrize("normalization", get_args(Normalization))
def test_two_accumulated_halves_of_an_update_have_the_gradient_of_the_whole(
    normalization: Normalization, reference: Reference
) -> None:
    options = {**CASES["together"].ours, "normalization": normalization}

    def gradient_of(*parts: slice) -> Any:
        learner, updates = ours.a_learner(copy.deepcopy(reference.policy), options, reference.directory)
        samples = ours.prepared(learner, ours.admitted(reference.groups, learner.settings))
        whole = Minibatch.of(samples, normalization)
        for part in parts:
            half = replace(whole, samples=whole.samples[part], token_weights=whole.token_weights[part])
            learner.forward_backward(learner.pack(half))
        learner.optim_step()
        return updates

    expected = gradient_of(slice(None))
    assert gradients.largest_difference(gradient_of(slice(0, 5), slice(5, None)), expected) <= TOLERANCE
