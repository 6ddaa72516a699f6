"""The loss of turns with scores of their own, by hand in plain PyTorch: some branch, others are cycles.

Shares no code with ours.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from rollstream.schemas.failure import Failure, FailureCode
from rollstream.schemas.prompt import Sampling
from rollstream.schemas.rollout import Turn
from rollstream.schemas.scored import RolloutScored, TurnScore
from tests.harness.builders import a_prompt, a_rollout, a_scoring, a_turn
from tests.reference.cases import CAP
from tests.reference.rollouts import MAX_TOKENS, TEMPERATURE, token_logprobs

# Of a turn: which one it extends, whether all of that one, its type and its number.
_Shape = tuple[int | None, bool, str, int]
_BRANCHES: Final[Sequence[_Shape]] = (
    (None, True, "answer", 0), (0, True, "answer", 1), (0, False, "check", 0), (1, True, "check", 1),
)  # fmt: skip
_CYCLES: Final[Sequence[_Shape]] = tuple(
    (None, True, turn_type, number) for number in (1, 2, 3) for turn_type in ("reasoning", "summarization")
)
# Of each rollout of each group: the scores of its turns; None: the scoring failed.
_SCORES: Final = (
    ((1.0, 0.5, 0.0, 1.0), (0.0, 0.25, 1.0, 1.0), (0.5, None, 0.5, 1.0)),
    ((0.0, 1.0, None, None), (1.0, 0.0, 0.75, None), (1.0, 1.0, 0.25, 0.5)),
)
_CYCLE_SCORES: Final = (
    ((0.0, 0.5, 0.5, 1.0, 1.0, 0.0), (0.0, 0.0, None, 0.0, 0.0, 0.0), (0.0, 1.0, 1.0, 0.5, 0.25, 0.0)),
    ((1.0, 0.0, 0.0, 0.0, 0.0, 1.0), (0.0, 1.0, 1.0, None, 0.0, 1.0), (0.5, 0.5, 0.0, 1.0, 1.0, 0.0)),
)


def branched_rollouts(policy: Any) -> list[list[RolloutScored]]:
    """Two groups of three rollouts of four turns; the second check's scores are equal in one, and one alone in both."""
    return [_group(policy, row, _BRANCHES, scores) for row, scores in enumerate(_SCORES)]


def cycled_rollouts(
    policy: Any, scored_turn_types: Collection[str] = ("reasoning", "summarization")
) -> list[list[RolloutScored]]:
    """Two groups of three rollouts of three cycles of `reasoning_cache`; in one no first reasoning is better."""
    return [_group(policy, row, _CYCLES, scores, scored_turn_types) for row, scores in enumerate(_CYCLE_SCORES)]


def with_other_tokens(groups: Sequence[Sequence[RolloutScored]], turn_type: str) -> list[list[RolloutScored]]:
    """The same groups, as if each turn of that type had sampled other tokens."""

    def other(turn: Turn) -> Turn:
        changed = {"token_ids": turn.token_ids % 57 + 3, "behavior_logprobs": turn.behavior_logprobs - 1}
        return turn.model_copy(update=changed) if turn.turn_type == turn_type else turn

    def with_others(scored: RolloutScored) -> RolloutScored:
        rollout = scored.rollout.model_copy(update={"turns": tuple(map(other, scored.rollout.turns))})
        return scored.model_copy(update={"rollout": rollout})

    return [list(map(with_others, group)) for group in groups]


def _group(
    policy: Any,
    row: int,
    shapes: Sequence[_Shape],
    scores: Sequence[Sequence[float | None]],
    scored_turn_types: Collection[str] | None = None,
) -> list[RolloutScored]:
    random = np.random.default_rng([5, row])
    sampling = Sampling(temperature=TEMPERATURE, max_tokens=MAX_TOKENS)
    prompt = a_prompt(row, group_size=len(scores), sampling=sampling)
    found = []
    for index, of_turns in enumerate(scores):
        turn_scores = tuple(
            _score(number, reward)
            for number, reward in enumerate(of_turns)
            if scored_turn_types is None or shapes[number][2] in scored_turn_types
        )
        turns, scoring = _turns(policy, random, shapes), a_scoring(1.0, turn_scores=turn_scores)
        found.append(a_rollout(1.0, index, prompt=prompt, turns=turns, scoring=scoring))
    return found


def _score(number: int, reward: float | None) -> TurnScore:
    failure = None if reward is not None else Failure(code=FailureCode.TIMEOUT, message="5 s")
    return TurnScore(turn=number, reward=reward, failure=failure)


def _turns(policy: Any, random: np.random.Generator, shapes: Sequence[_Shape]) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    for extends, whole, kind, number in shapes:
        before = [] if extends is None else seen(turns, extends)
        # A branch from the middle: all but the last two tokens of what it extends.
        before = before if whole else before[:-2]
        given, sampled = random.integers(3, 60, 3), random.integers(3, 60, int(random.integers(2, 6)))
        with torch.no_grad():
            logprobs = token_logprobs(policy, [*before, *given, *sampled], TEMPERATURE).numpy()[-len(sampled) :]
        noisy = (logprobs + random.uniform(-0.9, 0.9, len(sampled))).astype(np.float32)
        turns.append(
            a_turn(
                sampled.tolist(), prompt_token_ids=given, behavior_logprobs=noisy, prefix_turn=extends,
                prefix_tokens=len(before), turn_type=kind, turn_number=number, cycle_step=len(turns),
            )
        )  # fmt: skip
    return tuple(turns)


def seen(turns: Sequence[Turn], number: int) -> list[int]:
    """All tokens that the model saw when this turn had ended."""
    turn = turns[number]
    before = [] if turn.prefix_turn is None else seen(turns, turn.prefix_turn)[: turn.prefix_tokens]
    return [*before, *map(int, turn.prompt_token_ids), *map(int, turn.token_ids)]


def plain_turn_loss(
    normalization: str, policy: Any, groups: Sequence[Sequence[RolloutScored]], weights: Mapping[str, float]
) -> Tensor:
    """REINFORCE with capped importance weights; a turn's advantage is its score less the mean of its like."""
    sums, counts = [], []
    for group in groups:
        cells: dict[tuple[str, int], list[float]] = {}
        for one in group:
            for score in one.scoring.turn_scores:
                turn = one.rollout.turns[score.turn]
                if score.reward is not None:
                    cells.setdefault((turn.turn_type, turn.turn_number), []).append(score.reward)
        for one in group:
            losses = [_turn_losses(one, score, cells, weights, policy) for score in one.scoring.turn_scores]
            found = [loss for loss in losses if loss is not None]
            sums.append(torch.stack([loss.sum() for loss in found]).sum())
            counts.append(sum(map(len, found)))
    if normalization == "grpo":
        return torch.stack([total / count for total, count in zip(sums, counts, strict=True)]).mean()
    return torch.stack(sums).sum() / sum(counts)


def _turn_losses(
    scored: RolloutScored,
    score: TurnScore,
    cells: Mapping[tuple[str, int], Sequence[float]],
    weights: Mapping[str, float],
    policy: Any,
) -> Tensor | None:
    turn = scored.rollout.turns[score.turn]
    weight = weights.get(f"{turn.turn_type}/{turn.turn_number}", weights.get(turn.turn_type, 1.0))
    cell = cells.get((turn.turn_type, turn.turn_number), ())
    if score.reward is None or len(set(cell)) < 2 or not weight:
        return None
    num_sampled = len(turn.token_ids)
    current = token_logprobs(policy, seen(scored.rollout.turns, score.turn), TEMPERATURE)[-num_sampled:]
    behavior = torch.tensor(np.array(turn.behavior_logprobs), dtype=torch.float64)
    importance = torch.exp(current.detach() - behavior).clamp(max=CAP)
    return -importance * weight * (score.reward - sum(cell) / len(cell)) * current
