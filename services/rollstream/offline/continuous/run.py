"""What `rollstream collect` does with --every, --watch or a topic: makes the source and the sink, and starts."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rollstream.offline.collection import CollectReport
from rollstream.offline.continuous.production import PROGRESS, Production, Schedule
from rollstream.offline.continuous.sink import Sink
from rollstream.offline.continuous.sources import ContinuousSource, FilesSource, TaskSplitSource
from rollstream.offline.continuous.taken import BatchRows, TakenRows
from rollstream.offline.continuous.topic_source import TOPIC, topic_source
from rollstream.offline.continuous.watch import HealthPlace, Watch, WatchedRows, served, stuck_seconds
from rollstream.offline.job import Job
from rollstream.offline.options import CollectOptions
from rollstream.offline.progress import Progress
from rollstream.offline.tasks import file_tasks
from rollstream.process.files import held, unwritable
from rollstream.process.settings.base import StageSettings
from rollstream.process.stop import Stop
from rollstream.process.terminal import Say
from rollstream.schemas.errors import ConfigurationError, RollstreamError

WATCH_SECONDS: Final = 5.0
SETTLED_SECONDS: Final = 2.0
"""A file that was written to a moment ago may be half there. It is looked at again soon, if looks are frequent."""
_RARE_SECONDS: Final = 60.0
_MOST_OPEN: Final = 1000


class _Tally:
    """Counts samples by the newest report on each batch. The older of many are kept as sums alone."""

    def __init__(self) -> None:
        self._newest: OrderedDict[Path, tuple[int, int]] = OrderedDict()
        self._num_samples, self._num_completed = 0, 0

    def __contains__(self, output: Path) -> bool:
        return output in self._newest

    def see(self, output: Path, report: CollectReport) -> None:
        """What became of a batch."""
        summary = report.summary
        found = (0, 0) if summary is None else (summary.num_samples, summary.num_completed)
        before = self._newest.pop(output, (0, 0))
        self._newest[output] = found if summary is not None else before
        self._num_samples += self._newest[output][0] - before[0]
        self._num_completed += self._newest[output][1] - before[1]
        while len(self._newest) > _MOST_OPEN:
            self._newest.popitem(last=False)

    @property
    def share_failed(self) -> float:
        """Of the samples, those without a response; 0 without samples."""
        return (self._num_samples - self._num_completed) / self._num_samples if self._num_samples else 0.0


def run_continuous(job: Job, stop: Stop, say: Say) -> int:
    """Collect what is new until `stop` is asked, or once; the exit code.

    It is 0, or 70 if more than the share `fail_over` of the samples of this process's batches has no response. Raises
    `ConfigurationError` for options that do not fit.
    """
    one = job.options
    place = None if one.health_port is None else HealthPlace(host=one.health_host, port=one.health_port)
    with served(place, stuck_seconds=stuck_seconds(one.deadline, one.num_samples, one.concurrency)) as watch:
        return _run(job, watch, stop, say)


def _run(job: Job, watch: Watch, stop: Stop, say: Say) -> int:
    one = job.options
    tally = _Tally()
    directory = _directory(one)
    with held(directory), TakenRows(directory / PROGRESS) as taken, _source(job, taken) as (source, environment):
        # Rows of an environment are written by us, with this column.
        prompt_key = "prompt" if isinstance(source, TaskSplitSource) else one.prompt_key

        def collect_batch(rows: BatchRows, output: Path, progress: Progress) -> CollectReport:
            settings = job.settings(output, one.format, environment)
            # Later tries of this process at the same batch go on counting.
            settings = settings.model_copy(update={"retry_failed": one.retry_failed and output not in tally})
            tasks = file_tasks(WatchedRows(rows, watch), prompt_key=prompt_key)
            report = job.collect(settings, tasks, stop, progress)
            tally.see(output, report)
            for line in report.lines():
                say(line)
            return report

        production = Production(
            directory=directory, taken=taken, source=source, kind=one.format, prompt_key=prompt_key,
            max_attempts=one.max_attempts, collect_batch=collect_batch, sink=_sink(job), say=say, watch=watch,
        )  # fmt: skip
        if one.retry_failed:
            taken.forget_tries()
        production.run(_schedule(one), stop)
    return RollstreamError.exit_code if tally.share_failed > one.fail_over else 0


def _schedule(one: CollectOptions) -> Schedule:
    seconds = one.every if one.every is not None or not one.watch else WATCH_SECONDS
    return Schedule(every_seconds=seconds, waits_first=not one.watch, remember_days=one.remember / 86400)


def _directory(one: CollectOptions) -> Path:
    directory = one.output.resolve()
    if directory.suffix in (".jsonl", ".parquet") or (directory.exists() and not directory.is_dir()):
        raise ConfigurationError(
            f"--output {directory}: what comes bit by bit is written in parts, so name a directory without a suffix, "
            "and the format with --format"
        )
    if one.overwrite:
        raise ConfigurationError(f"--overwrite removes one output, not parts: remove {directory} yourself")
    if Path(one.source).is_dir() and directory.is_relative_to(Path(one.source).resolve()):
        raise ConfigurationError(f"--output {directory} lies in the source, which would collect it: name another one")
    try:
        if directory.exists() and any(directory.iterdir()) and not (directory / PROGRESS).exists():
            raise ConfigurationError(
                f"--output {directory} holds files of somebody else: name a directory that is new or empty"
            )
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(directory, error) from error
    return directory


@contextmanager
def _source(job: Job, taken: TakenRows) -> Iterator[tuple[ContinuousSource, str]]:
    """The source, and the environment that scores its rows; "" for none."""
    one = job.options
    if one.source.startswith(TOPIC):
        cluster, topic = _cluster(job, one.source), one.source.removeprefix(TOPIC)
        with topic_source(cluster.kafka, cluster.run, topic, taken, accept_loss=one.accept_loss) as source:
            yield source, one.environment or ""
    elif Path(one.source).exists():
        every = _schedule(one).every_seconds
        settled = SETTLED_SECONDS if every is not None and every < _RARE_SECONDS else 0.0
        files = FilesSource(Path(one.source), settled_seconds=settled, is_looked_at_again=every is not None)
        yield files, one.environment or ""
    else:
        found = TaskSplitSource(job.environment(), split=one.split, seed=one.seed or 0, num_tasks=one.num_tasks)
        yield found, one.source if one.environment is None else one.environment


def _sink(job: Job) -> Sink | None:
    to = job.options.to
    if to is None:
        return None
    if not to.startswith(TOPIC):
        raise ConfigurationError(f"--to {to!r}: a sink is a topic, written like {TOPIC}demo.collected")
    if to == job.options.source:
        raise ConfigurationError(f"--to {to} is the source itself: name another topic")
    cluster = _cluster(job, to)
    return Sink(cluster.kafka, cluster.run, to.removeprefix(TOPIC))


def _cluster(job: Job, topic: str) -> StageSettings:
    if job.cluster is None:
        raise ConfigurationError(
            f"{topic}: name the file with [kafka] with --config; the engine may be another: --model, with --url"
        )
    return job.cluster
