"""Packs samples into padded micro-batches under a token budget, as numpy.

Rows are padded on the right. Attention is causal, so no real token sees the padding and no attention mask is needed.
Shapes: `B` rows, `L` length of the longest row, `N` tokens of the micro-batch that train.
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
    """What one forward and backward pass needs; arrays [N] hold only the tokens that train."""

    input_ids: npt.NDArray[np.int64]
    """[B, L] padded with 0."""
    rows: npt.NDArray[np.int64]
    """[N] row of each token's sample."""
    columns: npt.NDArray[np.int64]
    """[N] position whose hidden state predicts the token, i.e. the one before it."""
    targets: npt.NDArray[np.int64]
    """[N] the tokens."""
    behavior_logprobs: npt.NDArray[np.float32]
    """[N]"""
    advantages: npt.NDArray[np.float32]
    """[N] of the token's sample."""
    temperatures: npt.NDArray[np.float32]
    """[N] of the token's sample."""
    token_weights: npt.NDArray[np.float32]
    """[N] how much the token's loss counts in the minibatch, see `normalization`."""
    lagged: npt.NDArray[np.bool_]
    """[N] whether the policy lag of the token's sample is above 0."""

    @property
    def num_tokens(self) -> int:
        """Tokens that train."""
        return len(self.targets)


def split_minibatches(
    samples: Sequence[TrainingSample], minibatches: int, generator: np.random.Generator
) -> list[list[TrainingSample]]:
    """Split `samples` into `minibatches` shuffled parts of equal size (± 1), each with a token to train.

    There are fewer parts if fewer samples have one. A single part is not shuffled. Raises ValueError if no sample has
    a token to train.
    """
    num_parts = min(minibatches, sum(bool(sample.num_trained_tokens) for sample in samples))
    if not num_parts:
        raise ValueError(f"none of {len(samples)} samples has a token to train: drop such groups before the step")
    if num_parts == 1:
        return [list(samples)]
    shuffled = [samples[index] for index in generator.permutation(len(samples))]
    # Dealt out like cards, those with a token to train first: so each part gets one, and its share of the others.
    dealt = sorted(shuffled, key=lambda sample: not sample.num_trained_tokens)
    return [dealt[part::num_parts] for part in range(num_parts)]


def microbatches(samples: Sequence[TrainingSample], *, tokens: int, normalization: Normalization) -> list[MicroBatch]:
    """Split one optimizer minibatch into micro-batches of at most `tokens` tokens, padding included.

    A longer sample is a micro-batch of its own. Samples are sorted by length, so that there is little padding. Those
    without a token to train are in no micro-batch: they only count in the weights of the others' tokens.
    """
    num_tokens = np.array([sample.num_trained_tokens for sample in samples], dtype=np.int64)
    max_tokens = np.array([sample.max_tokens for sample in samples], dtype=np.int64)
    weights = token_weights(num_tokens, max_tokens, normalization)
    order = sorted(np.flatnonzero(num_tokens), key=lambda index: samples[index].num_tokens, reverse=True)
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
