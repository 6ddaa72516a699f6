"""The environment `sort_digits`: sort 3 to 8 random digits, so the answer to `52910=` is `01259`.

A tiny model learns it within minutes on a CPU. Tasks are drawn in blocks with seeds of their own, so that a restart at
any of them draws one block at most again.
"""

import random
from collections.abc import Iterator
from itertools import count, islice
from typing import Final

from rollstream.environments.protocol import Split, Task, split_of
from rollstream.environments.rewards.references import reference_of
from rollstream.environments.rubric import RewardInput, Rubric, WeightedReward
from rollstream.schemas.prompt import Message, Sampling

MIN_DIGITS: Final = 3
MAX_DIGITS: Final = 8
_BLOCK_TASKS: Final = 2**14


def exact_match(sample: RewardInput) -> float:
    """1 if the answer is the sorted digits and nothing else, else 0. Raises `RewardError` if the row has none."""
    return float(sample.completion == reference_of(sample))


class SortDigits:
    """Tasks without end. It has no options."""

    name = "sort_digits"
    rubric = Rubric(WeightedReward("exact_match", exact_match, weight=1.0))
    sampling = Sampling(temperature=1.0, max_tokens=12)

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        return self.tasks_from(split, seed, 0)

    def tasks_from(self, split: Split, seed: int, start: int) -> Iterator[Task]:
        for block in count(start // _BLOCK_TASKS):
            first = block * _BLOCK_TASKS
            for row, digits in enumerate(islice(_drawn(split, seed, block), _BLOCK_TASKS), first):
                if row >= start:
                    answer = "".join(sorted(digits))
                    yield Task(
                        task_id=f"{split}/{seed}/{row}",
                        messages=(Message(role="user", content=f"{digits}="),),
                        reference_answer=answer,
                        demonstration=answer,
                    )


def _drawn(split: Split, seed: int, block: int) -> Iterator[str]:
    """Digits without end, none of them of another split."""
    chooser = random.Random(f"{split}/{seed}" if block == 0 else f"{split}/{seed}/{block}")
    while True:
        digits = "".join(chooser.choices("0123456789", k=chooser.randint(MIN_DIGITS, MAX_DIGITS)))
        if split_of(digits) == split:
            yield digits
