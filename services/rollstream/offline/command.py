"""What `rollstream collect` does: its options become tasks, an engine and the settings of a collection."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rollstream.agents.samples import SampleBounds
from rollstream.engines.build import build_engine
from rollstream.engines.settings import EngineSettings
from rollstream.environments.load import load_environment
from rollstream.environments.pool.pool import PoolBounds
from rollstream.environments.protocol import Environment, Split
from rollstream.offline.collection import CollectReport, collect
from rollstream.offline.engine_choice import described
from rollstream.offline.generate import refuse_same
from rollstream.offline.manifest import begun_input
from rollstream.offline.output import scored_columns
from rollstream.offline.paths import Places
from rollstream.offline.settings import DEFAULT_FAIL_OVER, DEFAULT_MAX_ATTEMPTS, CollectSettings
from rollstream.offline.tasks import EnvironmentTasks, FileTasks, TaskSource
from rollstream.process.settings.declared import Declaration
from rollstream.process.stop import Stop
from rollstream.rows.hub import is_hub_name
from rollstream.rows.open import open_rows
from rollstream.rows.write import Kind
from rollstream.schemas.errors import ConfigurationError, UnknownEnvironmentError
from rollstream.schemas.prompt import AgentChoice, Sampling

_KINDS: Final[Mapping[str, Kind]] = {".jsonl": "jsonl", ".parquet": "parquet", "": "hf"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectOptions:
    """`source`: a file or directory, else an environment's name. None: the environment's own value, or the default."""

    source: str
    output: Path
    engine: EngineSettings
    environments: Mapping[str, Declaration] = field(default_factory=dict)
    agents: Mapping[str, Declaration] = field(default_factory=dict)
    environment: str | None = None
    agent: str = "single_turn"
    split: Split = "train"
    num_tasks: int | None = None
    prompt_key: str = "prompt"
    num_samples: int = 1
    concurrency: int = 64
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    deadline: float = 600.0
    scoring_processes: int = 1
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    retry_failed: bool = False
    fail_over: float = DEFAULT_FAIL_OVER
    overwrite: bool = False


def run_collect(options: CollectOptions, stop: Stop, say: Callable[[str], None]) -> CollectReport:
    """Collect, and say what is worth knowing; raises `ConfigurationError` for options that do not fit."""
    tasks, environment = _tasks(options)
    settings = settings_of(options, options.output, kind_of(options.output), environment)
    report = collect(settings, tasks, build_engine(options.engine), stop, scored_columns)
    for line in report.lines(settings):
        say(line)
    return report


def settings_of(options: CollectOptions, output: Path, kind: Kind, environment: str) -> CollectSettings:
    """The settings of a collection into `output`; `environment` scores it, unless it is ""."""
    return CollectSettings(
        output=output,
        kind=kind,
        num_samples=options.num_samples,
        sampling=_sampling(options, environment),
        concurrency=options.concurrency,
        described=_described(options),
        environment=environment,
        environments=options.environments,
        agent=AgentChoice(name=options.agent),
        agents=options.agents,
        # An HTTP engine repeats a call itself, and knows better when.
        bounds=SampleBounds(
            deadline_seconds=options.deadline, max_tries=1 if options.engine.kind == "openai_http" else 2
        ),
        pool=PoolBounds(num_processes=options.scoring_processes),
        max_attempts=options.max_attempts,
        retry_failed=options.retry_failed,
        fail_over=options.fail_over,
        overwrite=options.overwrite,
    )


def kind_of(output: Path) -> Kind:
    """The format by the name: .jsonl, .parquet, or a directory for a name without a suffix."""
    if not output.name or output.suffix not in _KINDS:
        raise ConfigurationError(
            f"output {output}: its name must end in .jsonl or .parquet, or have no suffix for a directory that "
            "`datasets.load_from_disk` opens"
        )
    return _KINDS[output.suffix]


def _tasks(options: CollectOptions) -> tuple[TaskSource, str]:
    """The tasks, and the environment that scores them; "" for none."""
    path = Path(options.source)
    if _names_rows(path):
        refuse_same(path, options.output)
        rows = open_rows(path, "" if options.overwrite else begun_input(Places(options.output).manifest))
        return FileTasks(rows, prompt_key=options.prompt_key), options.environment or ""
    environment = environment_of(options)
    tasks = EnvironmentTasks(environment, split=options.split, seed=options.seed or 0, num_rows=options.num_tasks)
    return tasks, options.source if options.environment is None else options.environment


def environment_of(options: CollectOptions) -> Environment:
    """The environment that the source names; raises `ConfigurationError` if it names none, and no file either."""
    try:
        return load_environment(options.source, options.environments)
    except UnknownEnvironmentError as error:
        raise ConfigurationError(f"{options.source!r} is neither a file here nor an environment: {error}") from error


def _names_rows(source: Path) -> bool:
    """Whether the source is a file, a directory or a data set on the hub; else it is an environment's name."""
    return source.exists() or is_hub_name(source)


def _sampling(options: CollectOptions, environment: str) -> Sampling:
    usual = load_environment(environment, options.environments).sampling if environment else Sampling()
    given = {"temperature": options.temperature, "top_p": options.top_p, "max_tokens": options.max_tokens}
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if options.stop:
        changed["stop"] = options.stop
    if options.seed is not None:
        changed["seed"] = options.seed
    return usual.model_copy(update=changed)


def _described(options: CollectOptions) -> dict[str, Any]:
    by_environment = {"split": options.split, "num_tasks": options.num_tasks}
    # Options of environments may be secret, so only their names are noted.
    declared = {name: sorted(one.options) for name, one in options.environments.items()}
    return {
        **described(options.engine),
        "source": options.source,
        "prompt_key": options.prompt_key,
        "environment_options": declared,
        **({} if _names_rows(Path(options.source)) else by_environment),
    }
