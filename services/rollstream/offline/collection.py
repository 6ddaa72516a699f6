"""Collects rollouts: tasks of a file or an environment → agent on an engine → rewards, if wanted → file.

  tasks ──▶ missing samples ──▶ SampleRunner(engine) ──▶ scoring (optional) ──▶ journal ──▶ output, failures, picture
                  ▲                                                                │
                  └──────── states: what a journal of an earlier process holds ────┘

Consumes   the rows of a source that does not change meanwhile, and what an earlier process left in the journal.
Produces   the output, `_failures.jsonl`, `_manifest.json`, and `_rewards.png` if there are rewards (`places.py`).
Waits for  the engine; a free one of `concurrency` places; room in the queue of scoring.

A process that is killed loses at most the last batch of the journal. Run again, the same command asks for what is
missing or failed and nothing else, and writes the output anew. When nothing is missing, the journal is removed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Final

from rollstream.agents.load import refuse_unknown_agent
from rollstream.engines.protocol import Engine
from rollstream.environments.load import load_environment
from rollstream.environments.pool.pool import ScoringPool
from rollstream.offline.asking import Asking
from rollstream.offline.figures import Figures
from rollstream.offline.journal import EndedSample, Journal
from rollstream.offline.live import show_while_it_runs
from rollstream.offline.manifest import START_ANEW, Manifest, begun, read_manifest
from rollstream.offline.options import DEFAULT_FAIL_OVER
from rollstream.offline.output import JournalIndex, ToColumns, output_rows, rollout_columns, write_failures
from rollstream.offline.paths import Places
from rollstream.offline.scoring import RewardScoring
from rollstream.offline.settings import CollectSettings
from rollstream.offline.states import SampleStates
from rollstream.offline.summary import CollectSummary
from rollstream.offline.tasks import TaskSource
from rollstream.process.stop import Stop, first_to_end
from rollstream.rows.open import open_rows
from rollstream.rows.row import BadRow, good_rows
from rollstream.rows.write import refuse_irreplaceable, rewrite_rows, write_rows
from rollstream.schemas.errors import ConfigurationError, RollstreamError

_STOPPED: Final = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectReport:
    """How a collection ended. `summary` is None if it was stopped before its end, or was complete before.

    `fail_over`: see `CollectSettings`.
    """

    places: Places
    figures: Figures
    summary: CollectSummary | None = None
    was_complete: bool = False
    fail_over: float = DEFAULT_FAIL_OVER

    @property
    def exit_code(self) -> int:
        """0; 70 if more than `fail_over` of the samples has no response; as after Ctrl-C if it was stopped."""
        if self.was_complete:
            return 0
        if self.summary is None:
            return _STOPPED
        return RollstreamError.exit_code if self.summary.share_failed > self.fail_over else 0

    def lines(self, settings: CollectSettings) -> list[str]:
        """For people."""
        output = self.places.output
        if self.was_complete:
            return [f"{output} is complete: nothing is left to ask"]
        if self.summary is None:
            num_noted = self.figures.num_ended - self.figures.num_held
            return [
                f"stopped: {num_noted} samples of this process are in {self.places.journal.name}; the same command "
                "goes on from there"
            ]
        lines = [*self.summary.lines(self.figures, settings.concurrency), f"written: {output}"]
        if self.places.failures.exists():
            lines.append(
                f"what failed is listed in {self.places.failures.name}; the same command asks samples without a "
                f"response again, up to {settings.max_attempts} times in all (--max-attempts), and with --retry-failed "
                "those that failed as often"
            )
        if self.exit_code:
            lines.append(
                f"{self.summary.share_failed:.0%} of the samples have no response, more than {self.fail_over:.0%}: the "
                f"exit code is {self.exit_code}; --fail-over sets the share"
            )
        if self.places.picture.exists():
            lines.append(f"drawn: {self.places.picture.name}")
        return lines


def collect(
    settings: CollectSettings, tasks: TaskSource, engine: Engine, stop: Stop, to_columns: ToColumns = rollout_columns
) -> CollectReport:
    """Collect until everything is asked, or until `stop` is asked; a stopped one writes no output.

    Raises `ConfigurationError` if the output belongs to other settings or another process; `EngineDeadError` or
    `TooManyFailuresError` if the engine does not answer any more.
    """
    if settings.environment:
        load_environment(settings.environment, settings.environments)
    refuse_unknown_agent(settings.agent.name, settings.agents)
    places = Places(settings.output)
    with places.locked():
        return _Collection(settings, tasks, places, to_columns).run(engine, stop)


class _Collection:
    def __init__(self, settings: CollectSettings, tasks: TaskSource, places: Places, to_columns: ToColumns) -> None:
        self._settings = settings
        self._tasks = tasks
        self._places = places
        self._to_columns = to_columns
        self._figures = Figures()

    def run(self, engine: Engine, stop: Stop) -> CollectReport:
        """See `collect`; the caller holds the lock."""
        places, earlier = self._places, self._earlier()
        manifest = begun(earlier, self._settings.compared(), self._tasks.identity())
        if earlier is not None and earlier.is_finished and not places.journal.exists():
            self._copy_output()
            return CollectReport(places=places, figures=self._figures, was_complete=True)
        if self._settings.overwrite:
            refuse_irreplaceable(places.output)
        else:
            _refuse_foreign_output(places, earlier)
        asyncio.run(self._ask(engine, stop, partial(self._begin, manifest, is_new=earlier is None)))
        if stop.is_asked:
            return CollectReport(places=places, figures=self._figures)
        manifest = manifest.with_versions({"rollstream": version("rollstream"), engine.name: engine.version})
        return CollectReport(
            places=places, figures=self._figures, summary=self._finish(manifest), fail_over=self._settings.fail_over
        )

    def _earlier(self) -> Manifest | None:
        """What an earlier process began here; None if nothing is to go on with."""
        found = None if self._settings.overwrite else read_manifest(self._places.manifest)
        if found is not None and _is_void(found, self._places):
            self._places.journal.unlink(missing_ok=True)
            return None
        return found

    async def _ask(self, engine: Engine, stop: Stop, begin: Callable[[], None]) -> None:
        """Ask what is missing, once the engine has started; the journal is written whatever ends it."""
        try:
            # A server may be waited for a long time.
            await first_to_end(stop.asked(), engine.start(weight_version=0))
            if stop.is_asked:
                return
            begin()
            states = self._states()
            with contextlib.closing(Journal(self._places.journal)) as journal:
                await first_to_end(stop.asked(), self._ask_and_show(engine, states, journal))
        finally:
            await engine.close()

    def _begin(self, manifest: Manifest, *, is_new: bool) -> None:
        """Note what is collected here. With --overwrite an earlier output stays until this one takes its place."""
        if is_new:
            for path in (self._places.journal, self._places.failures, self._places.picture):
                path.unlink(missing_ok=True)
        manifest.write(self._places.manifest)

    def _states(self) -> SampleStates:
        settings, figures = self._settings, self._figures
        states = SampleStates.read(
            self._places.journal, settings.num_samples, self._tasks.num_rows, retry_failed=settings.retry_failed
        )
        figures.num_earlier = states.num_completed
        if self._tasks.num_rows is not None:
            figures.num_samples = self._tasks.num_rows * settings.num_samples
        return states

    async def _ask_and_show(self, engine: Engine, states: SampleStates, journal: Journal) -> None:
        settings, figures = self._settings, self._figures

        def note(sample: EndedSample) -> None:
            states.note(sample)
            journal.append(sample)

        def scored(sample: EndedSample) -> None:
            figures.see(sample)
            note(sample)

        asking = Asking(settings, engine, figures=figures, note=note)
        async with _scoring_of(settings, scored) as scoring:

            def look() -> None:
                journal.flush_if_due()
                figures.look(settings.concurrency, scoring_is_full=scoring is not None and scoring.is_full)

            # The start of engine and scoring is not part of the rate.
            figures.start()
            await first_to_end(_ask_and_score(asking, self._tasks, states, scoring), show_while_it_runs(figures, look))
            figures.finish()

    def _finish(self, manifest: Manifest) -> CollectSummary:
        """Write the output and what belongs to it; the journal stays as long as something is missing in the output."""
        settings, places = self._settings, self._places
        with JournalIndex(places.journal, places.index, settings.num_samples) as index:
            summary = self._summarize(index)
            rows = partial(output_rows, self._tasks, index, settings, self._to_columns)
            if next(rows(), None) is None:
                # Nothing can take the place of a former output, and the next run begins anew.
                places.journal.unlink()
                places.manifest.unlink()
                return summary
            rewrite_rows(settings.output, settings.kind, rows)
        self._copy_output()
        if summary.rewards:
            from rollstream.offline.picture import draw_rewards

            draw_rewards(summary.rewards, places.picture, title=f"{settings.output.name}: {settings.environment}")
        replace(manifest, is_finished=True, counts=summary.counts()).write(places.manifest)
        if summary.num_completed == summary.num_samples:
            places.journal.unlink()
        return summary

    def _copy_output(self) -> None:
        copy = self._settings.jsonl_copy
        if copy is not None:
            rewrite_rows(copy, "jsonl", lambda: good_rows(open_rows(self._settings.output)))

    def _summarize(self, index: JournalIndex) -> CollectSummary:
        """Count everything, and list what failed."""
        summary, places = CollectSummary(max_attempts=self._settings.max_attempts), self._places
        first_bad: BadRow | None = None
        with write_rows(places.failures, "jsonl") as writer:
            for task in self._tasks:
                samples = [] if isinstance(task, BadRow) else list(index.of_row(task.number))
                if isinstance(task, BadRow):
                    summary.num_bad_rows += 1
                    first_bad = first_bad or task
                else:
                    summary.see(samples)
                write_failures(writer, task, samples)
        if first_bad is not None and not summary.num_tasks:
            raise ConfigurationError(
                f"none of {summary.num_bad_rows} rows of {self._tasks.name} can be asked; the first, "
                f"{first_bad.where}: {first_bad.why}; all are listed in {places.failures}"
            )
        if not summary.num_bad_rows and not summary.failures:
            places.failures.unlink()
        return summary


async def _ask_and_score(
    asking: Asking, tasks: TaskSource, states: SampleStates, scoring: RewardScoring | None
) -> None:
    if scoring is None:
        await asking.run(tasks, states, None)
        return
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(scoring.run())
            await asking.run(tasks, states, scoring)
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


def _is_void(earlier: Manifest, places: Places) -> bool:
    """Whether nothing is left that settings could fit to: neither samples in the journal nor the output made of it."""
    if earlier.is_finished and places.output.exists():
        return False
    return not places.journal.exists() or not places.journal.stat().st_size


def _refuse_foreign_output(places: Places, earlier: Manifest | None) -> None:
    if earlier is None and places.output.exists():
        raise ConfigurationError(
            f"{places.output} exists, and no {places.manifest.name} says that this collection wrote it: name another "
            f"output, or replace it with {START_ANEW}"
        )
    if earlier is None and places.journal.exists():
        raise ConfigurationError(
            f"{places.journal} exists without its {places.manifest.name}: bring it back, or begin anew with "
            f"{START_ANEW}"
        )
