"""Environments and agents of a user's own, as the run's settings declare them.

Anybody who can write a record may name an environment or agent in it. So a record carries only a name, and the settings
alone say what is imported under that name.
"""

import pkgutil
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from rollstream.process.masking import without_values
from rollstream.schemas.errors import ConfigurationError

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,60}")
# A name comes from a record and may be as long as one.
_SHOWN_CHARACTERS: Final = 100


class Declaration(BaseModel):
    """How one environment or agent is made."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    path: str | None = Field(
        default=None,
        pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)+$",
        description="package.module.name of a class, or of a function that makes one; a built-in one has no path",
    )
    options: dict[str, SecretStr] = Field(
        default_factory=dict, description="What it is made with, as text; may be secret, so only the names are shown"
    )

    @property
    def plain_options(self) -> dict[str, str]:
        """The options to make it with. Nothing may show the values."""
        return {name: value.get_secret_value() for name, value in self.options.items()}

    def told(self, error: BaseException) -> str:
        """What `error` says, which the user's code raised, without the values of the options."""
        return without_values(self.plain_options.values(), str(error))

    def cause(self, error: BaseException) -> BaseException:
        """`error` as the cause of another one: with options only what is told, and the place in the code."""
        return Exception(self.told(error)).with_traceback(error.__traceback__) if self.options else error


def checked_name(name: str) -> str:
    """`name`, if records may carry it. Raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} must match {_NAME.pattern}: choose a name, and write the dotted path as its `path`")
    return name


Declarations = dict[Annotated[str, AfterValidator(checked_name)], Declaration]
"""By the names that records carry."""


def imported(setting: str, path: str) -> Any:
    """What lies at `package.module.name`, which the setting names. Raises `ConfigurationError`."""
    try:
        return pkgutil.resolve_name(path)
    except KeyboardInterrupt:
        raise
    # BaseException: code of a user may also call sys.exit.
    except BaseException as error:
        raise ConfigurationError(f"{setting} = {path!r} cannot be imported: {type(error).__name__}: {error}") from error


def why_refused(name: str, table: str, *, built_in: Collection[str], declared: Mapping[str, Declaration]) -> str | None:
    """Why nothing is loaded under `name`; None if it is built in, or declared in `table` with its path."""
    path = declared[name].path if name in declared else None
    if name in built_in:
        return path and f"[{table}.{name}] is built in and has no `path`: declare your own under another name"
    if path:
        return None
    if name in declared:
        return f"[{table}.{name}] needs its `path`, e.g. path = 'my_package.my_module.MyClass'"
    known = ", ".join(sorted({*built_in, *declared}))
    return (
        f"{name[:_SHOWN_CHARACTERS]!r} is not one of the {table} of this run: {known}; "
        f"the run's settings declare another one as [{table}.NAME] with its `path`"
    )
