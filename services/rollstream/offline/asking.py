"""Asks the samples that are missing: at most `concurrency` in flight, each by `agents.samples`, in the tasks' order.

As many workers as may be in flight take one sample after another. So memory does not grow with the number of tasks, and
a slow sample holds up nobody else.

Samples that end in vain one after another may tell of the engine, not of their tasks. They are held until another one
shows that it still answers, and noted then. If it does not, the run gives up, and they have used up no attempt.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from rollstream.agents.load import Agents
from rollstream.agents.samples import SampleRunner, identity_of
from rollstream.engines.protocol import Engine
from rollstream.environments.pool.verdicts import ScoringSample
from rollstream.offline.ended import EndedSample
from rollstream.offline.live import LiveCounts
from rollstream.offline.progress import Progress
from rollstream.offline.scoring import RewardScoring, Unscored
from rollstream.offline.settings import CollectSettings
from rollstream.offline.tasks import CollectTask, TaskSource
from rollstream.rows.row import BadRow
from rollstream.schemas.errors import TooManyFailuresError
from rollstream.schemas.ids import group_id
from rollstream.schemas.prompt import PromptSource, PromptSubmitted, Purpose, Sampling
from rollstream.schemas.record import utc_now
from rollstream.schemas.rollout import RolloutGenerated, Status

_RUN: Final = "collect"
_IN_VAIN_IN_A_ROW: Final = 100


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One sample to ask."""

    prompt: PromptSubmitted
    row: int
    sample: int
    attempts: int


class Asking:
    """Asks the missing samples of `tasks` once. `note` is told of each that is not scored; what is held, later."""

    def __init__(
        self, settings: CollectSettings, engine: Engine, *, counts: LiveCounts, note: Callable[[EndedSample], None]
    ) -> None:
        self._settings = settings
        self._counts = counts
        self._note = note
        self._held: list[EndedSample] = []
        self._runner = SampleRunner(
            engine,
            identity=identity_of(engine, f"{_RUN}-{socket.gethostname()}-{os.getpid()}"),
            bounds=settings.bounds,
            agents=Agents(settings.agents),
        )

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
        settings, identity = self._settings, tasks.identity()
        for task in tasks.starting_at(progress.first_to_ask(settings.num_samples, settings.max_attempts)):
            if isinstance(task, BadRow):
                self._counts.num_bad_rows += 1
                continue
            missing = progress.to_ask(task.number, settings.num_samples, settings.max_attempts)
            if not missing:
                continue
            prompt = prompt_of(task, settings, identity)
            for sample, attempts in missing.items():
                yield _Wanted(prompt, task.number, sample, attempts)

    async def _work(self, wanted: Iterator[_Wanted], scoring: RewardScoring | None) -> None:
        for one in wanted:
            self._counts.asks_one()
            try:
                rollout = await self._runner.run(one.prompt, one.sample)
            finally:
                self._counts.in_flight -= 1
            ended = ended_sample(rollout, row=one.row, attempts=one.attempts + 1)
            if self._is_in_vain(ended):
                self._hold(ended, rollout)
                continue
            self._note_held()
            if scoring is None or not ended.is_completed:
                self._counts.see(ended)
                self._note(ended)
            else:
                await scoring.add(Unscored(ended, ScoringSample.of(rollout)))

    def _is_in_vain(self, ended: EndedSample) -> bool:
        """Whether it may tell of the engine instead of its task."""
        # Tasks at fault may follow one another, and those that failed in an earlier run do. But if nothing was ever
        # answered, it is hardly the tasks.
        is_news = ended.attempts == 1 and not (self._counts.num_completed or self._settings.retry_failed)
        return ended.status == Status.UNRESOLVED or (ended.status == Status.FAILED and is_news)

    def _hold(self, ended: EndedSample, rollout: RolloutGenerated) -> None:
        self._counts.see(ended)
        self._held.append(ended)
        self._counts.num_held = len(self._held)
        bound = max(_IN_VAIN_IN_A_ROW, 2 * self._settings.concurrency)
        if len(self._held) >= bound:
            raise TooManyFailuresError(
                f"{bound} samples one after another had no answer, the newest: {rollout.failure}; correct that, and "
                "run the same command again: it goes on before these, which have used up no attempt"
            )

    def _note_held(self) -> None:
        for ended in self._held:
            self._note(ended)
        self._held.clear()
        self._counts.num_held = 0


def prompt_of(task: CollectTask, settings: CollectSettings, identity: str) -> PromptSubmitted:
    """The prompt of a task; the same each time but for its time. Its group is the stable key of the task."""
    prompt_id = f"{identity}/{task.number}"
    group = group_id(_RUN, prompt_id, 0)
    return PromptSubmitted(
        prompt_id=prompt_id,
        group_id=group,
        purpose=Purpose.SERVE,
        environment=settings.environment,
        messages=task.messages,
        reference_answer=task.reference_answer,
        sampling=_seeded(settings.sampling, group),
        group_size=settings.num_samples,
        agent=settings.agent,
        metadata=dict(task.metadata),
        source=PromptSource(dataset=identity, row=task.number),
        producer=_RUN,
        sequence=task.number,
        submitted_at=utc_now(),
    )


def _seeded(sampling: Sampling, group: str) -> Sampling:
    """`sampling` with a seed of the task's own; one seed for all tasks would draw the same noise for each."""
    if sampling.seed is None:
        return sampling
    return sampling.model_copy(update={"seed": (sampling.seed + int(group[:8], 16)) % 2**32})


def ended_sample(rollout: RolloutGenerated, *, row: int, attempts: int) -> EndedSample:
    """What is noted of a rollout."""
    last = rollout.turns[-1] if rollout.turns else None
    failure = rollout.failure
    return EndedSample(
        row=row,
        sample=rollout.sample_index,
        attempts=attempts,
        status=rollout.status.value,
        response=last.text if last is not None and rollout.status is Status.COMPLETED else None,
        failure=None if failure is None else failure.code.value,
        message=None if failure is None else failure.message,
        finish_reason=None if last is None else last.finish_reason.value,
        num_tokens=rollout.num_completion_tokens,
        seconds=round((rollout.finished_at - rollout.started_at).total_seconds(), 6),
    )
