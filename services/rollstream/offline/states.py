"""Which samples have ended, in one byte each, so that a million rows take a few megabytes."""

from pathlib import Path
from typing import Final

from rollstream.offline.journal import EndedSample, read_journal

_DONE: Final = 255
MOST_ATTEMPTS: Final = 254
_MOST_ROWS: Final = 10**8


class SampleStates:
    """For each sample of each row: completed, or how often it was tried in vain."""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples
        self._states = bytearray()

    @classmethod
    def read(
        cls, journal: Path, num_samples: int, num_rows: int | None, *, retry_failed: bool = False
    ) -> "SampleStates":
        """The states that a journal tells; with `retry_failed` what was tried in vain was never tried."""
        states = cls(num_samples)
        for _, ended in read_journal(journal):
            if retry_failed and not ended.is_completed:
                continue
            if 0 <= ended.sample < num_samples and 0 <= ended.row < (num_rows or _MOST_ROWS):
                states.note(ended)
        return states

    def note(self, ended: EndedSample) -> None:
        """That a sample ended."""
        place = self._place(ended.row, ended.sample)
        self._states[place] = _DONE if ended.is_completed else min(ended.attempts, MOST_ATTEMPTS)

    def to_ask(self, row: int, max_attempts: int) -> list[int]:
        """The samples of the row that are not completed, and were tried less than `max_attempts` times."""
        first = row * self._num_samples
        if first >= len(self._states):
            return list(range(self._num_samples))
        known = self._states[first : first + self._num_samples]
        # All of a row together: most rows of a resumed collection are done.
        if known.count(_DONE) == self._num_samples:
            return []
        return [sample for sample, state in enumerate(known) if state != _DONE and state < max_attempts]

    def first_to_ask(self, max_attempts: int) -> int:
        """The first row with a sample to ask; beyond those that are known, the next one."""
        known = len(self._states) // self._num_samples
        return next((row for row in range(known) if self.to_ask(row, max_attempts)), known)

    def attempts(self, row: int, sample: int) -> int:
        """How often the sample was tried in vain."""
        state = self._states[self._place(row, sample)]
        return 0 if state == _DONE else state

    @property
    def num_completed(self) -> int:
        """Samples with a response."""
        return self._states.count(_DONE)

    @property
    def num_failed(self) -> int:
        """Samples that were tried in vain."""
        return len(self._states) - self._states.count(0) - self.num_completed

    def _place(self, row: int, sample: int) -> int:
        needed = (row + 1) * self._num_samples
        if needed > len(self._states):
            # Growing by steps: a copy for each row would cost more with each row.
            self._states.extend(bytes(max(needed - len(self._states), 4096 * self._num_samples)))
        return row * self._num_samples + sample
