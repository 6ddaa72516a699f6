"""Collects rollouts: tasks of a file or an environment → agent on an engine → rewards, if wanted → file.

  tasks ──▶ missing samples ──▶ SampleAsker ──▶ scoring (optional) ──▶ progress ──▶ output, failures, picture
                  ▲                                                                │
                  └──────────────── what an earlier process noted ─────────────────┘

Consumes   the rows of a source that does not change meanwhile, and what an earlier process noted as done.
Produces   the output, `_failures.jsonl`, `_progress.sqlite`, and `_rewards.png` if there are rewards (`paths.py`).
Waits for  the engine; a free one of `concurrency` places; room in the queue of scoring.

A process that is killed loses at most the last second. Run again, the same command asks for what is missing or failed
and nothing else, and writes the output anew. When nothing is missing, the samples are forgotten: the output has them.
What it was begun with, by which versions, and how it ended stays in `_progress.sqlite`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, Final

from rollstream.agents.load import refuse_unknown_agent
from rollstream.environments.load import load_environment
from rollstream.environments.pool.pool import ScoringPool
from rollstream.offline.askers import SampleAsker
from rollstream.offline.asking import Asking
from rollstream.offline.ended import EndedSample
from rollstream.offline.live import LiveCounts, show_while_it_runs
from rollstream.offline.output import ToColumns, ended_of, output_rows, rollout_columns, write_failures
from rollstream.offline.paths import OutputPaths
from rollstream.offline.progress import INPUT, Progress, progress_at
from rollstream.offline.scoring import RewardScoring
from rollstream.offline.settings import CollectSettings
from rollstream.offline.summary import CollectSummary
from rollstream.offline.tasks import TaskSource
from rollstream.process.crash_points import crash_point
from rollstream.process.stop import Stop, first_to_end
from rollstream.rows.open import open_rows
from rollstream.rows.row import BadRow, good_rows
from rollstream.rows.write import refuse_irreplaceable, rewrite_rows, write_rows
from rollstream.schemas.errors import ConfigurationError, RollstreamError
from rollstream.schemas.record import utc_now

JOB: Final = "collect"
_STOPPED: Final = 130
_START_ANEW: Final = "--overwrite"
_ADVICE: Final = f"name another output, or begin anew with {_START_ANEW}, which removes what was collected"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectReport:
    """How a collection ended. `summary` is None if it was stopped before its end, or was complete before."""

    settings: CollectSettings
    counts: LiveCounts
    summary: CollectSummary | None = None
    was_complete: bool = False

    @property
    def paths(self) -> OutputPaths:
        """Its files."""
        return self.settings.paths

    @property
    def exit_code(self) -> int:
        """0; 70 if more than `fail_over` of the samples has no response; as after Ctrl-C if it was stopped."""
        if self.was_complete:
            return 0
        if self.summary is None:
            return _STOPPED
        return RollstreamError.exit_code if self.summary.share_failed > self.settings.fail_over else 0

    def lines(self) -> list[str]:
        """For people."""
        settings, paths, summary = self.settings, self.paths, self.summary
        if self.was_complete:
            return [f"{paths.output} is complete: nothing is left to ask"]
        if summary is None:
            num_noted = self.counts.num_ended - self.counts.num_held
            return [
                f"stopped: {num_noted} samples of this process are in {paths.progress.name}; the same command goes on "
                "from there"
            ]
        lines = [*summary.lines(self.counts, settings.concurrency), f"written: {paths.output}"]
        if paths.failures.exists():
            lines.append(
                f"what failed is listed in {paths.failures.name}; the same command asks samples without a response "
                f"again, up to {settings.max_attempts} times in all (--max-attempts), and with --retry-failed those "
                "that failed as often"
            )
        if self.exit_code:
            lines.append(
                f"{summary.share_failed:.0%} of the samples have no response, more than {settings.fail_over:.0%}: the "
                f"exit code is {self.exit_code}; --fail-over sets the share"
            )
        if paths.picture.exists():
            lines.append(f"drawn: {paths.picture.name}")
        return [settings.worded(line) for line in lines]


def collect(
    settings: CollectSettings,
    tasks: TaskSource,
    asker: SampleAsker,
    stop: Stop,
    to_columns: ToColumns = rollout_columns,
    progress: Progress | None = None,
) -> CollectReport:
    """Collect until everything is asked, or until `stop` is asked; a stopped one writes no output.

    `progress`: where to note what is done, if the caller holds the output; else beside the output, which is locked.
    Raises `ConfigurationError` if the output belongs to other settings or another process; `EngineDeadError` or
    `TooManyFailuresError` if the engine does not answer any more.
    """
    if settings.environment:
        load_environment(settings.environment, settings.environments)
    refuse_unknown_agent(settings.agent.name, settings.agents)
    if progress is not None:
        return _Collection(settings, tasks, to_columns, progress).run(asker, stop)
    paths = settings.paths
    with paths.locked(), progress_at(paths.progress, JOB, replaces_damaged=settings.overwrite) as own:
        return _Collection(settings, tasks, to_columns, own).run(asker, stop)


class _Collection:
    def __init__(self, settings: CollectSettings, tasks: TaskSource, to_columns: ToColumns, progress: Progress) -> None:
        self._settings = settings
        self._tasks = tasks
        self._paths = settings.paths
        self._to_columns = to_columns
        self._progress = progress
        self._counts = LiveCounts()

    def run(self, asker: SampleAsker, stop: Stop) -> CollectReport:
        """Collect what `collect` was asked for; the caller holds the lock."""
        progress = self._progress
        begun_with = {**self._settings.compared(), INPUT: self._tasks.identity()}
        goes_on = not self._settings.overwrite and not self._is_void()
        if goes_on:
            progress.refuse_other(begun_with, self._settings.worded(_ADVICE))
            if progress.fact("is_finished") and not progress.num_ended():
                self._copy_output()
                return CollectReport(settings=self._settings, counts=self._counts, was_complete=True)
        else:
            self._refuse_to_replace()
        asyncio.run(self._ask(asker, stop, partial(self._begin, begun_with, goes_on=goes_on)))
        if stop.is_asked:
            return CollectReport(settings=self._settings, counts=self._counts)
        summary = self._finish({"rollstream": version("rollstream"), asker.name: asker.version})
        return CollectReport(settings=self._settings, counts=self._counts, summary=summary)

    def _is_void(self) -> bool:
        """Whether nothing is left that settings could fit to: neither samples that ended nor the output of them."""
        if self._progress.fact("is_finished") and self._paths.output.exists():
            return False
        return not self._progress.num_ended()

    def _refuse_to_replace(self) -> None:
        """Raise `ConfigurationError` if what is there was not collected here, unless it may be replaced."""
        if self._settings.overwrite:
            refuse_irreplaceable(self._paths.output)
        elif self._paths.output.exists():
            raise ConfigurationError(
                f"{self._paths.output} exists, and nothing says that this collection wrote it: name another output, or "
                f"replace it with {self._settings.worded(_START_ANEW)}"
            )

    async def _ask(self, asker: SampleAsker, stop: Stop, begin: Callable[[], None]) -> None:
        """Ask what is missing, once the asker is ready; what ended is committed, whatever ends it."""
        try:
            # A server may be waited for a long time.
            await first_to_end(stop.asked(), asker.start())
            if stop.is_asked:
                return
            begin()
            try:
                await first_to_end(stop.asked(), self._ask_and_show(asker))
            finally:
                self._progress.commit()
        finally:
            await asker.close()

    def _begin(self, begun_with: Mapping[str, Any], *, goes_on: bool) -> None:
        """Note what is collected here. With --overwrite an earlier output stays until this one takes its place."""
        progress, settings, counts = self._progress, self._settings, self._counts
        if not goes_on:
            for path in (self._paths.failures, self._paths.picture):
                path.unlink(missing_ok=True)
            progress.begin(begun_with, started_at=utc_now().isoformat(), versions=[])
        progress.note_facts(is_finished=False, counts=None)
        if settings.retry_failed:
            progress.forget_attempts()
        counts.num_earlier = progress.num_ended(is_completed=True)
        if self._tasks.num_rows is not None:
            counts.num_samples = self._tasks.num_rows * settings.num_samples

    async def _ask_and_show(self, asker: SampleAsker) -> None:
        settings, counts, progress = self._settings, self._counts, self._progress

        def note(ended: EndedSample) -> None:
            progress.note(
                ended.row, ended.sample, ended.noted(), attempts=ended.attempts, is_completed=ended.is_completed
            )

        def scored(ended: EndedSample) -> None:
            counts.see(ended)
            note(ended)

        asking = Asking(settings, asker, counts=counts, note=note)
        async with _scoring_of(settings, scored) as scoring:

            def look() -> None:
                progress.commit_if_due()
                counts.look(settings.concurrency, scoring_is_full=scoring is not None and scoring.is_full)

            # The start of engine and scoring is not part of the rate.
            counts.start()
            asked = _ask_and_score(asking, self._tasks, progress, scoring)
            await first_to_end(asked, show_while_it_runs(counts, look))
            counts.finish()

    def _finish(self, versions: Mapping[str, str]) -> CollectSummary:
        """Write the output and what belongs to it; samples stay noted as long as something is missing in the output."""
        settings, progress, summary = self._settings, self._progress, self._summarize()
        rows = partial(output_rows, self._tasks, progress, settings, self._to_columns)
        if next(rows(), None) is None:
            # Nothing can take the place of a former output, and the next run begins anew.
            progress.clear()
            return summary
        rewrite_rows(settings.output, settings.kind, rows)
        crash_point("output_written")
        self._copy_output()
        if summary.rewards:
            from rollstream.offline.picture import draw_rewards

            draw_rewards(summary.rewards, self._paths.picture, title=f"{settings.output.name}: {settings.environment}")
        known = progress.fact("versions") or []
        progress.finish(
            keeps_samples=summary.num_completed < summary.num_samples,
            is_finished=True,
            counts=summary.counts(),
            versions=known if versions in known else [*known, dict(versions)],
            written_at=utc_now().isoformat(),
        )
        crash_point("collection_finished")
        return summary

    def _copy_output(self) -> None:
        copy = self._settings.jsonl_copy
        if copy is not None:
            rewrite_rows(copy, "jsonl", lambda: good_rows(open_rows(self._settings.output)))

    def _summarize(self) -> CollectSummary:
        """Count everything, and list what failed."""
        summary, failures = CollectSummary(max_attempts=self._settings.max_attempts), self._paths.failures
        first_bad: BadRow | None = None
        with write_rows(failures, "jsonl") as writer:
            for task in self._tasks:
                samples = [] if isinstance(task, BadRow) else ended_of(self._progress, task.number)
                if isinstance(task, BadRow):
                    summary.num_bad_rows += 1
                    first_bad = first_bad or task
                else:
                    summary.see(samples)
                write_failures(writer, task, samples, self._settings.max_attempts)
        if first_bad is not None and not summary.num_tasks:
            raise ConfigurationError(
                f"none of {summary.num_bad_rows} rows of {self._tasks.name} can be asked; the first, "
                f"{first_bad.where}: {first_bad.why}; all are listed in {failures}"
            )
        if not summary.num_bad_rows and not summary.failures:
            failures.unlink()
        return summary


async def _ask_and_score(asking: Asking, tasks: TaskSource, progress: Progress, scoring: RewardScoring | None) -> None:
    if scoring is None:
        await asking.run(tasks, progress, None)
        return
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(scoring.run())
            await asking.run(tasks, progress, scoring)
            await scoring.end()
    except ExceptionGroup as errors:
        # Callers choose the exit code by the error itself.
        raise errors.exceptions[0] from None


@asynccontextmanager
async def _scoring_of(
    settings: CollectSettings, ended: Callable[[EndedSample], None]
) -> AsyncIterator[RewardScoring | None]:
    if not settings.environment:
        yield None
        return
    async with ScoringPool(settings.pool, settings.environments) as pool:
        yield RewardScoring(pool, settings.pool.num_processes, ended)
