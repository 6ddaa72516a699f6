"""What is shown while a command runs: counts of samples or rows, their rate, and what is left.

A collection has a progress bar on a terminal, else a log line now and then.
"""

import asyncio
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from rollstream.offline.ended import EndedSample

_LOG = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.2
_LINE_SECONDS: Final = 10.0
_SHOW_EVERY: Final = 1000


@dataclass(slots=True, kw_only=True)
class LiveCounts:
    """Counts of samples. `num_earlier` were completed before this process began; `num_samples` are wanted in all.

    `num_held` of those that ended are not noted yet, see `Asking`.
    """

    num_samples: int | None = None
    num_earlier: int = 0
    num_ended: int = 0
    num_held: int = 0
    num_completed: int = 0
    num_tokens: int = 0
    num_bad_rows: int = 0
    num_scored: int = 0
    reward_sum: float = 0.0
    sample_seconds: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    most_in_flight: int = 0
    num_looks: int = 0
    looks_at_bound: int = 0
    looks_waiting_for_scoring: int = 0
    started: float = field(default_factory=time.monotonic)
    finished: float | None = None

    def start(self) -> None:
        """Count the time from now on."""
        self.started = time.monotonic()

    def finish(self) -> None:
        """Count the time up to now: the output is written after it."""
        self.finished = time.monotonic()

    def see(self, ended: EndedSample) -> None:
        """Count a sample that ended."""
        self.num_ended += 1
        self.num_completed += ended.is_completed
        self.num_tokens += ended.num_tokens
        self.sample_seconds += ended.seconds
        if ended.reward is not None:
            self.num_scored += 1
            self.reward_sum += ended.reward
        for failure in (ended.failure, ended.scoring_failure):
            if failure is not None:
                self.failures[failure] += 1

    def look(self, bound: int, *, scoring_is_full: bool) -> None:
        """Note what the rate is limited by at this moment."""
        self.num_looks += 1
        self.looks_waiting_for_scoring += scoring_is_full
        self.looks_at_bound += self.in_flight >= bound and not scoring_is_full

    def asks_one(self) -> None:
        """One more sample is in flight."""
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    @property
    def elapsed_seconds(self) -> float:
        """From the first that was asked to the end of the last."""
        return max((self.finished or time.monotonic()) - self.started, 1e-9)

    @property
    def mean_reward(self) -> float | None:
        """Of this process's samples; None if none was scored."""
        return self.reward_sum / self.num_scored if self.num_scored else None

    @property
    def seconds_left(self) -> float | None:
        """None as long as nothing has ended, or the number of samples is not known."""
        if self.num_samples is None or not self.num_ended:
            return None
        left = max(self.num_samples - self.num_earlier - self.num_ended, 0)
        return left * self.elapsed_seconds / self.num_ended

    def line(self) -> str:
        """All counts in one line of text."""
        wanted = "" if self.num_samples is None else f" of {self.num_samples}"
        parts = [
            f"{self.num_earlier + self.num_ended}{wanted} samples",
            f"{self.num_ended / self.elapsed_seconds:.1f}/s",
            f"{self.num_tokens / self.elapsed_seconds:.0f} tokens/s",
        ]
        if self.mean_reward is not None:
            parts.append(f"mean reward {self.mean_reward:.3f}")
        parts.extend(f"{count} {code}" for code, count in self.failures.most_common())
        if self.num_bad_rows:
            parts.append(f"{self.num_bad_rows} bad rows")
        if self.seconds_left is not None:
            parts.append(f"{_clock(self.seconds_left)} left")
        return ", ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


async def show_while_it_runs(counts: LiveCounts, look: Callable[[], None]) -> None:
    """Until cancelled: call `look` several times a second, and show the counts."""
    if sys.stderr.isatty():
        await _bar(counts, look)
    else:
        await _lines(counts, look)


async def _lines(counts: LiveCounts, look: Callable[[], None]) -> None:
    shown = time.monotonic()
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        look()
        if time.monotonic() - shown >= _LINE_SECONDS:
            shown = time.monotonic()
            _LOG.info("%s", counts.line())


async def _bar(counts: LiveCounts, look: Callable[[], None]) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    # On a narrow terminal the counts take several lines, and none is left out.
    all_counts = TextColumn("{task.fields[counts]}", table_column=Column(ratio=1), markup=False)
    columns = (BarColumn(bar_width=20), TextColumn("{task.percentage:>3.0f}%"), all_counts)
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, refresh_per_second=5, expand=True) as progress:
        bar = progress.add_task("", total=counts.num_samples, counts="")
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            look()
            done = counts.num_earlier + counts.num_ended
            progress.update(bar, completed=done, total=counts.num_samples, counts=counts.line())


@contextmanager
def rows_shown(doing: str, *, is_shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Gives a function that is told of rows; the line disappears at the end of the block."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console, began, num_rows, last = Console(stderr=True), time.monotonic(), 0, 0
    with Live(
        console=console, transient=True, refresh_per_second=4, auto_refresh=is_shown and console.is_terminal
    ) as live:

        def told(more: int) -> None:
            nonlocal num_rows, last
            num_rows += more
            if is_shown and num_rows - last >= _SHOW_EVERY:
                last = num_rows
                live.update(
                    Text(f"{num_rows:,} rows {doing}, {num_rows / max(time.monotonic() - began, 1e-9):,.0f} a second")
                )

        yield told
