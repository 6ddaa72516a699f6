"""Figures of the groups that were published: by turn, over a window, and how often problems are solved. Pure."""

from collections import Counter, deque
from collections.abc import Sequence
from statistics import fmean
from typing import Final, NamedTuple

from rollstream.rc_actor.texts import RESUME_STATE
from rollstream.rc_actor.training_text import TrainingText
from rollstream.schemas.rollout import REASONING

_SOLVED_FROM: Final = 0.5


class _Window(NamedTuple):
    """Of one group: when it ended, and its turns and tokens by turn type."""

    at: float
    turns: Counter[str]
    tokens: Counter[str]


class GroupStatistics:
    """Takes in one group after the other. `window`: groups that the throughput is computed of."""

    def __init__(self, window: int, *, began_at: float) -> None:
        self._began_at = began_at
        self._window: deque[_Window] = deque(maxlen=window)
        self._solved: Counter[str] = Counter()

    def note(self, texts: Sequence[TrainingText], now: float) -> dict[str, float]:
        """The figures after this group. A text without a reward counts in no mean of rewards."""
        turns = [text for text in texts if not text.metadata.get(RESUME_STATE)]
        types = Counter(str(text.metadata["turn_type"]) for text in turns)
        tokens: Counter[str] = Counter()
        for text in turns:
            tokens[str(text.metadata["turn_type"])] += text.output_tokens
        self._window.append(_Window(now, types, tokens))
        self._solved[_solved(turns)] += 1
        return {**_by_turn(turns), **self._throughput(now), **self._shares()}

    def _throughput(self, now: float) -> dict[str, float]:
        begin = self._began_at if len(self._window) < (self._window.maxlen or 0) else self._window[0].at
        seconds = max(now - begin, 1e-6)
        found: dict[str, float] = {}
        for turn_type in {name for one in self._window for name in one.turns}:
            turns = sum(one.turns[turn_type] for one in self._window)
            tokens = sum(one.tokens[turn_type] for one in self._window)
            found[f"throughput/{turn_type}_turns_per_second"] = turns / seconds
            found[f"throughput/{turn_type}_tokens_per_second"] = tokens / seconds
        return found

    def _shares(self) -> dict[str, float]:
        total = self._solved.total()
        names = ("always_success", "never_success", "sometimes_success", "unknown_success")
        return {name: self._solved[name] / total for name in names}


def _by_turn(turns: Sequence[TrainingText]) -> dict[str, float]:
    groups: dict[str, list[TrainingText]] = {}
    for text in turns:
        groups.setdefault(f"{text.metadata['turn_type']}_turn_{text.metadata['turn_number']}", []).append(text)
    found: dict[str, float] = {}
    for name, of_turn in groups.items():
        rewards = [one.reward for one in of_turn if one.metadata["has_reward"] and one.reward is not None]
        if rewards:
            found[f"{name}/reward"] = fmean(rewards)
            found[f"{name}/success"] = fmean(reward >= _SOLVED_FROM for reward in rewards)
        found[f"{name}/output_tokens"] = fmean(one.output_tokens for one in of_turn)
        found[f"{name}/finished"] = fmean(one.finished for one in of_turn)
    return found


def _solved(turns: Sequence[TrainingText]) -> str:
    """Whether all samples of the group solve it by their last reasoning, none, or some; unknown: none has a reward."""
    last: dict[tuple[object, object], TrainingText] = {}
    for text in turns:
        if text.metadata["turn_type"] == REASONING:
            last[text.metadata["sample_id"], text.metadata["rollout_index"]] = text
    solved = [one.reward >= _SOLVED_FROM for one in last.values() if one.reward is not None]
    if not solved:
        return "unknown_success"
    return "always_success" if all(solved) else "sometimes_success" if any(solved) else "never_success"
