"""What the models of commands have in common. A command declares its options once, as the fields of a model.

`cli/command_options.py` makes its command line of them.
"""

from typing import ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, JsonValue


class CommandOptions(BaseModel):
    """The options of one command: each field is one, with its name, meaning, bound and default.

    `separator` stands between the words of an option in the help. A field's `json_schema_extra` may be one of the
    constants below, `{"variable": NAME}`: the environment variable that gives the value where the option is missing, or
    `{"opposite": NAME}`: the option that takes a flag back.
    """

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, validate_default=True, hide_input_in_errors=True
    )
    separator: ClassVar[Literal["-", "_"]] = "-"


ARGUMENT: Final[dict[str, JsonValue]] = {"argument": True}
"""It stands on the command line without a name."""
EXISTING: Final[dict[str, JsonValue]] = {"path": "existing"}
FILE: Final[dict[str, JsonValue]] = {"path": "file"}
"""No directory."""
DIRECTORY: Final[dict[str, JsonValue]] = {"path": "directory"}
"""No file."""
LOCATION: Final[dict[str, JsonValue]] = {"format": "location"}
"""A directory, or a prefix in a bucket."""
TIME: Final[dict[str, JsonValue]] = {"unit": "seconds", "format": "time"}
"""It is written like 90s, 30m, 6h or 2d, and held in seconds."""
