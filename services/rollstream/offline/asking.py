"""Asks the samples that are missing: at most `concurrency` in flight, in the tasks' order.

As many workers as may be in flight take one sample after another. So memory does not grow with the number of tasks, and
a slow sample holds up nobody else.

Samples that end in vain one after another may tell of the engine, not of their tasks. They are held until another one
shows that it still answers, and noted then. If it does not, the run gives up, and they have used up no attempt.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from rollstream.offline.askers import SampleAsker
from rollstream.offline.ended import EndedSample
from rollstream.offline.live import LiveCounts
from rollstream.offline.progress import Progress
from rollstream.offline.scoring import RewardScoring, Unscored
from rollstream.offline.settings import CollectSettings
from rollstream.offline.tasks import CollectTask, TaskSource
from rollstream.rows.row import BadRow
from rollstream.schemas.errors import TooManyFailuresError
from rollstream.schemas.rollout import Status

_IN_VAIN_IN_A_ROW: Final = 100


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One sample to ask."""

    task: CollectTask
    sample: int
    attempts: int


class Asking:
    """Asks the missing samples of `tasks` once. `note` is told of each that is not scored; what is held, later."""

    def __init__(
        self, settings: CollectSettings, asker: SampleAsker, *, counts: LiveCounts, note: Callable[[EndedSample], None]
    ) -> None:
        self._settings = settings
        self._asker = asker
        self._counts = counts
        self._note = note
        self._held: list[EndedSample] = []

    async def run(self, tasks: TaskSource, progress: Progress, scoring: RewardScoring | None) -> None:
        """Ask all; returns when the last one has ended, and waits for scoring.

        Raises `EngineDeadError`, and `TooManyFailuresError` if an engine answers nothing any more.
        """
        wanted = self._wanted(tasks, progress)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._settings.concurrency):
                    group.create_task(self._work(wanted, scoring))
        except ExceptionGroup as errors:
            # Callers choose the exit code by the error itself; the others are those that it cancelled.
            raise errors.exceptions[0] from None
        self._note_held()

    def _wanted(self, tasks: TaskSource, progress: Progress) -> Iterator[_Wanted]:
        settings = self._settings
        for task in tasks.starting_at(progress.first_to_ask(settings.num_samples, settings.max_attempts)):
            if isinstance(task, BadRow):
                self._counts.num_bad_rows += 1
                continue
            missing = progress.to_ask(task.number, settings.num_samples, settings.max_attempts)
            for sample, attempts in missing.items():
                yield _Wanted(task, sample, attempts)

    async def _work(self, wanted: Iterator[_Wanted], scoring: RewardScoring | None) -> None:
        for one in wanted:
            self._counts.asks_one()
            try:
                asked = await self._asker.ask(one.task, one.sample, one.attempts)
            finally:
                self._counts.in_flight -= 1
            ended = asked.ended
            if self._is_in_vain(ended):
                self._hold(ended)
                continue
            self._note_held()
            if scoring is None or asked.unscored is None:
                self._counts.see(ended)
                self._note(ended)
            else:
                await scoring.add(Unscored(ended, asked.unscored))

    def _is_in_vain(self, ended: EndedSample) -> bool:
        """Whether it may tell of the engine instead of its task."""
        # Tasks at fault may follow one another, and those that failed in an earlier run do. But if nothing was ever
        # answered, it is hardly the tasks.
        is_news = ended.attempts == 1 and not (self._counts.num_completed or self._settings.retry_failed)
        return ended.status == Status.UNRESOLVED or (ended.status == Status.FAILED and is_news)

    def _hold(self, ended: EndedSample) -> None:
        self._counts.see(ended)
        self._held.append(ended)
        self._counts.num_held = len(self._held)
        bound = max(_IN_VAIN_IN_A_ROW, 2 * self._settings.concurrency)
        if len(self._held) >= bound:
            raise TooManyFailuresError(
                f"{bound} samples one after another had no answer, the newest: {ended.failure}: {ended.message}; "
                "correct that, and run the same command again: it goes on before these, which have used up no attempt"
            )

    def _note_held(self) -> None:
        for ended in self._held:
            self._note(ended)
        self._held.clear()
        self._counts.num_held = 0
