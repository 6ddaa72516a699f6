"""The demo's shape through the library alone: engine, agent, rollout manager, loop, backend, and weights back again."""

import asyncio
import contextlib
from statistics import mean

import pytest

from rollstream.engines.settings import EngineSettings, ScriptedSettings
from rollstream.local.tiny_model import write_tiny_model
from rollstream.training.learning.settings import LearningSettings
from rollstream.training.types import RLTrainingConfig
from tests.harness.late import Late

library_runs = Late("tests.harness.library_runs")
factory = Late("rollstream.training.backends.pytorch_factory")
checkpoints = Late("rollstream.training.backends.checkpoints")


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(path, seed=0, hidden=32, layers=2, heads=2, ffn=64)
    return path


def a_run(model_path, directory, engine, loop, **rollouts):
    settings = LearningSettings(loss="grpo", warmup_steps=0, threads=1)
    backend = factory.create_pytorch_backend(model_path, directory, "cpu", 0.01, loss_fn="grpo", settings=settings)
    with contextlib.closing(backend):
        return asyncio.run(asyncio.wait_for(library_runs.train(backend, engine, loop, num_prompts=64, **rollouts), 200))


async def share_of_digits(sample):
    """A reward that a model with random weights can climb: how much of the answer is digits."""
    return sum(one.isdigit() for one in sample.response) / sum(sample.loss_mask)


def test_the_reward_rises_with_a_real_engine_that_gets_each_steps_weights(model_path, tmp_path):
    engine = EngineSettings(kind="transformers", model_path=model_path, device="cpu", max_num_seqs=64)
    loop = RLTrainingConfig(num_steps=16, sync_every=1, checkpoint_every=8)
    metrics, loaded = a_run(
        model_path, tmp_path, engine, loop, reward_fn=share_of_digits, batch_size=8, n_samples_per_prompt=8
    )
    rewards = [step["reward_mean"] for step in metrics]
    assert mean(rewards[-3:]) > mean(rewards[:3]) + 0.2
    assert loaded.weight_version == 16
    # Every step trains what the weights of the step before it sampled, and both agree on the logprobs.
    assert {step["policy_lag_max"] for step in metrics} == {0.0}
    assert max(step["mismatch_kl_lag_0"] for step in metrics) < 1e-6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_16", "step_8"]


def test_between_two_syncs_rollouts_lag_behind_and_are_corrected_for_it(model_path, tmp_path):
    engine = EngineSettings(kind="transformers", model_path=model_path, device="cpu", max_num_seqs=64)
    loop = RLTrainingConfig(num_steps=4, sync_every=2, checkpoint_every=4)
    metrics, _ = a_run(
        model_path, tmp_path, engine, loop, reward_fn=share_of_digits, batch_size=4, n_samples_per_prompt=4
    )
    assert [step["policy_lag_max"] for step in metrics] == [0, 1, 0, 1]
    weights = [abs(step["importance_weight_max"] - 1) for step in metrics]
    assert max(weights[0], weights[2]) < 1e-3 < min(weights[1], weights[3])


def test_a_scripted_engine_that_gets_better_with_each_version_is_asked_scored_and_updated(model_path, tmp_path):
    scripted = ScriptedSettings(correct_ratio=0.25, correct_ratio_gain=0.25)
    engine = EngineSettings(kind="scripted", model_path=model_path, scripted=scripted)
    loop = RLTrainingConfig(num_steps=4, sync_every=1, checkpoint_every=4)
    metrics, loaded = a_run(model_path, tmp_path, engine, loop, batch_size=8, n_samples_per_prompt=8)
    rewards = [step["reward_mean"] for step in metrics]
    assert loaded.weight_version == 4
    assert rewards[0] < 0.45
    assert rewards[3] > 0.9
    assert checkpoints.latest_checkpoint(tmp_path).name == "step_4"
