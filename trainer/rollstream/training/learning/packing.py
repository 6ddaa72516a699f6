"""Packs samples into padded micro-batches under a token budget, as numpy.

The samples of a group have the same prompt. Where it pays, a micro-batch holds each prompt once: the model computes
its keys and values once, and the rows of all its samples go on from them. Such a step takes half the time where
prompts are as long as answers.
Samples of a prompt whose tokens are the same, or begin in the same way and end earlier, share a row: what the model
computes at a position depends only on the tokens up to it. Short answers of a trained policy are often the same.
Rows are padded on the right. Attention is causal, so no real token sees the padding behind it.
Shapes: `G` prompts that rows share, `P` length of the longest of them, `B` rows, `L` length of the longest row, `N`
tokens of the micro-batch that train.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rollstream.training.learning.normalization import token_weights
from rollstream.training.learning.samples import TrainingSample
from rollstream.training.learning.settings import Normalization

_SHARING_PAYS: Final = 0.8
"""Prompts are shared if at most this part of the tokens is left: a second pass and its attention mask cost too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """What one forward and backward pass needs; arrays [N] hold only the tokens that train."""

    prompt_ids: npt.NDArray[np.int64]
    """[G, P] prompts that rows share, padded with 0. Without such prompts G is 0."""
    prompt_lengths: npt.NDArray[np.int64]
    """[G]"""
    prompts: npt.NDArray[np.int64]
    """[B] which of these prompts each row continues; [0] if G is 0."""
    input_ids: npt.NDArray[np.int64]
    """[B, L] padded with 0: the tokens of one or more samples without the last one, which predicts nothing. Their
    prompt comes first if it is not among `prompt_ids`."""
    samples: npt.NDArray[np.int64]
    """[N] number of the token's sample within the micro-batch."""
    sources: npt.NDArray[np.int64]
    """[N] which position predicts the token: below G the end of that prompt, else G + row · L + column."""
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


def microbatches(
    samples: Sequence[TrainingSample], *, tokens: int, normalization: Normalization, share_prompts: bool = False
) -> list[MicroBatch]:
    """Split one optimizer minibatch into micro-batches of at most `tokens` tokens, padding included.

    A longer sample is a micro-batch of its own. Samples are sorted so that there is little padding. Those without a
    token to train are in no micro-batch: they only count in the weights of the others' tokens. With `share_prompts`
    prompts are shared if that leaves clearly fewer tokens to compute.
    """
    num_tokens = np.array([sample.num_trained_tokens for sample in samples], dtype=np.int64)
    max_tokens = np.array([sample.max_tokens for sample in samples], dtype=np.int64)
    weights = token_weights(num_tokens, max_tokens, normalization)
    weighted = [(samples[index], float(weights[index])) for index in np.flatnonzero(num_tokens)]
    batches = _split(sorted(_rows(weighted, share_prompts=False), key=lambda row: -row.length), tokens)
    if share_prompts:
        shared = _split(_beside_each_other(_rows(weighted, share_prompts=True)), tokens)
        if _num_padded(shared) <= _SHARING_PAYS * _num_padded(batches):
            batches = shared
    return [_microbatch(rows) for rows in batches]


@dataclass(frozen=True, slots=True)
class _Row:
    """Tokens that the model computes, and the samples that they belong to, each with its weight."""

    prompt: bytes
    """Key of the prompt that the row shares; empty if the row holds its own prompt."""
    num_given: int
    """Tokens of the prompt that the row shares."""
    num_held: int
    """Tokens of the prompt that the row holds itself."""
    tokens: npt.NDArray[np.int32]
    members: list[tuple[TrainingSample, float]]

    @property
    def length(self) -> int:
        return len(self.tokens)


def _rows(weighted: Sequence[tuple[TrainingSample, float]], *, share_prompts: bool) -> list[_Row]:
    """As few rows as hold the tokens of all samples."""
    rows: list[_Row] = []
    of_longest = (b"", b"")
    # Backwards through the sorted tokens: what begins another sample comes right after it.
    for prompt, key, sample, weight in sorted(
        ((*_keys(sample), sample, weight) for sample, weight in weighted), key=lambda keyed: keyed[:2], reverse=True
    ):
        if not rows or of_longest[0] != prompt or not of_longest[1].startswith(key):
            of_longest = prompt, key
            rows.append(_row(sample, prompt if share_prompts else b""))
        rows[-1].members.append((sample, weight))
    return rows


def _keys(sample: TrainingSample) -> tuple[bytes, bytes]:
    return sample.prompt_token_ids.tobytes(), sample.token_ids[:-1].tobytes()


def _row(sample: TrainingSample, shared_prompt: bytes) -> _Row:
    """The row of the longest of its samples."""
    given, tokens = len(sample.prompt_token_ids), sample.token_ids[:-1]
    if shared_prompt:
        return _Row(shared_prompt, num_given=given, num_held=0, tokens=tokens, members=[])
    return _Row(b"", 0, num_held=given, tokens=np.concatenate([sample.prompt_token_ids, tokens]), members=[])


def _beside_each_other(rows: Sequence[_Row]) -> list[_Row]:
    """The rows of a prompt one after another, and prompts with long rows first."""
    longest: dict[bytes, int] = {}
    for row in rows:
        longest[row.prompt] = max(longest.get(row.prompt, 0), row.length)
    return sorted(rows, key=lambda row: (-longest[row.prompt], -row.num_given, row.prompt, -row.length))


def _split(rows: Sequence[_Row], tokens: int) -> list[list[_Row]]:
    batches: list[list[_Row]] = []
    prompts: set[bytes] = set()
    given = length = 0
    for row in rows:
        prompts.add(row.prompt)
        given, length = max(given, row.num_given), max(length, row.length)
        if not batches or len(prompts) * given + (len(batches[-1]) + 1) * length > tokens:
            batches.append([])
            prompts, given, length = {row.prompt}, row.num_given, row.length
        batches[-1].append(row)
    return batches


def _num_padded(batches: list[list[_Row]]) -> int:
    """Tokens that the model computes, padding included."""
    return sum(
        len({row.prompt for row in rows}) * max(row.num_given for row in rows)
        + len(rows) * max(row.length for row in rows)
        for rows in batches
    )


def _microbatch(rows: list[_Row]) -> MicroBatch:
    numbers = {prompt: index for index, prompt in enumerate(dict.fromkeys(row.prompt for row in rows if row.prompt))}
    prompts = [np.frombuffer(prompt, dtype=rows[0].tokens.dtype) for prompt in numbers]
    input_ids = _padded([row.tokens for row in rows])
    members = [(index, row, *member) for index, row in enumerate(rows) for member in row.members]
    samples = [sample for _, _, sample, _ in members]
    trained = [np.flatnonzero(sample.loss_mask) for sample in samples]
    counts = [len(positions) for positions in trained]
    sources = [
        np.where(
            positions + row.num_held > 0,
            len(numbers) + index * input_ids.shape[1] + positions + row.num_held - 1,
            numbers.get(row.prompt, 0),
        )
        for (index, row, _, _), positions in zip(members, trained, strict=True)
    ]

    def per_token(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
        return np.repeat(np.asarray(values, dtype=np.float32), counts)

    return MicroBatch(
        prompt_ids=_padded(prompts),
        prompt_lengths=np.array([len(prompt) for prompt in prompts], dtype=np.int64),
        prompts=np.array([numbers[row.prompt] for row in rows if row.prompt], dtype=np.int64),
        input_ids=input_ids,
        samples=np.repeat(np.arange(len(samples)), counts),
        sources=np.concatenate(sources),
        targets=np.concatenate([s.token_ids[s.loss_mask] for s in samples]).astype(np.int64),
        behavior_logprobs=np.concatenate([sample.behavior_logprobs[sample.loss_mask] for sample in samples]),
        advantages=per_token([sample.advantage for sample in samples]),
        temperatures=per_token([sample.temperature for sample in samples]),
        token_weights=per_token([weight for _, _, _, weight in members]),
        lagged=np.repeat([sample.policy_lag > 0 for sample in samples], counts),
    )


def _padded(sequences: Sequence[npt.NDArray[np.integer]]) -> npt.NDArray[np.int64]:
    """[len(sequences), length of the longest], padded on the right with 0."""
    found = np.zeros((len(sequences), max(map(len, sequences), default=0)), dtype=np.int64)
    for row, sequence in zip(found, sequences, strict=True):
        row[: len(sequence)] = sequence
    return found
