"""Which of the prompts on the topic are a producer's own. Pure.

Anybody may submit prompts in a producer's name. At its start it reads those that came after its newest record. Its own
are those that its source gives: the group of a row, with the row's sequence number. They need not be submitted again.
All others are passed over: they neither move the producer on in its source nor use its credit.
"""

from collections.abc import Iterable

from rollstream.schemas.prompt import PromptSubmitted

NumberedGroup = tuple[int, str]
"""A prompt's sequence number and its group."""


class FoundPrompts:
    """Prompts in the name of a producer whose next one has the number `next_sequence`."""

    def __init__(self, producer: str, next_sequence: int) -> None:
        self._producer = producer
        self._next = next_sequence
        self.earlier: set[str] = set()
        """Groups of prompts with smaller numbers. The producer knows its own of them already."""
        self._later: set[NumberedGroup] = set()

    def note(self, prompt: PromptSubmitted) -> None:
        """Take in a prompt; those in other names do not matter."""
        if prompt.producer != self._producer:
            return
        if prompt.sequence < self._next:
            self.earlier.add(prompt.group_id)
        else:
            self._later.add((prompt.sequence, prompt.group_id))

    def take_own(self, rows: Iterable[NumberedGroup], longest_gap: int) -> list[str]:
        """The groups of `rows` that were found; `rows` are what the producer would submit next, in order.

        A batch that a kill cut off has gaps. After `longest_gap` rows that were not found no row is looked at any more:
        a stranger's number may be as large as it likes.
        """
        own: list[str] = []
        since_last = 0
        source = iter(rows)
        while self._later and since_last < longest_gap and (row := next(source, None)) is not None:
            since_last += 1
            if row in self._later:
                self._later.remove(row)
                own.append(row[1])
                since_last = 0
        return own

    @property
    def strangers(self) -> frozenset[NumberedGroup]:
        """What is left after `take_own`: in the producer's name, and not of its source."""
        return frozenset(self._later)
