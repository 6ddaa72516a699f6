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
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from rollstream.training.learning.plan import Minibatch
from rollstream.training.learning.samples import TrainingSample, rollout_numbers

_SHARING_PAYS: Final = 0.8
"""Prompts are shared if at most this part of the tokens is left: a second pass and its attention mask cost too."""


Arrays = npt.NDArray[Any]
Array = TypeVar("Array")


@dataclass(frozen=True, kw_only=True)
class MicroBatch(Generic[Array]):
    """What one forward and backward pass needs, as numpy arrays or as tensors; [N]: only the tokens that train."""

    members: tuple[int, ...]
    """Number in the minibatch of each sample of the micro-batch."""

    prompt_ids: Array
    """[G, P] prompts that rows share, padded with 0. Without such prompts G is 0."""
    prompt_lengths: Array
    """[G]"""
    prompts: Array
    """[B] which of these prompts each row continues; [0] if G is 0."""
    input_ids: Array
    """[B, L] padded with 0: the tokens of one or more samples without the last one, which predicts nothing. Their
    prompt comes first if it is not among `prompt_ids`."""
    rollouts: Array
    """[N] number of the token's rollout within the micro-batch: the sequence of a ratio of sequences."""
    sources: Array
    """[N] which position predicts the token: below G the end of that prompt, else G + row · L + column."""
    targets: Array
    """[N] the tokens."""
    behavior_logprobs: Array
    """[N]"""
    advantages: Array
    """[N] of the token's sample, times the weight of its turn."""
    temperatures: Array
    """[N] of the token's sample."""
    token_weights: Array
    """[N] how much the token's loss counts in the minibatch, see `normalization`."""
    lagged: Array
    """[N] whether the policy lag of the token's sample is above 0."""
    proximal_logprobs: Array | None = None
    """[N] under the weights before the step; None: under the current ones, which are the same."""
    reference_logprobs: Array | None = None
    """[N] under the reference model, if there is one."""


def microbatches(
    minibatch: Minibatch, *, tokens: int, share_prompts: bool = False, whole_rollouts: bool = False
) -> list[MicroBatch[Arrays]]:
    """Split one optimizer minibatch into micro-batches of at most `tokens` tokens, padding included.

    A longer sample is a micro-batch of its own. Samples are sorted so that there is little padding. Those without a
    token to train are in no micro-batch: they only count in the weights of the others' tokens. With `share_prompts`
    prompts are shared if that leaves clearly fewer tokens to compute. With `whole_rollouts` the samples of a rollout
    are in the same micro-batch, however many tokens they have.
    """
    rollouts = rollout_numbers(minibatch.samples).tolist()
    weighted = [
        _Member(sample=sample, number=number, rollout=rollouts[number], weight=float(minibatch.token_weights[number]))
        for number, sample in enumerate(minibatch.samples)
        if sample.num_trained_tokens
    ]
    blocks = _of_whole_rollouts if whole_rollouts else _single
    rows = sorted(_rows(weighted, share_prompts=False), key=lambda row: -row.length)
    batches = _split(blocks(rows), tokens)
    if share_prompts:
        shared = _split(blocks(_beside_each_other(_rows(weighted, share_prompts=True))), tokens)
        if _num_padded(shared) <= _SHARING_PAYS * _num_padded(batches):
            batches = shared
    return [_microbatch(rows) for rows in batches]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A sample, its number and its rollout's in the minibatch, and the weight of each of its tokens."""

    sample: TrainingSample
    number: int
    rollout: int
    weight: float


@dataclass(frozen=True, slots=True)
class _Row:
    """Tokens that the model computes, and the samples that they belong to."""

    prompt: bytes
    """Key of the prompt that the row shares; empty if the row holds its own prompt."""
    num_given: int
    """Tokens of the prompt that the row shares."""
    num_held: int
    """Tokens of the prompt that the row holds itself."""
    tokens: npt.NDArray[np.int32]
    members: list[_Member]

    @property
    def length(self) -> int:
        return len(self.tokens)


def _rows(weighted: Sequence[_Member], *, share_prompts: bool) -> list[_Row]:
    """As few rows as hold the tokens of all samples."""
    rows: list[_Row] = []
    of_longest = (b"", b"")
    # Backwards through the sorted tokens: what begins another sample comes right after it.
    for prompt, key, member in sorted(
        ((*_keys(member.sample), member) for member in weighted), key=lambda keyed: keyed[:2], reverse=True
    ):
        if not rows or of_longest[0] != prompt or not of_longest[1].startswith(key):
            of_longest = prompt, key
            rows.append(_row(member.sample, prompt if share_prompts else b""))
        rows[-1].members.append(member)
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


def _single(rows: Sequence[_Row]) -> list[list[_Row]]:
    return [[row] for row in rows]


def _of_whole_rollouts(rows: Sequence[_Row]) -> list[list[_Row]]:
    """The rows by what they hold parts of: those of a rollout are together, and those that share rows with it."""
    blocks: dict[int, list[_Row]] = {}
    for row in rows:
        joined = {id(block): block for member in row.members if (block := blocks.get(member.rollout))}
        whole = [*(row for block in joined.values() for row in block), row]
        blocks.update((member.rollout, whole) for row in whole for member in row.members)
    return list({id(block): block for block in blocks.values()}.values())


def _split(blocks: Sequence[list[_Row]], tokens: int) -> list[list[_Row]]:
    """Micro-batches of rows. Those of a block are in the same one."""
    batches: list[list[_Row]] = []
    prompts: set[bytes] = set()
    given = length = 0
    for block in blocks:
        own = {row.prompt for row in block}
        own_given, own_length = max(row.num_given for row in block), max(row.length for row in block)
        prompts, given, length = prompts | own, max(given, own_given), max(length, own_length)
        if not batches or len(prompts) * given + (len(batches[-1]) + len(block)) * length > tokens:
            batches.append([])
            prompts, given, length = own, own_given, own_length
        batches[-1] += block
    return batches


def _num_padded(batches: list[list[_Row]]) -> int:
    """Tokens that the model computes, padding included."""
    return sum(
        len({row.prompt for row in rows}) * max(row.num_given for row in rows)
        + len(rows) * max(row.length for row in rows)
        for rows in batches
    )


def _microbatch(rows: list[_Row]) -> MicroBatch[Arrays]:
    numbers = {prompt: index for index, prompt in enumerate(dict.fromkeys(row.prompt for row in rows if row.prompt))}
    prompts = [np.frombuffer(prompt, dtype=rows[0].tokens.dtype) for prompt in numbers]
    input_ids = _padded([row.tokens for row in rows])
    members = [(index, row, member) for index, row in enumerate(rows) for member in row.members]
    samples = [member.sample for _, _, member in members]
    trained = [np.flatnonzero(sample.loss_mask) for sample in samples]
    counts = [len(positions) for positions in trained]
    _, rollouts = np.unique([member.rollout for _, _, member in members], return_inverse=True)
    sources = [
        np.where(
            positions + row.num_held > 0,
            len(numbers) + index * input_ids.shape[1] + positions + row.num_held - 1,
            numbers.get(row.prompt, 0),
        )
        for (index, row, _), positions in zip(members, trained, strict=True)
    ]

    def per_token(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        return np.repeat(np.asarray(values, dtype=np.float64), counts)

    return MicroBatch(
        members=tuple(member.number for _, _, member in members),
        prompt_ids=_padded(prompts),
        prompt_lengths=np.array([len(prompt) for prompt in prompts], dtype=np.int64),
        prompts=np.array([numbers[row.prompt] for row in rows if row.prompt], dtype=np.int64),
        input_ids=input_ids,
        rollouts=np.repeat(rollouts, counts),
        sources=np.concatenate(sources),
        targets=np.concatenate([s.token_ids[s.loss_mask] for s in samples]).astype(np.int64),
        behavior_logprobs=np.concatenate([sample.behavior_logprobs[sample.loss_mask] for sample in samples]),
        advantages=np.concatenate([sample.token_advantages for sample in samples]),
        temperatures=per_token([sample.temperature for sample in samples]),
        token_weights=per_token([member.weight for _, _, member in members]),
        lagged=np.repeat([sample.policy_lag > 0 for sample in samples], counts),
        proximal_logprobs=_if_all_have(samples, "proximal_logprobs"),
        reference_logprobs=_if_all_have(samples, "reference_logprobs"),
    )


def _if_all_have(samples: Sequence[TrainingSample], name: str) -> Arrays | None:
    """[N] such values of the tokens that train, or None unless every sample has them."""
    found = [values[sample.loss_mask] for sample in samples if (values := getattr(sample, name)) is not None]
    return np.concatenate(found) if len(found) == len(samples) else None


def _padded(sequences: Sequence[npt.NDArray[np.integer]]) -> npt.NDArray[np.int64]:
    """[len(sequences), length of the longest], padded on the right with 0."""
    found = np.zeros((len(sequences), max(map(len, sequences), default=0)), dtype=np.int64)
    for row, sequence in zip(found, sequences, strict=True):
        row[: len(sequence)] = sequence
    return found
