"""Advantages of a step's whole batch, as numpy. `G`: samples of one group, `R`: rollouts of the batch.

The baseline of a reward comes from its group; what is divided by may come from the batch. A rollout counts once,
however many samples it became.

A group of one has nobody to compare itself with. Its baseline comes from the other groups of one of its environment in
the step: their mean reward, which does not depend on what this one answered, so that the gradient is unbiased. It is
that of the step alone: a running mean would be state to restore, and would lag behind a policy that improves.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rollstream.schemas.errors import RewardError
from rollstream.training.learning.samples import TrainingSample, rollout_numbers
from rollstream.training.learning.settings import AdvantageSettings, LearningSettings

_STD_EPSILON = 1e-4  # as in TRL
_ROUNDING = 16 * float(np.finfo(np.float64).eps)


def group_advantages(rewards: npt.ArrayLike, settings: AdvantageSettings) -> npt.NDArray[np.float64]:
    """rewards [G] → advantages [G], up to what the batch adds: 0 means that nothing is learned from the sample.

    - group_mean: reward - mean. GRPO, DeepSeekMath (arXiv 2402.03300) section 4.1.2.
    - rloo: reward - mean of the others. RLOO, Kool et al. 2019; arXiv 2402.14740.
    - reinforce_plus_plus: reward - mean, which the batch normalizes. REINFORCE++ (arXiv 2501.03262), with baseline.
    - constant: reward - the settings' baseline.

    With scale_advantages=group it is divided by the group's sample standard deviation, GRPO's; Dr. GRPO (arXiv
    2503.20783) section 3.2: that favors groups that are nearly all right or all wrong.
    But for `constant`, one sample alone has advantage 0; so has a reward that differs from the mean only by rounding.
    Raises ValueError for an empty group or a reward that is not finite.
    """
    group_rewards = np.asarray(rewards, dtype=np.float64)
    if group_rewards.ndim != 1 or group_rewards.size == 0:
        raise ValueError(f"expected the rewards of one group, at least one, got shape {group_rewards.shape}")
    if not np.isfinite(group_rewards).all():
        raise ValueError(f"rewards must be finite, got {group_rewards.tolist()}: a sample without reward is left out")
    if settings.advantages == "constant":
        return group_rewards - settings.baseline
    size = group_rewards.size
    centered: npt.NDArray[np.float64] = group_rewards - group_rewards.mean()
    centered[np.abs(centered) <= _ROUNDING * np.abs(group_rewards).max()] = 0.0
    if settings.advantages == "rloo":
        # The mean of the others is (sum - reward) / (size - 1).
        centered *= size / max(1, size - 1)
    return centered / (_std(group_rewards) + _STD_EPSILON) if settings.scale_advantages == "group" else centered


def advantages_of_ones(rewards: npt.ArrayLike, settings: AdvantageSettings) -> npt.NDArray[np.float64]:
    """rewards [G] of groups of one of one environment → advantages [G]: reward - mean of the others.

    With `constant` it is reward - baseline, as in every group. With scale_advantages=group they are divided by the
    standard deviation of these rewards. One alone has advantage 0. Errors as of `group_advantages`.
    """
    is_constant = settings.advantages == "constant"
    return group_advantages(rewards, settings if is_constant else settings.model_copy(update={"advantages": "rloo"}))


def batch_advantages(
    rewards: npt.ArrayLike,
    groups: Sequence[str],
    settings: AdvantageSettings,
    compared_in: Sequence[str | None] | None = None,
) -> npt.NDArray[np.float64]:
    """rewards [R], the group of each → advantages [R].

    `compared_in`: the environment of each group of one, None for the samples of other groups; without it each sample
    is compared with its group alone.
    With scale_advantages=batch they are divided by the standard deviation of all rewards (arXiv 2508.08221), as in
    TRL. `reinforce_plus_plus`: by that of the advantages, whose mean is 0.
    """
    batch_rewards = np.asarray(rewards, dtype=np.float64)
    ones = [None] * len(groups) if compared_in is None else compared_in
    members_of: dict[tuple[str | None, str], list[int]] = {}
    for place, (group, one) in enumerate(zip(groups, ones, strict=True)):
        members_of.setdefault((one, group if one is None else ""), []).append(place)
    advantages = np.empty_like(batch_rewards)
    for members in members_of.values():
        of_members = group_advantages if ones[members[0]] is None else advantages_of_ones
        advantages[members] = of_members(batch_rewards[members], settings)
    if settings.advantages == "reinforce_plus_plus":
        return advantages / (_std(advantages) + _STD_EPSILON)
    return advantages / (_std(batch_rewards) + _STD_EPSILON) if settings.scale_advantages == "batch" else advantages


def with_advantages(samples: Sequence[TrainingSample], settings: LearningSettings) -> list[TrainingSample]:
    """The samples of a step's whole batch with their advantages. Where turns have their own, those stay.

    With kl_in=reward a rollout's reward is lowered by kl_coefficient · Σ (log behavior - log reference) over its tokens
    that train: the estimator k1, whose mean is KL(behavior ‖ reference). Raises `RewardError` for a sample whose
    reward is null or not finite.
    """
    for sample in samples:
        if sample.reward is None or not math.isfinite(sample.reward):
            raise RewardError(
                f"rollout {sample.rollout_id} has reward {sample.reward}: a reward must be a finite number; leave "
                "samples without one out of the step"
            )
    numbers = rollout_numbers(samples)
    firsts = [samples[place] for place in np.unique(numbers, return_index=True)[1]]
    rewards = np.array([first.reward for first in firsts], dtype=np.float64)
    if settings.kl_reward_coefficient:
        rewards -= settings.kl_reward_coefficient * np.bincount(numbers, weights=[_k1(sample) for sample in samples])
    groups, ones = [first.group_id for first in firsts], [first.compared_in for first in firsts]
    advantages = batch_advantages(rewards, groups, settings, ones).tolist()
    return [
        one if one.has_turn_advantages else replace(one, advantage=advantages[number])
        for one, number in zip(samples, numbers, strict=True)
    ]


def _k1(sample: TrainingSample) -> float:
    if not sample.num_trained_tokens:
        return 0.0
    if sample.reference_logprobs is None:
        raise ValueError(f"rollout {sample.rollout_id} has no reference_logprobs, which kl_in='reward' needs")
    return float((sample.behavior_logprobs - sample.reference_logprobs)[sample.loss_mask].sum(dtype=np.float64))


def _std(values: npt.NDArray[np.float64]) -> float:
    """Sample standard deviation; of a single value 0, which leaves its advantage of 0 as it is."""
    return float(values.std(ddof=1)) if values.size > 1 else 0.0
