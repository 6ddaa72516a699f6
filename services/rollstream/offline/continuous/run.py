"""What `rollstream collect` does with --every, --watch or a topic: makes the feed and the sink, and starts."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rollstream.offline.collection import CollectReport
from rollstream.offline.continuous.feeds import EnvironmentFeed, Feed, FilesFeed
from rollstream.offline.continuous.production import STATE, Production, Say, Schedule
from rollstream.offline.continuous.sink import Sink
from rollstream.offline.continuous.state import State
from rollstream.offline.continuous.tally import Tally
from rollstream.offline.continuous.topic_feed import TOPIC, topic_feed
from rollstream.offline.continuous.watch import HealthPlace, Watch, WatchedRows, served, stuck_seconds
from rollstream.offline.job import Job
from rollstream.offline.options import CollectOptions
from rollstream.offline.paths import Places
from rollstream.offline.tasks import FileTasks
from rollstream.process.settings.base import StageSettings
from rollstream.process.stop import Stop
from rollstream.rows.open import open_rows
from rollstream.schemas.errors import ConfigurationError, RollstreamError

WATCH_SECONDS: Final = 5.0
SETTLED_SECONDS: Final = 2.0
"""A file that was written to a moment ago may be half there. It is looked at again soon, if looks are frequent."""
_RARE_SECONDS: Final = 60.0


def run_continuous(job: Job, stop: Stop, say: Say) -> int:
    """Collect what is new until `stop` is asked, or once; the exit code.

    It is 0, or 70 if more than the share `fail_over` of the samples of this process's parts has no response. Raises
    `ConfigurationError` for options that do not fit.
    """
    one = job.options
    place = None if one.health_port is None else HealthPlace(host=one.health_host, port=one.health_port)
    with served(place, stuck_seconds=stuck_seconds(one.deadline, one.num_samples, one.concurrency)) as watch:
        return _run(job, watch, stop, say)


def _run(job: Job, watch: Watch, stop: Stop, say: Say) -> int:
    one = job.options
    tally = Tally()
    directory = _directory(one)
    with Places(directory).locked(), State(directory / STATE) as state, _feed(job, state) as (feed, environment):
        # Rows of an environment are written by us, with this column.
        prompt_key = "prompt" if isinstance(feed, EnvironmentFeed) else one.prompt_key

        def collect_part(rows: Path, output: Path) -> CollectReport:
            settings = job.settings(output, one.format, environment)
            # Later tries of this process at the same part go on counting.
            settings = settings.model_copy(update={"retry_failed": one.retry_failed and output not in tally})
            tasks = FileTasks(WatchedRows(open_rows(rows), watch), prompt_key=prompt_key)
            report = job.collect(settings, tasks, stop)
            tally.see(output, report)
            for line in report.lines(settings):
                say(line)
            return report

        production = Production(
            directory=directory, state=state, feed=feed, kind=one.format, prompt_key=prompt_key,
            max_attempts=one.max_attempts, collect_part=collect_part, sink=_sink(job), say=say, watch=watch,
        )  # fmt: skip
        if one.retry_failed:
            state.forget_tries()
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
        if directory.exists() and any(directory.iterdir()) and not (directory / STATE).exists():
            raise ConfigurationError(
                f"--output {directory} holds files of somebody else: name a directory that is new or empty"
            )
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot write {directory}: {error.strerror}; choose another place") from error
    return directory


@contextmanager
def _feed(job: Job, state: State) -> Iterator[tuple[Feed, str]]:
    """The feed, and the environment that scores its rows; "" for none."""
    one = job.options
    if one.source.startswith(TOPIC):
        cluster, topic = _cluster(job, one.source), one.source.removeprefix(TOPIC)
        with topic_feed(cluster.kafka, cluster.run, topic, state, accept_loss=one.accept_loss) as feed:
            yield feed, one.environment or ""
    elif Path(one.source).exists():
        every = _schedule(one).every_seconds
        settled = SETTLED_SECONDS if every is not None and every < _RARE_SECONDS else 0.0
        files = FilesFeed(Path(one.source), settled_seconds=settled, is_looked_at_again=every is not None)
        yield files, one.environment or ""
    else:
        found = EnvironmentFeed(job.environment(), split=one.split, seed=one.seed or 0, num_tasks=one.num_tasks)
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
