"""The gradient of a minibatch in float64, however its samples are packed and its rollouts are taken apart."""

from dataclasses import replace

import numpy as np
import pytest

from rollstream.local.tiny_model import write_tiny_model
from rollstream.training.learning.advantages import with_advantages
from rollstream.training.learning.bounds import ANY_MODEL
from rollstream.training.learning.objective_settings import ObjectiveSettings
from rollstream.training.learning.plan import Minibatch
from rollstream.training.learning.samples import TrainedTokens, training_samples
from rollstream.training.learning.settings import LearningSettings
from tests.harness.builders import a_rollout, a_turn
from tests.harness.late import Late
from tests.harness.learners import a_learner, a_sample

torch = Late("torch")

BEHAVIOR = {"old": "behavior", "clip_high": 3.0}  # a ratio that is far from 1
OBJECTIVES = {
    **{name: {"loss": name, **BEHAVIOR} for name in ("grpo", "dr_grpo", "dapo", "gspo", "cispo")},
    "reinforce": {"loss": "reinforce"},
    **{name: {"correction": name, "importance_cap": 50.0} for name in ("sequence", "mask_sequence", "icepop")},
}
OF_SEQUENCES = ("gspo", "sequence", "mask_sequence")
TOLERANCE = 1e-6  # of the largest; transformers computes norms in float32, whatever the dtype
RANDOM = np.random.default_rng(3)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(path, seed=0, hidden=32, layers=2, heads=2, ffn=64)
    return path


def gradient(model_path, samples, **settings):
    """Number of micro-batches, loss and gradient."""
    learner = a_learner(model_path, dtype="float64", **settings)
    batches = learner.pack(Minibatch.of(samples, learner.settings.resolved_normalization))
    loss = learner.forward_backward(batches)
    gradients = [parameter.grad.flatten() for parameter in learner.model.parameters()]
    return len(batches), float(loss), torch.cat(gradients)


def check_same(found, expected):
    assert found[1] == pytest.approx(expected[1], abs=TOLERANCE)
    largest = float(expected[2].abs().max())
    assert largest > 1e-3
    assert float((found[2] - expected[2]).abs().max()) <= TOLERANCE * largest


def logprobs(number):
    return RANDOM.uniform(-4.5, -3.5, number).astype(np.float32)


def a_group():
    """Eight samples of a prompt: two answers are the same, one begins another, one is masked, one is weighed."""
    prompt = np.arange(3, 23, dtype=np.int32)
    answers = [RANDOM.integers(3, 60, length).astype(np.int32) for length in (5, 3, 7, 4, 6, 5, 2, 4)]
    answers[1], answers[2] = answers[0].copy(), answers[0][:3].copy()
    samples = [
        a_sample(
            index,
            prompt_token_ids=prompt,
            completion=len(answer),
            token_ids=answer,
            behavior_logprobs=logprobs(len(answer)),
        )
        for index, answer in enumerate(answers)
    ]
    samples[3] = replace(samples[3], loss_mask=np.zeros(4, dtype=np.bool_))
    samples[4] = replace(samples[4], turn_weights=np.array([0.5, 0.5, 0.5, 2, 2, 2], dtype=np.float32))
    return samples


@pytest.mark.parametrize("name", OBJECTIVES)
def test_one_micro_batch_of_eight_is_eight_of_one_and_packed_ones_and_those_that_share_their_prompt(model_path, name):
    group, settings = a_group(), OBJECTIVES[name]
    whole = gradient(model_path, group, **settings, tokens_per_microbatch=10_000, share_prompts=False)
    assert whole[0] == 1
    for budget, share, least in ((1, False, 5), (60, False, 2), (10_000, True, 1), (30, True, 2)):
        found = gradient(model_path, group, **settings, tokens_per_microbatch=budget, share_prompts=share)
        assert found[0] >= least
        check_same(found, whole)


@pytest.mark.parametrize("name", OF_SEQUENCES)
def test_an_objective_of_ones_own_is_the_same_as_one_of_the_settings(model_path, name):
    samples = [a_sample(index, rollout_id="one", behavior_logprobs=logprobs(4)) for index in range(3)]
    settings = OBJECTIVES[name]
    learner = a_learner(model_path, dtype="float64", tokens_per_microbatch=1)
    objective = ObjectiveSettings(**settings)
    batches = learner.pack(Minibatch.of(samples, objective.resolved_normalization), objective)
    loss = float(learner.forward_backward(batches, objective))
    found = torch.cat([parameter.grad.flatten() for parameter in learner.model.parameters()])
    check_same((1, loss, found), gradient(model_path, samples, **settings))


def a_turn_of(sampled, given, **fields):
    ids = np.array(given, dtype=np.int32)
    values = {"prompt_token_ids": ids, "behavior_logprobs": logprobs(len(sampled))}
    return a_turn(sampled, **{**values, **fields})


def told_in_two_ways():
    """A rollout of three turns, each of which extends the one before, and the same turns as branches."""
    first = a_turn_of([11, 12, 13], [3, 4, 5, 6], turn_type="reasoning")
    second = a_turn_of([14, 15], [7, 8], prefix_turn=0, prefix_tokens=7, turn_type="summarization")
    third = a_turn_of([16, 17, 18, 1], [9], prefix_turn=1, prefix_tokens=11, turn_type="reasoning", turn_number=1)
    whole = (first, second, third)
    # The second turn repeats the first one's last token as its prompt; the third repeats all that came before.
    before = [3, 4, 5, 6, 11, 12, 13, 7, 8, 14, 15, 9]
    apart = (
        first,
        second.model_copy(update={"prefix_tokens": 6, "prompt_token_ids": np.array([13, 7, 8], dtype=np.int32)}),
        third.model_copy(
            update={"prefix_turn": None, "prefix_tokens": 0, "prompt_token_ids": np.array(before, dtype=np.int32)}
        ),
    )
    return whole, apart


@pytest.mark.parametrize("budget", [1, 10_000])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_rollout_of_three_samples_is_the_same_as_one(model_path, name, budget):
    weights = TrainedTokens(turn_weights={"reasoning/1": 0.5})
    whole, apart = (
        training_samples(a_rollout(turns=turns).rollout, 1.0, advantage=1.5, lag=0, bounds=ANY_MODEL, trained=weights)
        for turns in told_in_two_ways()
    )
    assert (len(whole), len(apart)) == (1, 3)
    others = [a_sample(index, completion=3 + index, behavior_logprobs=logprobs(3 + index)) for index in range(3)]
    others[2] = replace(others[2], loss_mask=np.zeros(5, dtype=np.bool_))
    expected = gradient(model_path, [*whole, *others], **OBJECTIVES[name], tokens_per_microbatch=10_000)
    found = gradient(model_path, [others[0], *apart, *others[1:]], **OBJECTIVES[name], tokens_per_microbatch=budget)
    # Where a rollout is one sequence, its samples are in the same micro-batch.
    assert found[0] == (1 if budget > 1 else 3 if name in OF_SEQUENCES else 5)
    check_same(found, expected)


def ones(rewards, environment, *, first=0):
    return [
        a_sample(
            first + place,
            group_id=f"{environment}-{place}",
            compared_in=environment,
            reward=reward,
            completion=3 + place,
            behavior_logprobs=np.linspace(-4.5, -3.5, 3 + place, dtype=np.float32),
        )
        for place, reward in enumerate(rewards)
    ]


def by_hand(samples, *advantages):
    return [replace(sample, advantage=advantage) for sample, advantage in zip(samples, advantages, strict=True)]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_gradient_of_groups_of_one_is_that_of_their_advantages_by_hand_in_any_order(model_path, name):
    chat, code = ones((1.0, -1.0, 1.0), "chat"), ones((0.5, 0.0), "code", first=3)
    # Each less the mean of the others of its environment: 1 - 0, -1 - 1, 1 - 0; 0.5 - 0, 0 - 0.5.
    expected = gradient(
        model_path, by_hand([*chat, *code], 1.0, -2.0, 1.0, 0.5, -0.5), **OBJECTIVES[name], tokens_per_microbatch=10_000
    )
    mixed = with_advantages([code[1], chat[2], chat[0], code[0], chat[1]], LearningSettings())
    check_same(gradient(model_path, mixed, **OBJECTIVES[name], tokens_per_microbatch=30), expected)
    # As much more for every answer of an environment says nothing of any of them.
    kinder = with_advantages([*ones((4.0, 2.0, 4.0), "chat"), *code], LearningSettings())
    check_same(gradient(model_path, kinder, **OBJECTIVES[name], tokens_per_microbatch=30), expected)
