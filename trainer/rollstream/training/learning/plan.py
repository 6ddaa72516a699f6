"""Which samples make which optimizer update, and how much each of their tokens counts. Pure.

`S`: samples of a minibatch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rollstream.training.learning.normalization import token_weights
from rollstream.training.learning.samples import TrainingSample
from rollstream.training.learning.settings import Normalization


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
        return cls(samples=tuple(samples), token_weights=token_weights(num_tokens, max_tokens, normalization))


def minibatches(
    samples: Sequence[TrainingSample], number: int, normalization: Normalization, generator: np.random.Generator
) -> list[Minibatch]:
    """Split `samples` into `number` shuffled updates of equal size (± 1), each with a token to train.

    There are fewer updates if fewer samples have one. A single one is not shuffled. Raises ValueError if no sample has
    a token to train.
    """
    num_parts = min(number, sum(bool(sample.num_trained_tokens) for sample in samples))
    if not num_parts:
        raise ValueError(f"none of {len(samples)} samples has a token to train: drop such groups before the step")
    if num_parts == 1:
        return [Minibatch.of(samples, normalization)]
    shuffled = [samples[index] for index in generator.permutation(len(samples))]
    # Dealt out like cards, those with a token to train first: so each part gets one, and its share of the others.
    dealt = sorted(shuffled, key=lambda sample: not sample.num_trained_tokens)
    return [Minibatch.of(dealt[part::num_parts], normalization) for part in range(num_parts)]
