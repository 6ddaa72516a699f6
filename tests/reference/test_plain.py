"""What TRL has not has the loss and the gradient of a plain computation in PyTorch, in float64."""

import copy
from typing import Any

import pytest

from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.rollout import FinishReason
from tests.harness.builders import a_prompt, a_rollout
from tests.harness.late import Late
from tests.reference.cases import CAP, HIGH, LOW
from tests.reference.comparison import Reference, gradients, ours, rollouts
from tests.reference.test_gradients import TOLERANCE

plain = Late("tests.reference.plain")

_CLIP = {"clip_low": LOW, "clip_high": HIGH}
_CASES: dict[str, dict[str, Any]] = {
    **{name: {"loss": name, "old": "behavior", **_CLIP} for name in ("grpo", "dr_grpo", "dapo", "ppo", "gspo")},
    "cispo": {"loss": "cispo", "old": "behavior", "clip_high": HIGH},
    "reinforce": {"loss": "reinforce", "importance_cap": CAP},
    "k2": {"loss": "reinforce", "importance_cap": CAP, "kl_coefficient": 0.3, "kl_estimator": "k2"},
}


@pytest.mark.parametrize("name", _CASES)
def test_an_update_has_the_loss_and_the_gradient_of_a_plain_computation(name: str, reference: Reference) -> None:
    groups = rollouts.canned_rollouts(reference.policy, temperatures=(0.7, 1.0, 1.3))
    groups[1][2] = a_rollout(None, 2, prompt=groups[1][0].rollout.prompt)
    found, report = ours.our_gradients(
        reference.policy, groups, reference.directory, {**_CASES[name], "minibatches": 1}
    )

    policy = copy.deepcopy(reference.policy)
    loss = plain.plain_loss(name, policy, gradients.a_model(reference.directory), groups)
    loss.backward()
    expected = {parameter_name: parameter.grad for parameter_name, parameter in policy.named_parameters()}
    assert gradients.largest_difference(found, [expected]) <= TOLERANCE
    assert report.loss == pytest.approx(float(loss.detach()), abs=TOLERANCE)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "reinforce"])
def test_groups_of_one_have_the_loss_and_the_gradient_of_a_plain_computation(name: str, reference: Reference) -> None:
    environments = [
        [
            a_rollout(scored.scoring.reward, prompt=_asked_once(scored.rollout.prompt, row, place), turns=turns)
            for place, scored in enumerate(group)
            if (turns := scored.rollout.turns)[-1].finish_reason is not FinishReason.LENGTH
        ]
        for row, group in enumerate(rollouts.canned_rollouts(reference.policy))
    ]
    alone = [[one] for ones in environments for one in ones]
    found, report = ours.our_gradients(reference.policy, alone, reference.directory, {**_CASES[name], "minibatches": 1})

    policy = copy.deepcopy(reference.policy)
    loss = plain.plain_loss(name, policy, gradients.a_model(reference.directory), environments, are_ones=True)
    loss.backward()
    expected = {parameter_name: parameter.grad for parameter_name, parameter in policy.named_parameters()}
    assert gradients.largest_difference(found, [expected]) <= TOLERANCE
    assert report.loss == pytest.approx(float(loss.detach()), abs=TOLERANCE)


def _asked_once(prompt: PromptSubmitted, row: int, place: int) -> PromptSubmitted:
    return a_prompt(10 * row + place, group_size=1, environment=f"environment-{row}", sampling=prompt.sampling)
