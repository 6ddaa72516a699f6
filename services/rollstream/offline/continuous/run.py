"""What `rollstream collect` does with --every, --watch or a topic: makes the feed and the sink, and starts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rollstream.engines.build import build_engine
from rollstream.offline.collection import CollectReport, collect
from rollstream.offline.command import CollectOptions, environment_of, settings_of
from rollstream.offline.continuous.feeds import EnvironmentFeed, Feed, FilesFeed
from rollstream.offline.continuous.production import STATE, Production, Say, Schedule
from rollstream.offline.continuous.sink import Sink
from rollstream.offline.continuous.state import State
from rollstream.offline.continuous.tally import Tally
from rollstream.offline.continuous.topic_feed import TOPIC, topic_feed
from rollstream.offline.continuous.watch import HealthPlace, Watch, WatchedRows, served, stuck_seconds
from rollstream.offline.output import scored_columns
from rollstream.offline.paths import Places
from rollstream.offline.tasks import FileTasks
from rollstream.process.settings.base import StageSettings
from rollstream.process.stop import Stop
from rollstream.rows.open import open_rows
from rollstream.rows.write import Kind
from rollstream.schemas.errors import ConfigurationError, RollstreamError

WATCH_SECONDS: Final = 5.0
SETTLED_SECONDS: Final = 2.0
"""A file that was written to a moment ago may be half there. It is looked at again soon, if looks are frequent."""
_RARE_SECONDS: Final = 60.0
_DEFAULT_TASKS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuousOptions:
    """`collect`: as for one collection, with a directory as output. `to`: a sink, `topic:NAME`, or None.

    `cluster`: where topics are; None if the command was given no file that says it. `health`: where metrics and health
    are served; None: nowhere.
    """

    collect: CollectOptions
    schedule: Schedule
    kind: Kind
    to: str | None = None
    cluster: StageSettings | None = None
    accept_loss: bool = False
    health: HealthPlace | None = None


def run_continuous(options: ContinuousOptions, stop: Stop, say: Say) -> int:
    """Collect what is new until `stop` is asked, or once; the exit code.

    It is 0, or 70 if more than the share `fail_over` of the samples of this process's parts has no response. Raises
    `ConfigurationError` for options that do not fit.
    """
    one = options.collect
    stuck = stuck_seconds(one.deadline, one.num_samples, one.concurrency)
    with served(options.health, stuck_seconds=stuck) as watch:
        return _run(options, watch, stop, say)


def _run(options: ContinuousOptions, watch: Watch, stop: Stop, say: Say) -> int:
    one = options.collect
    tally = Tally()
    directory = _directory(one)
    with Places(directory).locked(), State(directory / STATE) as state, _feed(options, state) as (feed, environment):
        # Rows of an environment are written by us, with this column.
        prompt_key = "prompt" if isinstance(feed, EnvironmentFeed) else one.prompt_key

        def collect_part(rows: Path, output: Path) -> CollectReport:
            settings = settings_of(one, output, options.kind, environment)
            # Later tries of this process at the same part go on counting.
            settings = replace(settings, retry_failed=one.retry_failed and output not in tally)
            tasks = FileTasks(WatchedRows(open_rows(rows), watch), prompt_key=prompt_key)
            report = collect(settings, tasks, build_engine(one.engine), stop, scored_columns)
            tally.see(output, report)
            for line in report.lines(settings):
                say(line)
            return report

        production = Production(
            directory=directory, state=state, feed=feed, kind=options.kind, prompt_key=prompt_key,
            max_attempts=one.max_attempts, collect_part=collect_part, sink=_sink(options), say=say, watch=watch,
        )  # fmt: skip
        if one.retry_failed:
            state.forget_tries()
        production.run(options.schedule, stop)
    return RollstreamError.exit_code if tally.share_failed > one.fail_over else 0


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
def _feed(options: ContinuousOptions, state: State) -> Iterator[tuple[Feed, str]]:
    """The feed, and the environment that scores its rows; "" for none."""
    one = options.collect
    if one.source.startswith(TOPIC):
        cluster, topic = _cluster(options, one.source), one.source.removeprefix(TOPIC)
        with topic_feed(cluster.kafka, cluster.run, topic, state, accept_loss=options.accept_loss) as feed:
            yield feed, one.environment or ""
    elif Path(one.source).exists():
        every = options.schedule.every_seconds
        settled = SETTLED_SECONDS if every is not None and every < _RARE_SECONDS else 0.0
        files = FilesFeed(Path(one.source), settled_seconds=settled, is_looked_at_again=every is not None)
        yield files, one.environment or ""
    else:
        num_tasks = one.num_tasks or _DEFAULT_TASKS
        found = EnvironmentFeed(environment_of(one), split=one.split, seed=one.seed or 0, num_tasks=num_tasks)
        yield found, one.source if one.environment is None else one.environment


def _sink(options: ContinuousOptions) -> Sink | None:
    if options.to is None:
        return None
    if not options.to.startswith(TOPIC):
        raise ConfigurationError(f"--to {options.to!r}: a sink is a topic, written like {TOPIC}demo.collected")
    if options.to == options.collect.source:
        raise ConfigurationError(f"--to {options.to} is the source itself: name another topic")
    cluster = _cluster(options, options.to)
    return Sink(cluster.kafka, cluster.run, options.to.removeprefix(TOPIC))


def _cluster(options: ContinuousOptions, topic: str) -> StageSettings:
    if options.cluster is None:
        raise ConfigurationError(
            f"{topic}: name the file with [kafka] with --config; the engine may be another: --model, with --url"
        )
    return options.cluster
