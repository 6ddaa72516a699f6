"""Callers who judge some of the answers that they get, and sometimes wrongly. Pure."""

import random
from dataclasses import dataclass

from rollstream.environments.protocol import Task


@dataclass(slots=True)
class Callers:
    """Judge `judged_ratio` of the answers: a thumb up or down, +1 or -1, of which `wrong_ratio` are wrong."""

    random: random.Random
    judged_ratio: float = 0.3
    wrong_ratio: float = 0.1

    def judges(self) -> bool:
        """Whether the next caller will judge the answer, whatever it is."""
        return self.random.random() < self.judged_ratio

    def thumb(self, task: Task, text: str) -> float:
        """What a caller says of an answer. Nobody but the callers knows whether it is right."""
        is_wrong = self.random.random() < self.wrong_ratio
        return 1.0 if is_right(task, text) != is_wrong else -1.0


def is_right(task: Task, text: str) -> bool:
    """Whether the answer is the one of the demo's task."""
    return text == task.reference_answer
