"""The canned rollouts of one step, as our records and as TRL's columns.

Three groups of four samples at temperature 0.7. A quarter of the samples is cut off; three have the result of a tool
between two turns, which does not train; two answers are the same. Behavior logprobs are the policy's and noise, so
importance ratios of tokens and of sequences lie on both sides of every bound.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from rollstream.schemas.prompt import PromptSubmitted, Sampling
from rollstream.schemas.rollout import FinishReason, Turn
from rollstream.schemas.scored import RolloutScored
from tests.harness.builders import a_prompt, a_rollout, a_turn

TEMPERATURE: Final = 0.7
MAX_TOKENS: Final = 12
GROUP_SIZE: Final = 4
EOS: Final = 1
_NOISE: Final = 0.9
# Of each sample: sampled tokens of its turns, and given ones between them; whether it was cut off; its reward.
_SHAPES: Final = (
    (((3,), False, 1.0), ((12,), True, 0.5), ((4, 3, 3), False, 0.0), ((10,), False, 0.25)),
    (((6,), False, 0.0), ((2, 4, 6), True, 1.0), ((5,), False, 0.5), ((8,), False, 1.0)),
    (((4,), False, 0.25), ((4,), False, 1.0), ((5, 2, 2), False, 0.0), ((12,), True, 0.75)),
)
_PROMPT_TOKENS: Final = (5, 8, 6)


def canned_rollouts(
    policy: Any, temperatures: Sequence[float] = (TEMPERATURE,) * len(_SHAPES)
) -> list[list[RolloutScored]]:
    """The groups, with logprobs near those of `policy`; `temperatures`: of each group."""
    random = np.random.default_rng(8)
    groups = []
    for row, (shapes, num_given) in enumerate(zip(_SHAPES, _PROMPT_TOKENS, strict=True)):
        prompt = a_prompt(row, sampling=Sampling(temperature=temperatures[row], max_tokens=MAX_TOKENS))
        given = random.integers(3, 60, num_given)
        answers = [random.integers(3, 60, sum(lengths)) for lengths, _, _ in shapes]
        if row == 2:
            answers[1] = answers[0]
        groups.append(
            [
                _sample(policy, prompt, index, given, answer, shape, random)
                for index, (answer, shape) in enumerate(zip(answers, shapes, strict=True))
            ]
        )
    return groups


def canned_ones(policy: Any) -> list[list[RolloutScored]]:
    """The whole answers of each group as groups of one, those of a group in an environment of their own."""
    return [
        [
            a_rollout(scored.scoring.reward, prompt=_asked_once(scored.rollout.prompt, row, place), turns=turns)
            for place, scored in enumerate(group)
            if (turns := scored.rollout.turns)[-1].finish_reason is not FinishReason.LENGTH
        ]
        for row, group in enumerate(canned_rollouts(policy))
    ]


def _asked_once(prompt: PromptSubmitted, row: int, place: int) -> PromptSubmitted:
    return a_prompt(10 * row + place, group_size=1, environment=f"environment-{row}", sampling=prompt.sampling)


def _sample(
    policy: Any,
    prompt: PromptSubmitted,
    index: int,
    given: np.ndarray,
    answer: np.ndarray,
    shape: tuple[tuple[int, ...], bool, float],
    random: np.random.Generator,
) -> RolloutScored:
    lengths, is_cut, reward = shape
    tokens = np.concatenate([given, answer]).astype(np.int32)
    if not is_cut:
        tokens[-1] = EOS
    with torch.no_grad():
        logprobs = token_logprobs(policy, tokens, prompt.sampling.temperature).numpy()
    noisy = np.concatenate([[0.0], logprobs + random.uniform(-_NOISE, _NOISE, len(logprobs))]).astype(np.float32)
    ends = np.cumsum([0, len(given), *lengths])
    turns = tuple(
        _turn(tokens, noisy, *ends[first : first + 3], is_cut=is_cut and first + 3 == len(ends))
        for first in range(0, len(ends) - 2, 2)
    )
    return a_rollout(reward, index, prompt=prompt, turns=turns)


def _turn(tokens: np.ndarray, logprobs: np.ndarray, start: int, middle: int, end: int, *, is_cut: bool) -> Turn:
    return a_turn(
        tokens[middle:end].tolist(),
        prompt_token_ids=tokens[start:middle],
        behavior_logprobs=logprobs[middle:end],
        prefix_turn=0 if start else None,
        prefix_tokens=int(start),
        finish_reason=FinishReason.LENGTH if is_cut else FinishReason.STOP,
    )


def token_logprobs(model: Any, tokens: Sequence[int] | np.ndarray, temperature: float) -> torch.Tensor:
    """[T - 1] of every token but the first, given those before it: the plain way, one sequence at a time."""
    ids = torch.tensor(np.asarray(tokens, dtype=np.int64))
    logits = model(input_ids=ids[None]).logits[0, :-1] / temperature
    return torch.log_softmax(logits, dim=-1).gather(1, ids[1:, None]).squeeze(1)


def columns(groups: Sequence[Sequence[RolloutScored]]) -> dict[str, list[list[Any]]]:
    """The samples as TRL's `rollout_func` returns them, in order."""
    found: dict[str, list[list[Any]]] = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": []}
    for scored in (scored for group in groups for scored in group):
        first, *later = scored.rollout.turns
        ids, logprobs, mask = [*first.token_ids], [*first.behavior_logprobs], [1] * len(first.token_ids)
        for turn in later:
            given = len(turn.prompt_token_ids)
            ids += [*turn.prompt_token_ids, *turn.token_ids]
            logprobs += [*[0.0] * given, *turn.behavior_logprobs]
            mask += [*[0] * given, *[1] * len(turn.token_ids)]
        found["prompt_ids"].append([int(token) for token in first.prompt_token_ids])
        found["completion_ids"].append([int(token) for token in ids])
        found["logprobs"].append([float(logprob) for logprob in logprobs])
        found["env_mask"].append(mask)
    return found


def rewards(groups: Sequence[Sequence[RolloutScored]]) -> list[float]:
    """Of all samples, in order."""
    return [float(scored.scoring.reward or 0.0) for group in groups for scored in group]
