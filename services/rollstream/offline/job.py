"""What `rollstream collect` and its presets do: options become tasks, an engine and the settings of a collection."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollstream.agents.samples import SampleBounds
from rollstream.engines.build import build_engine
from rollstream.engines.protocol import Engine
from rollstream.engines.settings import EngineSettings
from rollstream.environments.load import load_environment
from rollstream.environments.pool.pool import PoolBounds
from rollstream.environments.protocol import Environment
from rollstream.offline.askers import EngineAsker
from rollstream.offline.collection import JOB, CollectReport, collect
from rollstream.offline.options import CollectOptions, SamplesOptions
from rollstream.offline.output import ToColumns, scored_columns
from rollstream.offline.paths import OutputPaths
from rollstream.offline.progress import Progress, begun_input
from rollstream.offline.settings import CollectSettings
from rollstream.offline.tasks import EnvironmentTasks, TaskSource, file_tasks
from rollstream.process.settings.base import StageSettings
from rollstream.process.settings.declared import Declaration
from rollstream.process.settings.tools import ToolSettings
from rollstream.process.stop import Stop
from rollstream.process.terminal import Say
from rollstream.rows.hub import is_hub_name
from rollstream.rows.open import open_rows
from rollstream.rows.write import Kind, kind_of
from rollstream.schemas.bounds import MAX_SAMPLE_TOKENS, MAX_TEMPERATURE, MIN_TEMPERATURE
from rollstream.schemas.errors import ConfigurationError, UnknownEnvironmentError
from rollstream.schemas.prompt import AgentChoice, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A collection: its options, and what a settings file or a preset adds to them.

    `engine`: one that is there already takes part in one collection only. `is_environment`: the source names one,
    whatever lies in the working directory under that name. `cluster`: where topics are; None if no file says it.
    `kind`: instead of what the output's name says. `described`, `jsonl_copy`: as in `CollectSettings`.
    """

    options: CollectOptions
    engine: EngineSettings | Engine
    is_environment: bool = False
    environments: Mapping[str, Declaration] = field(default_factory=dict)
    agents: Mapping[str, Declaration] = field(default_factory=dict)
    tools: Mapping[str, ToolSettings] = field(default_factory=dict)
    engines: Mapping[str, EngineSettings] = field(default_factory=dict)
    cluster: StageSettings | None = None
    to_columns: ToColumns = scored_columns
    kind: Kind | None = None
    described: Mapping[str, Any] = field(default_factory=dict)
    jsonl_copy: Path | None = None

    def run(self, stop: Stop, say: Say) -> CollectReport:
        """Collect, and say what is worth knowing; raises `ConfigurationError` for options that do not fit."""
        tasks, environment = self.tasks()
        settings = self.settings(self.options.output, self.kind or kind_of(self.options.output), environment)
        report = self.collect(settings, tasks, stop)
        for line in report.lines():
            say(line)
        return report

    def collect(
        self, settings: CollectSettings, tasks: TaskSource, stop: Stop, progress: Progress | None = None
    ) -> CollectReport:
        """Collect these tasks; `progress`: see `collect`."""
        engine = build_engine(self.engine) if isinstance(self.engine, EngineSettings) else self.engine
        return collect(settings, tasks, EngineAsker(engine, settings, tasks), stop, self.to_columns, progress)

    def tasks(self) -> tuple[TaskSource, str]:
        """The tasks of the source, and the environment that scores them; "" for none."""
        options, path = self.options, Path(self.options.source)
        if self._reads_rows():
            _refuse_same(path, options.output)
            rows = open_rows(path, "" if options.overwrite else begun_input(OutputPaths(options.output).progress, JOB))
            return file_tasks(rows, prompt_key=options.prompt_key), options.environment or ""
        environment, seed = self.environment(), options.seed or 0
        tasks = EnvironmentTasks(environment, split=options.split, seed=seed, num_rows=options.num_tasks)
        return tasks, options.source if options.environment is None else options.environment

    def environment(self) -> Environment:
        """The environment that the source names; raises `ConfigurationError` if it names none, and no file either."""
        source = self.options.source
        try:
            return load_environment(source, self.environments)
        except UnknownEnvironmentError as error:
            raise ConfigurationError(f"{source!r} is neither a file here nor an environment: {error}") from error

    def settings(self, output: Path, kind: Kind, environment: str) -> CollectSettings:
        """The settings of a collection into `output`; `environment` scores it, unless it is ""."""
        options, is_remote = self.options, _is_remote(self.engine)
        return CollectSettings(
            output=output,
            kind=kind,
            sampling=self._sampling(environment),
            described=self._described(),
            environment=environment,
            environments=self.environments,
            agent=AgentChoice(name=options.agent),
            agents=self.agents,
            tools=self.tools,
            engines=self.engines,
            # An HTTP engine repeats a call itself, and knows better when.
            bounds=SampleBounds(deadline_seconds=options.deadline, max_tries=1 if is_remote else 2),
            pool=PoolBounds(num_processes=options.scoring_processes),
            jsonl_copy=self.jsonl_copy,
            **options.model_dump(include=set(SamplesOptions.model_fields)),
        )

    def _reads_rows(self) -> bool:
        """Whether the source is a file, a directory or a data set on the hub; else it is an environment's name."""
        source = Path(self.options.source)
        return not self.is_environment and (source.exists() or is_hub_name(source))

    def _sampling(self, environment: str) -> Sampling:
        usual = load_environment(environment, self.environments).sampling if environment else Sampling()
        given = self.options.model_dump(include={"temperature", "top_p", "max_tokens", "seed"}, exclude_none=True)
        stop = {"stop": self.options.stop} if self.options.stop else {}
        found = usual.model_copy(update={**given, **stop})
        # An environment of one's own may say anything.
        is_possible = not found.temperature or MIN_TEMPERATURE <= found.temperature <= MAX_TEMPERATURE
        if not is_possible or found.max_tokens > MAX_SAMPLE_TOKENS:
            raise ConfigurationError(
                f"environment {environment} wants temperature {found.temperature:g} (0, or {MIN_TEMPERATURE:g} to "
                f"{MAX_TEMPERATURE:g}) and max_tokens {found.max_tokens} (at most {MAX_SAMPLE_TOKENS}): name others "
                "with --temperature and --max-tokens"
            )
        return found

    def _described(self) -> dict[str, Any]:
        options = self.options
        # Which rows are asked is in the identity of the input, wherever their file lies by now, or is away for a while.
        has_identity = options.comes_in_parts or self._reads_rows()
        by_name = {"source": options.source, "split": options.split, "num_tasks": options.num_tasks}
        # Options of environments may be secret, so only their names are noted.
        declared = {name: [one.path, *sorted(one.options)] for name, one in self.environments.items()}
        return {
            **_model_of(self.engine),
            **self.described,
            "prompt_key": options.prompt_key,
            "environments": declared,
            **({} if has_identity else by_name),
        }


def _refuse_same(data: Path, output: Path) -> None:
    if output.exists() and data.exists() and output.samefile(data):
        raise ConfigurationError(f"output {output} is the input itself: name another output")


def _is_remote(engine: EngineSettings | Engine) -> bool:
    return isinstance(engine, EngineSettings) and engine.kind == "openai_http"


def _model_of(engine: EngineSettings | Engine) -> dict[str, Any]:
    """What of an engine must be the same for a resume: which model answers, not where it runs."""
    if not isinstance(engine, EngineSettings):
        return {"engine": engine.name}
    if engine.kind == "openai_http":
        return {"engine": engine.kind, "model": engine.http.model, "api": engine.http.api}
    found = {"engine": engine.kind, "model": str(engine.model_path)}
    return {**found, **engine.scripted.model_dump(mode="json")} if engine.kind == "scripted" else found
