"""The original's table of rewards: what an answer is worth by whether it is right, and ended by itself. Pure."""

from typing import Final

from rollstream.environments.rewards.extraction import last_boxed
from rollstream.rc_actor.reward_settings import RewardSettings
from rollstream.schemas.rollout import Turn

_RIGHT_FROM: Final = 0.5
_BOXED: Final = "\\boxed"


def rewarded(
    score: float | None, turn: Turn, settings: RewardSettings, *, discount: float, max_tokens: int
) -> float | None:
    """The reward of reasoning that its environment gave this score; None: its scoring failed, and so it has none.

    No answer: nothing is boxed; it can't be read if nothing is in the box, or the box has no end. In the last
    `buffer_tokens` below `max_tokens` a reward falls to 0 in proportion. Each token multiplies it by `discount`.
    """
    if score is None:
        return None
    value = float(getattr(settings, f"{_kind(score, turn.text)}_{'not_finished' if turn.is_truncated else 'finished'}"))
    num_tokens = turn.num_completion_tokens
    if settings.buffer_tokens:
        value *= min(1.0, max(0.0, (max_tokens - num_tokens) / settings.buffer_tokens))
    return float(value * discount**num_tokens)


def _kind(score: float, text: str) -> str:
    if score >= _RIGHT_FROM:
        return "correct_answer"
    if _BOXED not in text:
        return "no_answer"
    return "wrong_answer" if (last_boxed(text) or "").strip() else "unparsable"
