"""The environment of `python -m tests.bench long-tail`: sort digits, in answers that may be filled with spaces.

The scripted engine fills its answers to the length that the bench asks for; a long one may be right or wrong.
"""

import random
from collections.abc import Iterator
from typing import Final

from rollstream.environments.protocol import Split, Task, split_of
from rollstream.environments.rubric import RewardInput, Rubric, WeightedReward
from rollstream.schemas.prompt import Message, Sampling

# So many that hardly any prompt comes twice: its answers would have the same lengths.
_NUM_DIGITS: Final = 10


def sorted_digits(sample: RewardInput) -> float:
    """1 if the answer is the sorted digits, with any number of spaces around them, else 0."""
    return float(sample.completion.strip(" ") == sample.reference_answer)


class LongAnswers:
    """Tasks without end. It has no options."""

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
