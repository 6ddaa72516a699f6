"""The loop of the actor: problems → groups in hand → the stream.

Consumes   the problems of the data sets, in their order; what an earlier process has noted as ended is passed over.
Produces   lines of `rc_actor`, or of `rc_actor_test`, a group each; figures on `rc_stats` or `rc_stats_test`.
Waits for  room at the model's servers; room in the queue of results.
Unblocked  by the servers' answers, and by the stream that takes a line.

A group waits behind the others for another try while its error may pass (`errors.py`). Once a thousand wait, they are
tried before new ones. Many groups one after the other that nothing came of are the world's fault, and end the actor.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from rollstream.process.crash_points import crash_point
from rollstream.rc_actor.errors import failing
from rollstream.rc_actor.groups import GroupWork, ProblemGroup
from rollstream.rc_actor.journal import ActorJournal
from rollstream.rc_actor.ready import wait_for_services
from rollstream.rc_actor.statistics import GroupStatistics
from rollstream.rc_actor.streams import StreamWriter
from rollstream.rc_actor.training_text import TrainingText
from rollstream.schemas.errors import EngineDeadError, RecordTooLargeError, TooManyFailuresError
from rollstream.schemas.failure import FailureCode

_LOG = logging.getLogger(__name__)
_IN_VAIN_IN_A_ROW: Final = 100
_MOST_WAITING: Final = 1000

_Problems = asyncio.Queue[ProblemGroup | None]
_Results = asyncio.Queue[tuple[ProblemGroup, list[TrainingText]]]
Published = Callable[[list[TrainingText]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """Where groups and figures go. `topic`: that of the groups, by which the journal names them."""

    topic: str
    groups: StreamWriter
    figures: StreamWriter
    journal: ActorJournal


@dataclass(eq=False)
class RCActorLoop:
    """`num_workers`: groups in hand at most. `published` is told of each group that lies in the stream."""

    work: GroupWork
    outlet: Outlet
    num_workers: int
    published: Published = lambda _: None
    _waiting: list[ProblemGroup] = field(default_factory=list)
    _num_in_vain: int = 0
    _logged_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        window = self.work.settings.actor.throughput_window_size
        self._statistics = GroupStatistics(window, began_at=time.monotonic())

    async def run(self, groups: Iterable[ProblemGroup]) -> None:
        """Work on all of them; raises the error of the world. What is done by then is noted."""
        await self._round(self._in_turn(groups))
        while self._waiting:
            await self._round(iter(self._taken()))

    def _in_turn(self, groups: Iterable[ProblemGroup]) -> Iterator[ProblemGroup]:
        for group in groups:
            yield group
            if len(self._waiting) >= _MOST_WAITING:
                yield from self._taken()

    def _taken(self) -> list[ProblemGroup]:
        """Those that wait; from now on none does."""
        again, self._waiting = self._waiting, []
        return again

    async def _round(self, groups: Iterator[ProblemGroup]) -> None:
        actor = self.work.settings.actor
        problems: _Problems = asyncio.Queue(actor.problem_queue_size)
        results: _Results = asyncio.Queue(actor.result_queue_size)
        try:
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(self._write_all(results))
                workers = [tasks.create_task(self._work(problems, results)) for _ in range(self.num_workers)]
                for group in groups:
                    if not self.outlet.journal.has_ended(self.outlet.topic, group.prompt.group_id):
                        await problems.put(group)
                for _ in workers:
                    await problems.put(None)
                await asyncio.gather(*workers)
                await results.join()
                writing.cancel()
        except ExceptionGroup as errors:
            # Callers choose the exit code by the error itself; the others are those that it cancelled.
            raise errors.exceptions[0] from None

    async def _work(
        self,
        problems: _Problems,
        results: _Results,
    ) -> None:
        while (group := await problems.get()) is not None:
            is_first = not group.num_requeued
            await self._ask(group)
            if not group.missing:
                self._num_in_vain = 0
                await results.put((group, await self.work.texts(group)))
                continue
            if (why := failing(group.rollouts.values(), group.num_requeued)) is None:
                self._requeue(group)
            else:
                self._fail(group, why.code.value, why.message)
            if is_first:
                self._refuse_all_in_vain(group)

    async def _ask(self, group: ProblemGroup) -> None:
        try:
            await self.work.ask(group)
        except EngineDeadError as error:
            # A group at which servers break off each time looks the same as servers that are gone.
            _LOG.warning("group %s waits for the services: %s", group.prompt.group_id, error)
            await wait_for_services(self.work.settings)

    def _requeue(self, group: ProblemGroup) -> None:
        group.num_requeued = self.outlet.journal.requeued(group.prompt.group_id)
        # The journal gives back what is complete.
        group.rollouts = {index: one for index, one in group.rollouts.items() if index not in group.missing}
        self._waiting.append(group)

    def _fail(self, group: ProblemGroup, failure: str, message: str) -> None:
        outlet = self.outlet
        _LOG.warning("group %s has failed: %s: %s", group.prompt.group_id, failure, message)
        outlet.journal.failed(outlet.topic, group.prompt.group_id, group.row, failure, message)

    def _refuse_all_in_vain(self, group: ProblemGroup) -> None:
        """Raise `TooManyFailuresError` where the first tries of so many groups came to nothing."""
        self._num_in_vain += 1
        if self._num_in_vain >= max(_IN_VAIN_IN_A_ROW, 2 * self.num_workers):
            why = next((one.failure for one in group.rollouts.values() if one.failure is not None), None)
            raise TooManyFailuresError(
                f"{self._num_in_vain} groups one after another had no answer, the newest: "
                f"{'' if why is None else why.message}; correct that, and run the same command again"
            )

    async def _write_all(self, results: _Results) -> None:
        while True:
            group, texts = await results.get()
            await self._write(group, texts)
            results.task_done()

    async def _write(self, group: ProblemGroup, texts: list[TrainingText]) -> None:
        outlet, group_id = self.outlet, group.prompt.group_id
        try:
            position = await asyncio.to_thread(outlet.groups.write, texts, key=group_id)
        except RecordTooLargeError as error:
            self._fail(group, FailureCode.TOO_LARGE.value, str(error))
            return
        crash_point("group_written")
        outlet.journal.published(outlet.topic, group_id, group.row, position)
        figures = self._statistics.note(texts, time.monotonic())
        await asyncio.to_thread(outlet.figures.write, figures)
        self._log(figures)
        if self.work.settings.debug.mode:
            _LOG.info("group %s of row %d is published: %d texts", group_id, group.row, len(texts))
        self.published(texts)

    def _log(self, figures: Mapping[str, float]) -> None:
        """Say the figures of the newest group, if it is time for it."""
        every, now = self.work.settings.actor.log_each_n_secs, time.monotonic()
        if every and now - self._logged_at >= every:
            self._logged_at = now
            _LOG.info("%s: %s", self.outlet.topic, ", ".join(f"{name} {figures[name]:.4g}" for name in sorted(figures)))
