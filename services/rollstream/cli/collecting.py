"""What the commands that collect rollouts have in common."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydantic import SecretStr

from rollstream.process.terminal import escaped
from rollstream.schemas.errors import ConfigurationError

if TYPE_CHECKING:
    from rollstream.engines.settings import EngineSettings
    from rollstream.generator.settings import GeneratorSettings
    from rollstream.process.settings import StageSettings
    from rollstream.process.stop import Stop


def stop_on_signals() -> "Stop":
    """The first Ctrl-C or SIGTERM ends a collection so that it can go on later; and its progress is logged."""
    from rollstream.process.entry import ask_on_signal
    from rollstream.process.stop import Stop

    logging.getLogger("rollstream.collect").setLevel(logging.INFO)
    stop = Stop()
    ask_on_signal(stop)
    return stop


def say(line: str) -> None:
    """Print a line, of which parts may come from a file."""
    click.echo(escaped(line))


def chosen_engine(
    config: Path | None, urls: Sequence[str], model: str | None, key_variable: str | None, *, concurrency: int
) -> "EngineSettings":
    """The engine of the settings file; or of servers; or of a model in this process."""
    if (config is None) == (model is None):
        raise click.UsageError("name an engine: either --config, or --model, with --url for one that runs elsewhere")
    if config is not None:
        if urls or key_variable is not None:
            raise click.UsageError("--url and --api-key-variable go with --model; --config names an engine itself")
        return _settings(config).engine
    from rollstream.collect.engine_choice import in_process_engine, server_engine

    if not urls:
        return in_process_engine(str(model), max_num_seqs=concurrency)
    return server_engine(urls, str(model), max_connections=concurrency, api_key=_named_key(key_variable))


def declared_in(config: Path | None) -> dict[str, Any]:
    """The environments and agents that a settings file declares."""
    if config is None:
        return {}
    settings = _settings(config)
    return {"environments": settings.environments, "agents": settings.agents}


def cluster_in(config: Path | None) -> "StageSettings | None":
    """Where topics are, by a settings file."""
    return None if config is None else _settings(config)


def _settings(config: Path) -> "GeneratorSettings":
    """A run's file; one that is for collecting alone needs no `run`."""
    from rollstream.generator.settings import GeneratorSettings
    from rollstream.process.run_file import RunFile

    file = RunFile.read(config)
    with_run = RunFile(path=file.path, document={"run": "collect", **file.document}, text=file.text)
    settings, problems = GeneratorSettings.checked(with_run)
    if settings is None:
        raise ConfigurationError("; ".join(problems))
    return settings


def key_in(variable: str) -> SecretStr | None:
    """The key of servers that this environment variable holds, which no message shows; None if it holds none."""
    from rollstream.process.masking import SECRETS

    key = os.environ.get(variable)
    if not key:
        return None
    SECRETS.add([key])
    return SecretStr(key)


def _named_key(variable: str | None) -> SecretStr | None:
    key = None if variable is None else key_in(variable)
    if variable is not None and key is None:
        raise ConfigurationError(
            f"--api-key-variable {variable}: there is no such environment variable, or it is empty"
        )
    return key
