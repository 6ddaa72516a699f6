"""Learners on a tiny real model, and samples for them. torch is imported by whoever uses them first."""

import numpy as np

from rollstream.training.learning.samples import TrainingSample
from rollstream.training.learning.settings import LearningSettings
from tests.harness.late import Late

torch = Late("torch")
transformers = Late("transformers")
learner_module = Late("rollstream.training.learning.learner")
step_module = Late("rollstream.training.learning.train_step")


def a_learner(model_path, **settings):
    values = {"device": "cpu", "threads": 1, "learning_rate": 1e-3, "warmup_steps": 0, **settings}
    return learner_module.Learner.from_model(model_path, LearningSettings(**values))


def train_step(learner, samples, *, step):
    return step_module.train_step(learner, samples, step=step)


def a_sample(index, *, prompt=5, completion=4, **fields):
    generator = np.random.default_rng(index)
    values = {
        "rollout_id": f"rollout-{index}",
        "group_id": "group",
        "prompt_token_ids": generator.integers(3, 60, prompt, dtype=np.int32),
        "token_ids": generator.integers(3, 60, completion, dtype=np.int32),
        "behavior_logprobs": generator.uniform(-5, -3, completion).astype(np.float32),
        "loss_mask": np.ones(completion, dtype=np.bool_),
        "reward": 1.0,
        "advantage": float(generator.normal()),
        "temperature": 1.0,
        "max_tokens": 12,
        "policy_lag": index % 2,
    }
    return TrainingSample(**{**values, **fields})


def eight_samples():
    return [a_sample(index, prompt=3 + index % 4, completion=2 + index) for index in range(8)]


def weights_of(learner, path):
    learner.save_weights(path)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
