"""Callers who judge some of the answers that they get, and sometimes wrongly. Pure."""

import random
from dataclasses import dataclass

from rollstream.environments.protocol import Task


@dataclass(slots=True)
class Callers:
    """Give a thumb up or down, +1 or -1, to `judged_ratio` of the answers; `wrong_ratio` of the thumbs are wrong."""

    random: random.Random
    judged_ratio: float = 0.3
    wrong_ratio: float = 0.1

    def thumb(self, *, is_right: bool) -> float | None:
        """What a caller says of an answer; None: nothing."""
        if self.random.random() >= self.judged_ratio:
            return None
        says_right = is_right != (self.random.random() < self.wrong_ratio)
        return 1.0 if says_right else -1.0


def is_right(task: Task, text: str) -> bool:
    """Whether the answer is the one of the demo's task. Nobody but the callers knows it."""
    return text == task.reference_answer
