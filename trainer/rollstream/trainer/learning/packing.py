"""Samples to padded micro-batches under a token budget, as numpy.

Rows are padded on the right: attention is causal, so no real token ever sees the padding and no mask is needed.
Shape legend: `B` rows, `L` longest row, `N` tokens of the micro-batch that train.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rollstream.trainer.learning.normalization import token_weights
from rollstream.trainer.learning.samples import TrainingSample
from rollstream.trainer.learning.settings import Normalization


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """What one forward and backward pass needs; the per-token arrays hold the tokens that train and no others."""

    input_ids: npt.NDArray[np.int64]
    """[B, L] padded with 0."""
    rows: npt.NDArray[np.int64]
    """[N] row of each token's sample."""
    columns: npt.NDArray[np.int64]
    """[N] position whose hidden state predicts the token."""
    targets: npt.NDArray[np.int64]
    """[N] the tokens."""
    behavior_logprobs: npt.NDArray[np.float32]
    """[N]"""
    advantages: npt.NDArray[np.float32]
    """[N] of the token's sample."""
    temperatures: npt.NDArray[np.float32]
    """[N] of the token's sample."""
    token_weights: npt.NDArray[np.float32]
    """[N] what the token's loss counts in the minibatch, see `normalization`."""
    lagged: npt.NDArray[np.bool_]
    """[N] whether an older version than the trainer's sampled any of the sample."""

    @property
    def num_tokens(self) -> int:
        """Tokens that train."""
        return len(self.targets)


def split_minibatches(
    samples: Sequence[TrainingSample], minibatches: int, generator: np.random.Generator
) -> list[list[TrainingSample]]:
    """The samples that have a token to train, shuffled into `minibatches` parts of equal size (± 1).

    Fewer parts when there are fewer samples; one part keeps their order. Raises ValueError if nothing trains.
    """
    trainable = [sample for sample in samples if sample.num_trained_tokens]
    if not trainable:
        raise ValueError(f"none of {len(samples)} samples has a token to train: drop such groups before the step")
    if minibatches == 1:
        return [trainable]
    order = generator.permutation(len(trainable))
    parts = np.array_split(order, min(minibatches, len(trainable)))
    return [[trainable[index] for index in part] for part in parts]


def microbatches(samples: Sequence[TrainingSample], *, tokens: int, normalization: Normalization) -> list[MicroBatch]:
    """One optimizer minibatch as micro-batches of at most `tokens` padded tokens (a longer sample goes alone).

    Samples are sorted by length, so that padding is rare. Each has at least one token to train.
    """
    num_tokens = np.array([sample.num_trained_tokens for sample in samples], dtype=np.int64)
    max_tokens = np.array([sample.max_tokens for sample in samples], dtype=np.int64)
    weights = token_weights(num_tokens, max_tokens, normalization)
    order = sorted(range(len(samples)), key=lambda index: samples[index].num_tokens, reverse=True)
    batches = []
    start = 0
    while start < len(order):
        longest = samples[order[start]].num_tokens
        rows = order[start : start + max(1, tokens // longest)]
        batches.append(_microbatch([samples[row] for row in rows], weights[rows]))
        start += len(rows)
    return batches


def _microbatch(samples: Sequence[TrainingSample], weights: npt.NDArray[np.float64]) -> MicroBatch:
    """`samples` [B], longest first; `weights` [B]."""
    input_ids = np.zeros((len(samples), samples[0].num_tokens), dtype=np.int64)
    columns = []
    for row, sample in enumerate(samples):
        given = len(sample.prompt_token_ids)
        input_ids[row, :given] = sample.prompt_token_ids
        input_ids[row, given : sample.num_tokens] = sample.token_ids
        columns.append(np.flatnonzero(sample.loss_mask) + given - 1)
    counts = [len(column) for column in columns]
    rows = np.repeat(np.arange(len(samples)), counts)
    positions = np.concatenate(columns)

    def per_token(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
        return np.repeat(np.asarray(values, dtype=np.float32), counts)

    return MicroBatch(
        input_ids=input_ids,
        rows=rows,
        columns=positions,
        targets=input_ids[rows, positions + 1],
        behavior_logprobs=np.concatenate([sample.behavior_logprobs[sample.loss_mask] for sample in samples]),
        advantages=per_token([sample.advantage for sample in samples]),
        temperatures=per_token([sample.temperature for sample in samples]),
        token_weights=per_token(weights),
        lagged=np.repeat([sample.policy_lag > 0 for sample in samples], counts),
    )
