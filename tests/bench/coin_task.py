"""The environment of benches whose answers mean nothing: each prompt is one character, and the reward is a coin."""

from collections.abc import Iterator
from itertools import count
from typing import Final

from rollstream.environments.protocol import Split, Task
from rollstream.environments.rubric import RewardInput, Rubric, WeightedReward
from rollstream.schemas.prompt import Message, Sampling

PROMPT_TOKENS: Final = 6
"""As many as a prompt of the demo has; each character is a token."""
PATH: Final = f"{__name__}.CoinTask"
"""What `[environments.NAME]` of a run's file says."""


def parity(sample: RewardInput) -> float:
    """1 if the answer's code points have an odd sum. Groups have spread, and nothing that lengthens answers pays."""
    return float(sum(map(ord, sample.completion)) % 2)


class CoinTask:
    """Tasks without end: the characters of `starts`, one after the other."""

    name = "coin"
    rubric = Rubric(WeightedReward("parity", parity, weight=1.0))
    sampling = Sampling(temperature=1.0)

    def __init__(self, starts: str) -> None:
        self._starts = starts

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """One after the other; `seed` and `split` change nothing but the ids."""
        kind = "" if split == "train" else f"{split}/"
        for row in count():
            start = self._starts[row % len(self._starts)]
            yield Task(task_id=f"{kind}{seed}/{row}", messages=(Message(role="user", content=start * PROMPT_TOKENS),))
