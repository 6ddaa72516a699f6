"""What others may have written in a producer's name: prompts on `prompts`, and open groups in its own record.

Anybody may submit prompts in a producer's name. At its start it reads those that came after its newest record. Its own
are those that its source gives: the group of a row, with the row's sequence number. They need not be submitted again.
All others are passed over: they neither move the producer on in its source nor use its credit.

An open group of its record that nobody submitted would never close, and use credit for ever. Real is one whose prompt
lies on `prompts`: the trainer opens it there, and closes it. Where prompts have expired, it is real if the producer's
source gives it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from rollstream.bus.message import Partition
from rollstream.bus.run import Run
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.topics import PROMPTS

LOOKED_BACK_ROWS: Final = 2000
"""Rows of the source that are looked at before the producer's place. Few groups are open longer than the next ones."""
_LEAST_WINDOW: Final = 500

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
        somebody else's number may be as large as it likes.
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
    def foreign(self) -> frozenset[NumberedGroup]:
        """What is left after `take_own`: in the producer's name, and not of its source."""
        return frozenset(self._later)


def not_on_prompts(run: Run, groups: Iterable[str], read_to: Mapping[int, int]) -> set[str]:
    """Those of the groups without a prompt on the topic. Looks first shortly before `read_to`, where most are."""
    missing = set(groups)
    if not missing:
        return missing
    bounds = run.bounds(PROMPTS)
    firsts = {one: first for one, (first, _) in bounds.items()}
    window = _LEAST_WINDOW + 4 * len(missing)
    near = {one: min(max(first, read_to.get(one[1], end) - window), end) for one, (first, end) in bounds.items()}
    missing = _without_found(run, missing, near)
    return missing if near == firsts or not missing else _without_found(run, missing, firsts)


def have_prompts_expired(run: Run) -> bool:
    """Whether `prompts` has lost its first records, so that what is not there may have been there."""
    return any(first > 0 for first, _ in run.bounds(PROMPTS).values())


def _without_found(run: Run, groups: set[str], start: Mapping[Partition, int]) -> set[str]:
    missing = set(groups)
    keys = {group.encode("utf-8", "replace") for group in groups}
    with run.reader(PROMPTS, start=start) as reader:
        for message in reader.to_end():
            if message.key in keys and (prompt := run.decoded(PROMPTS, message)) is not None:
                missing.discard(prompt.group_id)
                if not missing:
                    break
    return missing
