"""Mean and spread of numbers that come one by one, with constant memory."""

import math


class Moments:
    """Count, mean, population standard deviation (divided by n, as numpy does), smallest and largest of numbers.

    Sums are of differences to the first number: exact if all are equal, and for rewards of 0 and 1. Numbers that come
    in the same order give the same result to the last bit.
    """

    __slots__ = ("_first", "_squares", "_sum", "count", "highest", "lowest")

    def __init__(self) -> None:
        self.count = 0
        self._first = self._sum = self._squares = 0.0
        self.lowest, self.highest = math.inf, -math.inf

    def add(self, number: float) -> None:
        """Take one number."""
        if not self.count:
            self._first = number
        self.count += 1
        difference = number - self._first
        self._sum += difference
        self._squares += difference * difference
        self.lowest, self.highest = min(self.lowest, number), max(self.highest, number)

    @property
    def mean(self) -> float:
        """The mean; nan without numbers."""
        return self._first + self._sum / self.count if self.count else math.nan

    @property
    def std(self) -> float:
        """The population standard deviation; nan without numbers."""
        if not self.count:
            return math.nan
        return math.sqrt(max(self._squares - self._sum * self._sum / self.count, 0.0) / self.count)
