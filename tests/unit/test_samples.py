"""Rollouts to training samples, samples to micro-batches, and what a step reports of its learning."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.schemas.errors import BadMessageError
from rollstream.schemas.prompt import Sampling
from rollstream.training.learning.bounds import ANY_MODEL, ModelBounds
from rollstream.training.learning.packing import microbatches
from rollstream.training.learning.plan import Minibatch, minibatches
from rollstream.training.learning.samples import TrainedTokens, TrainingSample, imitated, training_samples
from rollstream.training.learning.step_metrics import LearningTotals, learning_metrics
from tests.harness.builders import a_prompt, a_rollout, a_turn


def taken(scored, **fields):
    """`scored`, whose turns do not branch, as the trainer learns from it."""
    (sample,) = training_samples(
        scored.rollout, scored.scoring.reward, **{"advantage": 1.0, "lag": 0, "bounds": ANY_MODEL, **fields}
    )
    return sample


def test_a_single_turn_becomes_its_tokens_and_all_of_them_train():
    sample = taken(a_rollout(reward=1.0), advantage=0.5, lag=2)
    assert sample.prompt_token_ids.tolist() == [9, 6, 13, 5, 4, 14]
    assert sample.token_ids.tolist() == [4, 5, 6, 9, 13, 1]
    assert sample.loss_mask.all()
    assert (sample.reward, sample.advantage, sample.policy_lag, sample.max_tokens) == (1.0, 0.5, 2, 12)


def test_later_turns_follow_with_their_prompt_tokens_masked():
    second = a_turn((7, 8), prefix_turn=0, prefix_tokens=12, prompt_token_ids=np.array([20, 21], dtype=np.int32))
    sample = taken(a_rollout(turns=(a_turn(), second)))
    assert sample.token_ids.tolist() == [4, 5, 6, 9, 13, 1, 20, 21, 7, 8]
    assert sample.loss_mask.tolist() == [True] * 6 + [False] * 2 + [True] * 2
    assert sample.behavior_logprobs[6:8].tolist() == [0.0, 0.0]


def test_tokens_can_be_masked_by_the_version_that_sampled_them():
    turn = a_turn(spans=[(1, 0, 2), (3, 2, 6)])
    kept = taken(a_rollout(turns=(turn,)), trained=TrainedTokens(versions=frozenset({3})))
    assert kept.loss_mask.tolist() == [False, False, True, True, True, True]
    assert kept.weight_versions.tolist() == [1, 1, 3, 3, 3, 3]


def test_an_empty_prompt_does_not_train():
    unasked = a_rollout(turns=(a_turn(prompt_token_ids=np.zeros(0, dtype=np.int32)),))
    with pytest.raises(BadMessageError, match="empty prompt"):
        taken(unasked)


def test_max_tokens_is_the_prompts_however_many_turns_were_taken_and_at_most_what_the_model_takes():
    second = a_turn((7, 8), prefix_turn=0, prefix_tokens=12, prompt_token_ids=np.array([20, 21], dtype=np.int32))
    rollout = a_rollout(turns=(a_turn(), second), prompt=a_prompt(sampling=Sampling(max_tokens=100)))
    assert taken(rollout).max_tokens == 100
    assert taken(rollout, bounds=ModelBounds(max_tokens=64)).max_tokens == 64


def a_sample(index, prompt, completion, trained):
    generator = np.random.default_rng(index)
    mask = np.zeros(completion, dtype=np.bool_)
    mask[:trained] = True
    return TrainingSample(
        rollout_id=f"rollout-{index}",
        group_id="group",
        prompt_token_ids=generator.integers(3, 60, prompt, dtype=np.int32),
        token_ids=generator.integers(3, 60, completion, dtype=np.int32),
        behavior_logprobs=np.full(completion, -float(index), dtype=np.float32),
        loss_mask=mask,
        reward=1.0,
        advantage=float(index),
        temperature=1.0,
        max_tokens=12,
        policy_lag=0,
    )


shapes = st.tuples(st.integers(0, 3), st.lists(st.integers(7, 8), min_size=1, max_size=9)).flatmap(
    lambda pair: st.tuples(st.just(pair[0]), st.just(pair[1]), st.integers(1, len(pair[1])))
)
"""Which prompt, the tokens of the completion, how many of them train. Completions are often the same."""


def a_sample_of(index, shape):
    prompt, completion, trained = shape
    return replace(
        a_sample(index, 1, len(completion), trained),
        prompt_token_ids=np.arange(3, 5 + 2 * prompt, dtype=np.int32) + prompt,
        token_ids=np.array(completion, dtype=np.int32),
    )


def context_of(batch, place):
    """The tokens that the model sees before it predicts the token at `place`."""
    num_prompts, width = len(batch.prompt_ids), batch.input_ids.shape[1]

    def prompt(index):
        return batch.prompt_ids[index, : batch.prompt_lengths[index]].tolist()

    source = batch.sources[place]
    if source < num_prompts:
        return prompt(source)
    row, column = divmod(source - num_prompts, width)
    seen = batch.input_ids[row, : column + 1].tolist()
    return (prompt(batch.prompts[row]) if num_prompts else []) + seen


def padded_tokens(batches):
    return sum(batch.prompt_ids.size + batch.input_ids.size for batch in batches)


@given(st.lists(shapes, min_size=1, max_size=24), st.integers(1, 90), st.booleans())
def test_micro_batches_hold_every_training_token_once_after_its_context_and_within_the_budget(given, budget, share):
    samples = [a_sample_of(index, shape) for index, shape in enumerate(given)]
    batches = microbatches(Minibatch.of(samples, "dapo"), tokens=budget, share_prompts=share)
    for batch in batches:
        assert padded_tokens([batch]) <= budget or len(batch.input_ids) == 1
    found = sorted(
        (batch.advantages[place], context_of(batch, place), batch.targets[place])
        for batch in batches
        for place in range(len(batch.targets))
    )
    assert found == sorted(
        (sample.advantage, [*sample.prompt_token_ids, *sample.token_ids[:place]], sample.token_ids[place])
        for sample in samples
        for place in np.flatnonzero(sample.loss_mask)
    )
    assert sum(batch.token_weights.sum() for batch in batches) == pytest.approx(1.0, abs=1e-5)


@given(st.lists(shapes, min_size=1, max_size=16), st.integers(1, 90), st.booleans(), st.integers(1, 8))
def test_the_samples_of_a_rollout_are_in_one_micro_batch_if_their_loss_asks_for_it(given, budget, share, num_rollouts):
    samples = [
        replace(a_sample_of(index, shape), rollout_id=f"rollout-{index % num_rollouts}")
        for index, shape in enumerate(given)
    ]
    minibatch = Minibatch.of(samples, "grpo")
    batches = microbatches(minibatch, tokens=budget, share_prompts=share, whole_rollouts=True)
    places = [(samples[number].rollout_id, index) for index, batch in enumerate(batches) for number in batch.members]
    assert len(places) == len(samples)
    assert len(set(places)) == min(num_rollouts, len(samples))
    assert sum(batch.token_weights.sum() for batch in batches) == pytest.approx(1.0, abs=1e-5)
    for batch in batches:
        of_members = [samples[number] for number in batch.members]
        counted = np.bincount(batch.rollouts)
        assert sorted(counted) == sorted(
            sum(sample.num_trained_tokens for sample in of_members if sample.rollout_id == rollout)
            for rollout in {sample.rollout_id for sample in of_members}
        )


@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 4), st.integers(0, 3))
def test_minibatches_share_out_whole_rollouts(num_samples, number, num_rollouts, seed):
    samples = [replace(a_sample(index, 2, 2, 1), rollout_id=f"{index % num_rollouts}") for index in range(num_samples)]
    parts = minibatches(samples, number, "grpo", np.random.default_rng(seed))
    ids = [{sample.rollout_id for sample in part.samples} for part in parts]
    assert sum(map(len, ids)) == len(set.union(*ids)) == min(num_rollouts, num_samples)
    assert max(map(len, ids)) - min(map(len, ids)) <= 1
    assert sum(len(part.samples) for part in parts) == num_samples


def test_a_prompt_is_in_a_micro_batch_once_if_that_leaves_clearly_fewer_tokens():
    group = [a_sample_of(index, (3, [20 + index] * 9, 9)) for index in range(8)]  # prompts of 8 tokens
    (shared,) = microbatches(Minibatch.of(group, "dapo"), tokens=1000, share_prompts=True)
    (repeated,) = microbatches(Minibatch.of(group, "dapo"), tokens=1000)
    assert padded_tokens([shared]) == 8 + 8 * 8
    assert padded_tokens([repeated]) == 8 * (8 + 8)
    long = [a_sample(index, 1, 9, 9) for index in range(8)]
    (alone,) = microbatches(Minibatch.of(long, "dapo"), tokens=1000, share_prompts=True)
    assert not len(alone.prompts)


@pytest.mark.parametrize("share", [True, False])
def test_what_samples_of_a_prompt_have_in_common_from_their_start_to_the_end_of_one_is_in_a_micro_batch_once(share):
    completions = ([7, 8, 9], [7, 8, 9], [7, 8], [7, 8, 9, 9], [8, 8, 9])
    group = [a_sample_of(index, (3, completion, 2)) for index, completion in enumerate(completions)]
    (batch,) = microbatches(Minibatch.of(group, "dapo"), tokens=1000, share_prompts=share)
    held = 0 if share else 8
    assert batch.input_ids[:, held:].tolist() == [[7, 8, 9], [8, 8, 0]]
    assert len(set(batch.rollouts.tolist())) == len(group)
    other = a_sample_of(5, (2, [7, 8, 9], 2))
    (batch,) = microbatches(Minibatch.of([*group, other], "dapo"), tokens=1000, share_prompts=share)
    assert len(batch.input_ids) == 3


@given(st.integers(1, 12), st.integers(0, 12), st.integers(1, 6), st.integers(0, 3))
def test_minibatches_share_out_the_samples_evenly_and_those_without_a_training_token_too(
    num_trained, num_empty, number, seed
):
    samples = [a_sample(index, 2, 2, int(index < num_trained)) for index in range(num_trained + num_empty)]
    parts = [part.samples for part in minibatches(samples, number, "dapo", np.random.default_rng(seed))]
    assert sorted(sample.advantage for part in parts for sample in part) == [s.advantage for s in samples]
    assert len(parts) == min(number, num_trained)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for kind in (0, 1):
        counts = [sum(sample.num_trained_tokens == kind for sample in part) for part in parts]
        assert max(counts) - min(counts) <= 1


def test_the_advantages_of_a_micro_batch_are_weighed_by_turn():
    weights = np.array([0.5, 0.0, 2.0], dtype=np.float32)
    sample = replace(a_sample(3, 2, 3, 3), turn_weights=weights, loss_mask=weights > 0)
    (batch,) = microbatches(Minibatch.of([sample], "dapo"), tokens=100)
    assert batch.advantages.tolist() == [1.5, 6.0]


def test_samples_without_a_rollout_are_rollouts_of_their_own():
    alone = [imitated([3, 4], answer) for answer in ([5], [6, 7], [8, 9])]
    (batch,) = microbatches(Minibatch.of(alone, "grpo"), tokens=100)
    assert sorted(batch.token_weights) == pytest.approx([1 / 6] * 4 + [1 / 3])
    assert len(minibatches(alone, 3, "grpo", np.random.default_rng(0))) == 3


def test_a_sample_without_a_training_token_is_in_no_micro_batch_and_takes_its_share_of_the_weight():
    kept, empty = a_sample(1, 2, 2, 2), a_sample(2, 2, 2, 0)
    (batch,) = microbatches(Minibatch.of([empty, kept], "grpo"), tokens=100)
    assert batch.input_ids.tolist() == [[*kept.prompt_token_ids, *kept.token_ids[:-1]]]
    assert batch.token_weights.tolist() == [0.25, 0.25]  # half of a mean over two tokens


def test_a_step_without_a_training_token_is_refused():
    with pytest.raises(ValueError, match="none of 1 samples"):
        minibatches([a_sample(2, 2, 2, 0)], 1, "dapo", np.random.default_rng(0))


def test_learning_metrics_are_means_over_all_tokens_of_the_step():
    one = LearningTotals(tokens=2, entropy=1.0, weight=2.0, raw_weight=2.0, raw_weight_squared=2.0, weight_max=1.0)
    two = replace(one, tokens=2, entropy=3.0, weight=4.0, raw_weight=6.0, raw_weight_squared=20.0, weight_max=2.0)
    metrics = learning_metrics([one, two])
    assert metrics["entropy"] == 1.0
    assert metrics["importance_weight_mean"] == 1.5
    assert metrics["importance_weight_max"] == 2.0
    # Weights 1, 1, 2, 4: (1 + 1 + 2 + 4)² ÷ (4 · 22).
    assert metrics["effective_sample_size_ratio"] == pytest.approx(64 / 88)
