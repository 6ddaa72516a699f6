"""What the commands that collect rollouts have in common."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from rollstream.engines.settings import EngineSettings
from rollstream.generator.settings import GeneratorSettings
from rollstream.offline.engine_choice import named_engine
from rollstream.offline.job import Job
from rollstream.offline.options import CollectOptions
from rollstream.process.settings.run_file import RunFile
from rollstream.schemas.errors import ConfigurationError

if TYPE_CHECKING:
    from rollstream.process.stop import Stop


class CollectFileSettings(GeneratorSettings):
    """The file of `collect`: a run's, or one that only names a cluster, an engine, or what is declared.

    Nothing binds it to a policy: servers may keep their weights, and be named later.
    """

    engine: EngineSettings | None = Field(  # type: ignore[assignment]  # options may name it instead
        default=None, description="Which engine, and how it runs; default: what --model and --url say"
    )

    @model_validator(mode="after")
    def _follow_the_policy(self) -> Self:
        return self

    @model_validator(mode="after")
    def _reach_the_weights_everywhere(self) -> Self:
        return self


def job_of(options: CollectOptions) -> Job:
    """What the options say, with what their settings file says; raises `ConfigurationError`."""
    file = None if options.config is None else _settings(options.config)
    engine = named_engine(options) if options.model is not None else None if file is None else file.engine
    if engine is None:
        raise ConfigurationError(
            f"{options.config} has no [generator.engine]: add it, or name --model, with --url for servers"
        )
    if file is None:
        return Job(options=options, engine=engine)
    return Job(
        options=options,
        engine=engine,
        environments=file.environments,
        agents=file.agents,
        tools=file.tools,
        engines=file.engines,
        cluster=file,
    )


def _settings(config: Path) -> CollectFileSettings:
    """A run's file; one that is for collecting alone needs no `run`."""
    file = RunFile.read(config)
    with_run = RunFile(path=file.path, document={"run": "collect", **file.document}, text=file.text)
    settings, problems = CollectFileSettings.checked(with_run)
    if settings is None:
        raise ConfigurationError("; ".join(problems))
    return settings


def stop_on_signals() -> "Stop":
    """The first Ctrl-C or SIGTERM ends a collection so that it can go on later; and its progress is logged."""
    from rollstream.process.entry import ask_on_signal
    from rollstream.process.stop import Stop

    logging.getLogger("rollstream.offline").setLevel(logging.INFO)
    stop = Stop()
    ask_on_signal(stop)
    return stop
