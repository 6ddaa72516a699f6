"""Tells whether a scorer reads its partitions, for `/readyz`. Pure.

The broker answers each fetch within seconds, also if there is nothing new. So a partition without an answer is not
read: its broker is gone, or it has another leader than this process knows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rollstream.bus.message import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What the client knows of a partition: a number that each answer changes, and whether records wait here.

    `lag`: records between the commit and the end; from offset 0 on while nothing is committed.
    """

    answer: int | None
    has_records: bool
    lag: int = 0


class FetchWatch:
    """Notes when each partition was read last. A partition must be read every `bound_seconds`."""

    def __init__(self, bound_seconds: float) -> None:
        self._bound = bound_seconds
        self._answers: dict[Partition, int | None] = {}
        self._read_at: dict[Partition, float] = {}

    def look(self, fetched: Mapping[Partition, Fetched], now: float) -> str:
        """Which of the assigned partitions are not read, and for how long; empty if all are."""
        self._read_at = {partition: moment for partition, moment in self._read_at.items() if partition in fetched}
        for partition, state in fetched.items():
            is_answered = state.answer is not None and state.answer != self._answers.get(partition)
            # While records wait here, the client asks for no more.
            if is_answered or state.has_records:
                self._read_at[partition] = now
        self._answers = {partition: state.answer for partition, state in fetched.items()}
        return "; ".join(filter(None, (self._silence(partition, now) for partition in sorted(fetched))))

    def _silence(self, partition: Partition, now: float) -> str:
        topic, number = partition
        if partition not in self._read_at:
            return f"{topic}/{number} was not read yet"
        seconds = now - self._read_at[partition]
        if seconds <= self._bound:
            return ""
        return f"{topic}/{number} was not read for {seconds:.0f} s, at most {self._bound:g} s"
