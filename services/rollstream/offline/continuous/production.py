"""Continuous production: looks at a source again and again, and collects what was not there before.

  files, environment, topic ──▶ source ──▶ rows that are new ──▶ batch ──▶ an ordinary collection ──▶ sink topic

Consumes   a source: files of a directory, the messages of a topic, or so many tasks of an environment at each look.
Produces   `part-N.jsonl` (or .parquet, or a directory) with what belongs to a collection, and records of a sink topic.
Waits for  the time of the next look.

No row is taken twice, restarts included (`taken.py`). After kill -9 the batches that are open are finished first. A
batch is finished when all its samples have a response, or were asked as often as they may be; what failed is listed
beside it. Until then a look asks what failed once more, the first time a minute later: a server that is gone for a
while must not use up all attempts.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rollstream.offline.collection import CollectReport
from rollstream.offline.continuous import metrics
from rollstream.offline.continuous.batches import Batch, take
from rollstream.offline.continuous.sink import Sink
from rollstream.offline.continuous.sources import ContinuousSource
from rollstream.offline.continuous.taken import BatchRows, TakenRows
from rollstream.offline.continuous.watch import Watch
from rollstream.offline.progress import Progress
from rollstream.process.crash_points import crash_point
from rollstream.process.stop import Stop
from rollstream.process.terminal import Say
from rollstream.rows.write import Kind

PROGRESS: Final = ".progress.sqlite"
"""In the directory: what was taken, and what of the open batches is done."""

_WORTH_SAYING_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 60.0
_LONGEST_RETRY_SECONDS: Final = 3600.0
_FORGET_EVERY_SECONDS: Final = 3600.0
"""It looks at every old row, and there may be millions where looks are frequent."""

CollectBatch = Callable[[BatchRows, Path, Progress], CollectReport]
"""(rows, output, what of them is done) → collects them, or what is missing of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When to look. `every_seconds` None: once. `waits_first`: a restart does not look before the next look is due."""

    every_seconds: float | None = None
    waits_first: bool = False
    remember_days: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Production:
    """The batches of one directory, which the caller holds alone. `prompt_key`: the column that is asked."""

    directory: Path
    taken: TakenRows
    source: ContinuousSource
    kind: Kind
    prompt_key: str
    max_attempts: int
    collect_batch: CollectBatch
    sink: Sink | None
    say: Say
    watch: Watch
    retry_at: dict[int, float] = field(default_factory=dict)
    """Open batches, and when what failed there is asked again, in monotonic seconds. A restart does it at once."""

    def run(self, schedule: Schedule, stop: Stop) -> None:
        """Look until `stop` is asked or the source has no more; once, if there is no period.

        Raises what a collection raises if the engine does not answer any more: all of it goes on at the next start.
        """
        taken = self.taken
        taken.check_source(self.source.name, self.prompt_key)
        metrics.LAST_LOOK.set(taken.looked_at)
        metrics.OPEN_PARTS.set(len(taken.open_batches()))
        due = taken.looked_at + (schedule.every_seconds or 0.0) if schedule.waits_first else 0.0
        forgot_at = -_FORGET_EVERY_SECONDS
        self._finish_open_batches(stop)
        while not self._waited(due, schedule.every_seconds, stop):
            due = time.time() + (schedule.every_seconds or 0.0)
            if time.monotonic() - forgot_at >= _FORGET_EVERY_SECONDS:
                taken.forget(schedule.remember_days)
                forgot_at = time.monotonic()
            taken.note_look()
            self._finish_open_batches(stop)
            self._look(stop)
            self.watch.looked(len(taken.open_batches()))
            if schedule.every_seconds is None:
                return
            if not self.source.is_endless and not taken.open_batches():
                self.say(f"{self.source.name} has no more tasks: nothing is left to collect")
                return

    def _look(self, stop: Stop) -> None:
        """Make batches of all that is new, and collect each before the next is made."""
        found = self.watch.each(self.source.look(self.taken))
        is_last = False
        while not is_last and not stop.is_asked:
            batch = Batch(self.directory, self.taken.next_batch)
            counts = take(batch, found, self.source, self.taken, self.prompt_key, stop)
            is_last = counts.is_last
            metrics.TAKEN.inc(counts.num_rows)
            metrics.BAD.inc(counts.num_bad_rows)
            metrics.OPEN_PARTS.set(len(self.taken.open_batches()))
            if counts.num_bad_rows:
                self.say(f"{counts.num_bad_rows} rows can't be asked: they are listed in {batch.bad_rows}")
            self._finish_open_batches(stop, at_least=batch.number)

    def _finish_open_batches(self, stop: Stop, at_least: int = 0) -> None:
        for number in self.taken.open_batches():
            is_due = time.monotonic() >= self.retry_at.get(number, 0.0)
            if number >= at_least and is_due and not stop.is_asked:
                self._finish(Batch(self.directory, number))

    def _finish(self, batch: Batch) -> None:
        """Collect a batch; close it if nothing is left to ask."""
        output, taken = batch.output(self.kind), self.taken
        report = self.collect_batch(taken.rows_of(batch.number), output, taken.progress_of(batch.number))
        self.watch.asked(report.counts)
        if report.summary is None and not report.was_complete:
            return
        if report.summary is not None:
            tries = taken.note_try(batch.number)
            if report.summary.num_completed < report.summary.num_samples and tries < self.max_attempts:
                wait = min(_RETRY_SECONDS * 4 ** (tries - 1), _LONGEST_RETRY_SECONDS)
                self.retry_at[batch.number] = time.monotonic() + wait
                return
        crash_point("batch_asked")
        if self.sink is not None:
            num_published = self.sink.publish(batch.number, output, taken)
            self.say(f"{output.name}: {num_published} rows published")
        taken.close_batch(batch.number)
        self.retry_at.pop(batch.number, None)
        metrics.PARTS.inc()

    def _waited(self, due: float, every_seconds: float | None, stop: Stop) -> bool:
        """Wait until the next look is due; true if the process is to end."""
        seconds = min(due - time.time(), every_seconds or 0.0)
        if seconds >= _WORTH_SAYING_SECONDS:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(due))
            self.say(f"the next look at {self.source.name} is at {when}")
        self.watch.goes_on(waits_seconds=seconds)
        return stop.wait(max(seconds, 0.0))
