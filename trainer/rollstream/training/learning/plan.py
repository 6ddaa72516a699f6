"""Which samples make which optimizer update, and how much each of their tokens counts. Pure.

`S`: samples of a minibatch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rollstream.training.learning.normalization import token_weights
from rollstream.training.learning.objective_settings import Normalization
from rollstream.training.learning.samples import TrainingSample, rollout_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Minibatch:
    """The samples of one optimizer update, or a part of them: gradients of parts add up to that of the whole."""

    samples: tuple[TrainingSample, ...]
    token_weights: npt.NDArray[np.float64]
    """[S] how much the loss of each token of a sample counts in the whole update."""

    @classmethod
    def of(cls, samples: Sequence[TrainingSample], normalization: Normalization) -> "Minibatch":
        """An update of these samples alone."""
        num_tokens = np.array([sample.num_trained_tokens for sample in samples], dtype=np.int64)
        max_tokens = np.array([sample.max_tokens for sample in samples], dtype=np.int64)
        weights = token_weights(num_tokens, max_tokens, rollout_numbers(samples), normalization)
        return cls(samples=tuple(samples), token_weights=weights)


def minibatches(
    samples: Sequence[TrainingSample], number: int, normalization: Normalization, generator: np.random.Generator
) -> list[Minibatch]:
    """Split the rollouts of `samples` into `number` shuffled updates of equal size (± 1), each with a token to train.

    The samples of a rollout stay together. There are fewer updates if fewer rollouts have a token to train. A single
    update is not shuffled. Raises ValueError if no sample has a token to train.
    """
    by_number: dict[int, list[TrainingSample]] = {}
    for rollout, sample in zip(rollout_numbers(samples).tolist(), samples, strict=True):
        by_number.setdefault(rollout, []).append(sample)
    rollouts = list(by_number.values())
    num_parts = min(number, sum(map(_trains, rollouts)))
    if not num_parts:
        raise ValueError(f"none of {len(samples)} samples has a token to train: drop such groups before the step")
    if num_parts == 1:
        return [Minibatch.of(samples, normalization)]
    shuffled = [rollouts[index] for index in generator.permutation(len(rollouts))]
    # Dealt out like cards, those with a token to train first: so each part gets one, and its share of the others.
    dealt = sorted(shuffled, key=lambda rollout: not _trains(rollout))
    parts = (dealt[part::num_parts] for part in range(num_parts))
    return [Minibatch.of([sample for rollout in part for sample in rollout], normalization) for part in parts]


def _trains(rollout: Sequence[TrainingSample]) -> bool:
    return any(sample.loss_mask.any() for sample in rollout)
