"""What the commands that collect rollouts have in common."""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from pydantic import SecretStr

from rollstream.cli.options import FiniteRange
from rollstream.process.terminal import escaped
from rollstream.schemas.errors import ConfigurationError

_LONGEST_CALL_SECONDS: Final = 86400.0

if TYPE_CHECKING:
    from rollstream.cli.collect_file import CollectFileSettings
    from rollstream.engines.settings import EngineSettings
    from rollstream.process.settings.base import StageSettings
    from rollstream.process.stop import Stop


def attempt_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of commands that ask: how often, and how much of it may fail. Underscores do as well as hyphens."""
    options = (
        click.option(
            "--max-attempts", "--max_attempts", type=click.IntRange(1, 254), default=3, show_default=True,
            help="Attempts at a sample, over all calls of the command.",
        ),
        click.option(
            "--retry-failed", "--retry_failed", is_flag=True, help="Ask what failed so often as if it never was asked."
        ),
        click.option(
            "--fail-over", "--fail_over", type=FiniteRange(0, 1), default=0.5, show_default=True,
            help="Exit with 70 if a larger share of the samples has no response; 1: never.",
        ),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def stop_on_signals() -> "Stop":
    """The first Ctrl-C or SIGTERM ends a collection so that it can go on later; and its progress is logged."""
    from rollstream.process.entry import ask_on_signal
    from rollstream.process.stop import Stop

    logging.getLogger("rollstream.offline").setLevel(logging.INFO)
    stop = Stop()
    ask_on_signal(stop)
    return stop


def say(line: str) -> None:
    """Print a line, of which parts may come from a file."""
    click.echo(escaped(line))


def chosen_engine(
    config: Path | None,
    urls: Sequence[str],
    model: str | None,
    key_variable: str | None,
    *,
    concurrency: int,
    deadline: float = 600.0,
) -> "EngineSettings":
    """The engine that options name: servers, or a model in this process; without --model that of the settings file.

    `deadline`: of a sample, seconds; a call of a server may take as long.
    """
    if model is None:
        return _engine_of(config, has_servers=bool(urls) or key_variable is not None)
    from rollstream.offline.engine_choice import in_process_engine, server_engine

    if not urls:
        return in_process_engine(model, max_num_seqs=concurrency)
    key = _named_key(key_variable)
    longest = min(deadline, _LONGEST_CALL_SECONDS)
    return server_engine(urls, model, max_connections=concurrency, api_key=key, request_seconds=longest)


def _engine_of(config: Path | None, *, has_servers: bool) -> "EngineSettings":
    if has_servers:
        raise click.UsageError("--url and --api-key-variable go with --model, the name that the servers know")
    if config is None:
        raise click.UsageError("name an engine: --model, with --url for one that runs elsewhere, or --config")
    engine = _settings(config).engine
    if engine is None:
        raise click.UsageError(f"{config} has no [generator.engine]: add it, or name --model, with --url for servers")
    return engine


def declared_in(config: Path | None) -> dict[str, Any]:
    """The environments and agents that a settings file declares."""
    if config is None:
        return {}
    settings = _settings(config)
    return {"environments": settings.environments, "agents": settings.agents}


def cluster_in(config: Path | None) -> "StageSettings | None":
    """Where topics are, by a settings file."""
    return None if config is None else _settings(config)


def _settings(config: Path) -> "CollectFileSettings":
    """A run's file; one that is for collecting alone needs no `run`."""
    from rollstream.cli.collect_file import CollectFileSettings
    from rollstream.process.settings.run_file import RunFile

    file = RunFile.read(config)
    with_run = RunFile(path=file.path, document={"run": "collect", **file.document}, text=file.text)
    settings, problems = CollectFileSettings.checked(with_run)
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


def litellm_key() -> SecretStr:
    """The key in LITELLM_API_KEY, else any."""
    return key_in("LITELLM_API_KEY") or _any_key()


def _any_key() -> SecretStr:
    """What servers without keys pass over. Without any LiteLLM answers 500, as if it were not ready."""
    return SecretStr("dummy")


def _named_key(variable: str | None) -> SecretStr:
    if variable is None:
        return _any_key()
    key = key_in(variable)
    if key is None:
        raise ConfigurationError(
            f"--api-key-variable {variable}: there is no such environment variable, or it is empty"
        )
    return key
