"""Continuous production: looks at a source again and again, and collects what was not there before.

  files, environment, topic ──▶ feed ──▶ rows that are new (state) ──▶ part ──▶ an ordinary collection ──▶ sink topic

Consumes   a feed: files of a directory, the messages of a topic, or so many tasks of an environment at each look.
Produces   `part-N.jsonl` (or .parquet, or a directory) with what belongs to a collection, and records of a sink topic.
Waits for  the time of the next look.

No row is taken twice, restarts included (`state.py`). After kill -9 the parts that are open are finished first. A part
is finished when all its samples have a response, or were asked as often as they may be; what failed is listed beside
it. Until then a look asks what failed once more, the first time a minute later: a server that is gone for a while must
not use up all attempts.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rollstream.offline.collection import CollectReport
from rollstream.offline.continuous import metrics
from rollstream.offline.continuous.feeds import Feed
from rollstream.offline.continuous.parts import Part, remove_strays, take
from rollstream.offline.continuous.sink import Sink
from rollstream.offline.continuous.state import State
from rollstream.offline.continuous.watch import Watch
from rollstream.offline.paths import Places
from rollstream.process.stop import Stop
from rollstream.rows.write import Kind

STATE: Final = ".state.sqlite"

_WORTH_SAYING_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 60.0
_LONGEST_RETRY_SECONDS: Final = 3600.0
_FORGET_EVERY_SECONDS: Final = 3600.0
"""It looks at every old row, and there may be millions where looks are frequent."""

CollectPart = Callable[[Path, Path], CollectReport]
"""(file with rows, output) → collects them, or what is missing of them."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When to look. `every_seconds` None: once. `waits_first`: a restart does not look before the next look is due."""

    every_seconds: float | None = None
    waits_first: bool = False
    remember_days: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Production:
    """The parts of one directory, which the caller holds alone. `prompt_key`: the column that is asked."""

    directory: Path
    state: State
    feed: Feed
    kind: Kind
    prompt_key: str
    max_attempts: int
    collect_part: CollectPart
    sink: Sink | None
    say: Say
    watch: Watch
    retry_at: dict[int, float] = field(default_factory=dict)
    """Open parts, and when what failed there is asked again, in monotonic seconds. A restart does it at once."""

    def run(self, schedule: Schedule, stop: Stop) -> None:
        """Look until `stop` is asked or the feed has no more; once, if there is no period.

        Raises what a collection raises if the engine does not answer any more: all of it goes on at the next start.
        """
        state = self.state
        state.check_source(self.feed.name, self.prompt_key)
        remove_strays(self.directory, state)
        metrics.LAST_LOOK.set(state.looked_at)
        metrics.OPEN_PARTS.set(len(state.open_parts()))
        due = state.looked_at + (schedule.every_seconds or 0.0) if schedule.waits_first else 0.0
        forgot_at = -_FORGET_EVERY_SECONDS
        self._finish_open_parts(stop)
        while not self._waited(due, schedule.every_seconds, stop):
            due = time.time() + (schedule.every_seconds or 0.0)
            if time.monotonic() - forgot_at >= _FORGET_EVERY_SECONDS:
                state.forget(schedule.remember_days)
                forgot_at = time.monotonic()
            state.note_look()
            self._finish_open_parts(stop)
            self._look(stop)
            self.watch.looked(len(state.open_parts()))
            if schedule.every_seconds is None:
                return
            if not self.feed.is_endless and not state.open_parts():
                self.say(f"{self.feed.name} has no more tasks: nothing is left to collect")
                return

    def _look(self, stop: Stop) -> None:
        """Make parts of all that is new, and collect each before the next is made."""
        found = self.watch.each(self.feed.look(self.state))
        is_last = False
        while not is_last and not stop.is_asked:
            part = Part(self.directory, self.state.next_part)
            taken = take(part, found, self.feed, self.state, self.prompt_key, stop)
            is_last = taken.is_last
            metrics.TAKEN.inc(taken.num_rows)
            metrics.BAD.inc(taken.num_bad_rows)
            metrics.OPEN_PARTS.set(len(self.state.open_parts()))
            if taken.num_bad_rows:
                self.say(f"{taken.num_bad_rows} rows can't be asked: they are listed in {part.bad_rows}")
            self._finish_open_parts(stop, at_least=part.number)

    def _finish_open_parts(self, stop: Stop, at_least: int = 0) -> None:
        for number in self.state.open_parts():
            is_due = time.monotonic() >= self.retry_at.get(number, 0.0)
            if number >= at_least and is_due and not stop.is_asked:
                self._finish(Part(self.directory, number))

    def _finish(self, part: Part) -> None:
        """Collect a part; close it if nothing is left to ask."""
        output = part.output(self.kind)
        if part.rows.exists():
            report = self.collect_part(part.rows, output)
            self.watch.asked(report.figures)
            if report.summary is None and not report.was_complete:
                return
            if report.summary is not None:
                tries = self.state.note_try(part.number)
                if report.summary.num_completed < report.summary.num_samples and tries < self.max_attempts:
                    wait = min(_RETRY_SECONDS * 4 ** (tries - 1), _LONGEST_RETRY_SECONDS)
                    self.retry_at[part.number] = time.monotonic() + wait
                    return
            if self.sink is not None:
                num_published = self.sink.publish(part.number, output, self.state)
                self.say(f"{output.name}: {num_published} rows published")
            Places(output).journal.unlink(missing_ok=True)
        else:
            self.say(f"{part.rows} is gone, somebody removed it: what of it was not asked yet is lost")
        self.state.close_part(part.number)
        self.retry_at.pop(part.number, None)
        metrics.PARTS.inc()
        part.rows.unlink(missing_ok=True)

    def _waited(self, due: float, every_seconds: float | None, stop: Stop) -> bool:
        """Wait until the next look is due; true if the process is to end."""
        seconds = min(due - time.time(), every_seconds or 0.0)
        if seconds >= _WORTH_SAYING_SECONDS:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(due))
            self.say(f"the next look at {self.feed.name} is at {when}")
        self.watch.goes_on(waits_seconds=seconds)
        return stop.wait(max(seconds, 0.0))
