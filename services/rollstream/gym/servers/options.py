"""Keys of the configuration that are not of a server, but of `ng_run`, and the options of `ng_status`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from rollstream.gym.options import HeadServer
from rollstream.process.settings.options import CommandOptions
from rollstream.schemas.errors import ConfigurationError


class StatusOptions(CommandOptions):
    """Options of `ng_status`."""

    head_server: HeadServer = Field(default_factory=HeadServer, description="Where the head server listens.")


class RunOptions(StatusOptions):
    """Options of `ng_run`, beside `config_paths` and what sets a value of a server."""

    run_dir: Path = Field(default=Path("runs/gym"), description="Where the servers' logs are kept.")
    start_seconds: float = Field(default=120.0, gt=0, le=3600, description="Seconds that servers may take to answer.")


def run_options(config: Mapping[str, Any]) -> RunOptions:
    """Those among the values of a configuration. Raises `ConfigurationError` that names each mistake."""
    given = {name: config[name] for name in RunOptions.model_fields if config.get(name) is not None}
    try:
        return RunOptions.model_validate(given, strict=False)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False)]
        raise ConfigurationError("; ".join(problems[:10])) from error
