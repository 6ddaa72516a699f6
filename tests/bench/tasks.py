"""The environments of benches: prompts of one character whose reward is a coin, and digits to sort at length."""

import random
from collections.abc import Iterator
from itertools import count
from typing import Final

from rollstream.environments.protocol import Split, Task, split_of
from rollstream.environments.rubric import RewardInput, Rubric, WeightedReward
from rollstream.schemas.prompt import Message, Sampling

PROMPT_TOKENS: Final = 6
"""As many as a prompt of the demo has; each character is a token."""
COIN_PATH: Final = f"{__name__}.CoinTask"
"""What `[environments.NAME]` of a run's file says of `CoinTask`."""
LONG_PATH: Final = f"{__name__}.LongAnswers"
"""The same of `LongAnswers`."""
# So many that hardly any prompt comes twice: its answers would have the same lengths.
_NUM_DIGITS: Final = 10


def parity(sample: RewardInput) -> float:
    """1 if the answer's code points have an odd sum. Groups have spread, and nothing that lengthens answers pays."""
    return float(sum(map(ord, sample.completion)) % 2)


class CoinTask:
    """Tasks without end, for answers that mean nothing: the characters of `starts`, one after the other."""

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


def sorted_digits(sample: RewardInput) -> float:
    """1 if the answer is the sorted digits, with any number of spaces around them, else 0."""
    return float(sample.completion.strip(" ") == sample.reference_answer)


class LongAnswers:
    """Tasks without end: sort digits, in answers that may be filled with spaces. It has no options.

    The scripted engine fills its answers to the length that the bench asks for; a long one may be right or wrong.
    """

    name = "long_answers"
    rubric = Rubric(WeightedReward("sorted_digits", sorted_digits))
    sampling = Sampling(temperature=1.0, max_tokens=4096)

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """Digits that are drawn anew for each task, those of the split alone."""
        chooser = random.Random(f"{split}/{seed}")
        row = 0
        while True:
            digits = "".join(chooser.choices("0123456789", k=_NUM_DIGITS))
            if split_of(digits) != split:
                continue
            yield Task(
                task_id=f"{split}/{seed}/{row}",
                messages=(Message(role="user", content=f"{digits}="),),
                reference_answer="".join(sorted(digits)),
            )
            row += 1
