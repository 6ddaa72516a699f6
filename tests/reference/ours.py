"""The same rollouts through our code: admission, advantages, plan, packing, learner."""

import copy
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from rollstream.schemas.scored import RolloutScored
from rollstream.trainer.intake.admission import AdmissionRules, Admitted, admit
from rollstream.trainer.intake.groups import Group, LogPlace, PlacedSample
from rollstream.training.learning.learner import Learner
from rollstream.training.learning.plan import minibatches
from rollstream.training.learning.reference import prepared
from rollstream.training.learning.samples import TrainingSample
from rollstream.training.learning.settings import LearningSettings
from rollstream.training.learning.step_metrics import StepReport
from rollstream.training.learning.train_step import train_step
from tests.reference.gradients import Gradients, compute_in_float64, recording
from tests.reference.theirs import NUM_UPDATES

SEED: Final = 69
"""Of the order of samples: with it the second update meets ratios beyond both bounds of the clip range."""


def a_learner(model: Any, options: Mapping[str, Any], directory: Path) -> tuple[Learner, list[Gradients]]:
    """A learner in float64 whose updates have several micro-batches, and the gradients that it will apply."""
    settings = LearningSettings(
        **{
            "minibatches": NUM_UPDATES,
            "tokens_per_microbatch": 40,
            "max_grad_norm": 1e9,
            "device": "cpu",
            "dtype": "float64",
            "seed": SEED,
            **options,
        }
    )
    optimizer, gradients = recording(model)
    learner = Learner(model, settings, device=torch.device("cpu"), optimizer=optimizer)
    if settings.kl_coefficient:
        learner.reference = Learner.from_model(directory, settings.model_copy(update={"kl_coefficient": 0.0}))
        compute_in_float64(learner.reference.model)
    return learner, gradients


def our_gradients(
    policy: Any, groups: Sequence[Sequence[RolloutScored]], directory: Path, options: Mapping[str, Any], **rules: Any
) -> tuple[list[Gradients], StepReport]:
    """The gradient of each update of one step, and its report; `options` are fields of `LearningSettings`.

    `rules` are fields of `AdmissionRules`. `directory` holds the reference model.
    """
    learner, gradients = a_learner(copy.deepcopy(policy), options, directory)
    samples = prepared(learner, admitted(groups, learner.settings, **rules))
    return gradients, train_step(learner, samples, step=0)


def admitted(
    groups: Sequence[Sequence[RolloutScored]], settings: LearningSettings, **rules: Any
) -> list[TrainingSample]:
    """The samples as the trainer takes them in."""
    found: list[TrainingSample] = []
    for scored in groups:
        group = Group(group_id=scored[0].rollout.group_id, content_hash="", group_size=len(scored))
        for one in scored:
            place = LogPlace(("demo.scored", 0), 0)
            group.samples[one.rollout.sample_index] = PlacedSample(scored=one, place=place, num_bytes=1)
        verdict = admit(group, AdmissionRules(max_policy_lag=0, advantages=settings, **rules), lambda _: 0)
        assert isinstance(verdict, Admitted), verdict
        found += verdict.training
    return found


def shuffling_like_ours(groups: Sequence[Sequence[RolloutScored]]) -> int:
    """TRL's seed with which a step of two updates has the same samples in each as ours has with `SEED`.

    Both updates must have as many tokens: where the loss is a mean over tokens, TRL divides each update by the mean of
    both, and we by its own.
    """
    samples = admitted(groups, LearningSettings())
    first, second = minibatches(samples, NUM_UPDATES, "grpo", np.random.default_rng([SEED, 0]))
    assert sum(one.num_trained_tokens for one in first.samples) == sum(one.num_trained_tokens for one in second.samples)
    chosen = {sample.rollout_id for sample in first.samples}
    wanted = {index for index, sample in enumerate(samples) if sample.rollout_id in chosen}

    def is_alike(seed: int) -> bool:
        order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))
        return set(order[: len(wanted)].tolist()) == wanted

    return next(seed for seed in count() if is_alike(seed))
