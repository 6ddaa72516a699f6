"""The environment `sort_digits`: sort 3 to 8 random digits, so the answer to `52910=` is `01259`.

A tiny model learns it within minutes on a CPU.
"""

import random
from collections.abc import Iterator
from typing import Final

from rollstream.environments.protocol import Split, Task, split_of
from rollstream.environments.rubric import RewardInput, Rubric, WeightedReward
from rollstream.schemas.prompt import Message, Sampling

MIN_DIGITS: Final = 3
MAX_DIGITS: Final = 8


def exact_match(sample: RewardInput) -> float:
    """1 if the answer is the sorted digits and nothing else, else 0."""
    return float(sample.completion == sample.reference_answer)


class SortDigits:
    """Tasks without end. It has no options."""

    name = "sort_digits"
    rubric = Rubric(WeightedReward("exact_match", exact_match, weight=1.0))
    sampling = Sampling(temperature=1.0, max_tokens=12)

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """See `Environment.tasks`."""
        chooser = random.Random(f"{split}/{seed}")
        row = 0
        while True:
            digits = "".join(chooser.choices("0123456789", k=chooser.randint(MIN_DIGITS, MAX_DIGITS)))
            if split_of(digits) != split:
                continue
            answer = "".join(sorted(digits))
            yield Task(
                task_id=f"{split}/{seed}/{row}",
                messages=(Message(role="user", content=f"{digits}="),),
                reference_answer=answer,
                demonstration=answer,
            )
            row += 1
