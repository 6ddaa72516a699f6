"""Options that several commands share. The run is found without an option where there is only one choice."""

import errno
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rollstream.process.settings.base import RUN_FILE, StageSettings
from rollstream.schemas.addresses import checked_location
from rollstream.schemas.errors import ConfigurationError

if TYPE_CHECKING:
    from rollstream.bus.run import Run

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
LARGEST: Final = 2**31 - 1
"""Largest whole number of an option: what libraries hold in 32 bits."""


class FiniteRange(click.FloatRange):
    """A number in a range. `nan` is in no range, and after `inf` seconds nothing ever ends."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, if it is finite."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number

    def _describe_range(self) -> str:
        # click's own says `x<=None` where there is no bound.
        return "" if self.min is None and self.max is None else super()._describe_range()


class Period(click.ParamType[float]):
    """A time like 90s, 30m, 6h or 2d, as seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds, from 1 to those of 365 days."""
        found = re.fullmatch(r"(\d{1,9})([smhd])", str(value).strip())
        seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
        if not 1 <= seconds <= 365 * _UNITS["d"]:
            self.fail(f"{value!r} is no time from 1s to 365d, written like 90s, 30m, 6h or 2d.", param, ctx)
        return seconds

    @staticmethod
    def written(seconds: float) -> str:
        """The time in the largest unit that gives a whole number."""
        unit, size = next((unit, size) for unit, size in reversed(_UNITS.items()) if seconds % size == 0)
        return f"{seconds / size:.0f}{unit}"


class LocationType(click.ParamType[str]):
    """A place for files: a directory, or a prefix in a bucket. Errors don't show it: it may hold a password."""

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The place, see `checked_location`."""
        try:
            return checked_location(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def whole(minimum: int) -> click.IntRange:
    """A whole number from `minimum` on."""
    return click.IntRange(minimum, LARGEST)


def connected(settings: StageSettings, timeout_seconds: float | None = None) -> "Run":
    """The run, after a broker of its cluster has answered; raises `BrokerError` with the address after 5 s at most."""
    from rollstream.bus.clients import BROKER_ANSWERS_SECONDS, cluster_topics
    from rollstream.bus.run import Run

    patience = BROKER_ANSWERS_SECONDS if timeout_seconds is None else min(timeout_seconds, BROKER_ANSWERS_SECONDS)
    cluster_topics(settings.kafka, patience)
    return Run(settings)


def find_config(given: Path | None = None) -> Path | None:
    """The run's configuration file: the given one, else that of this directory, else that of the newest run in `runs/`.

    None if only the environment variable ROLLSTREAM_RUN names a run. Raises `ConfigurationError` if nothing names one.
    """
    if given is not None:
        return given
    if Path(RUN_FILE).is_file():
        return Path(RUN_FILE)
    runs = list(Path("runs").glob(f"*/{RUN_FILE}"))
    if runs:
        return max(runs, key=lambda path: path.stat().st_mtime)
    if "ROLLSTREAM_RUN" in os.environ:
        return None
    none = f"no run found: there is no ./{RUN_FILE} and no runs/*/{RUN_FILE}"
    raise ConfigurationError(f"{none}; name one with --config, or make one with `rollstream demo`")


def made_directory(path: Path) -> Path:
    """`path`, created if it does not exist. Raises `ConfigurationError` if this process can't write there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ConfigurationError(f"cannot write to {path}: {error.strerror}; choose another directory") from error
    return path


def _config_option(name: str, loaded: Callable[[Path | None], object]) -> Decorator:
    return click.option(
        "--config",
        name,
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="ROLLSTREAM_CONFIG",
        callback=lambda context, parameter, value: loaded(find_config(value)),
        help=f"The run's {RUN_FILE}. Default: ./{RUN_FILE}, else the newest runs/*/{RUN_FILE}.",
    )


config_option = _config_option("config", lambda path: path)
"""`--config`. The command gets `config: Path | None`, the result of `find_config`."""
settings_option = _config_option("settings", StageSettings.load)
"""`--config`. The command gets `settings: StageSettings`, the settings that all stages share."""
json_option: Decorator = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
"""`--json`. The command gets `as_json: bool`."""
