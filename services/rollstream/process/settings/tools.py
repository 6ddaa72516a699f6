"""`ToolSettings`, the tables `[tools.NAME]`: where the tools of a set are, and how long a call of them may take.

Records name a set. Only the settings say what is imported, started or asked under that name.
"""

from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, StringConstraints, model_validator

from rollstream.process.settings.declared import checked_name
from rollstream.schemas.addresses import checked_address, may_hold_a_password

ToolKind = Literal["python", "http", "mcp"]
_Text = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
_Schema = Annotated[str, StringConstraints(min_length=2, max_length=2**16)]
# What only some kinds have; all else is of every kind.
_OWN: Final[dict[str, tuple[ToolKind, ...]]] = {
    "path": ("python",),
    "max_memory_bytes": ("python",),
    "url": ("http", "mcp"),
    "max_tries": ("http", "mcp"),
    "schemas": ("http",),
    "answers_500": ("http",),
    "command": ("mcp",),
}


def _checked_url(url: str) -> str:
    checked_address(url, "http", "https")
    if may_hold_a_password(url):
        raise ValueError("must be like http://host:port/path, without user, password or query; keys are options")
    return url.rstrip("/")


class ToolSettings(BaseModel):
    """One set of tools."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    kind: ToolKind = Field(
        description="python: a class of your own, in a process for each sample; http: a resources server of NeMo Gym; "
        "mcp: a server of the Model Context Protocol, at a url or started as a command"
    )
    path: str | None = Field(
        default=None,
        pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)+$",
        description="python: package.module.name of a class whose public methods are the tools; one is made for each "
        "sample",
    )
    options: dict[str, SecretStr] = Field(
        default_factory=dict,
        max_length=128,
        description="python: what the class is made with, as text; of a url: headers of each request, such as "
        "Authorization; of a command: its environment variables, beside PATH and the like. May be secret, so only the "
        "names are shown",
    )
    max_memory_bytes: int = Field(
        default=2**31,
        ge=2**26,
        le=2**40,
        description="python: most memory that a sample's process may map, beyond that its calls raise MemoryError",
    )
    url: Annotated[_Text, AfterValidator(_checked_url)] | None = Field(
        default=None,
        json_schema_extra={"writeOnly": True},
        description="http, mcp: address of the server, http:// or https://; redirects are not followed to other hosts",
    )
    max_tries: int = Field(
        default=3,
        ge=1,
        le=100,
        description="http, mcp: tries at what may be repeated: opening, closing, what did not arrive, and calls of "
        "replayable tools",
    )
    schemas: tuple[_Schema, ...] = Field(
        default=(),
        max_length=128,
        description="http: its tools, each a JSON function schema; by default those that the prompt carries",
    )
    answers_500: bool = Field(
        default=False,
        description="http: status 500 is an error of the tool itself, which the model is shown, as NeMo Gym has it; "
        "by default the sample is unresolved",
    )
    command: tuple[_Text, ...] = Field(
        default=(),
        max_length=128,
        description="mcp: program and arguments of a server that speaks over its standard input and output; one is "
        "started for each sample",
    )
    replayable: tuple[_Text, ...] = Field(
        default=(),
        max_length=128,
        description="Names of tools whose call may be made again although the first may have arrived: those that only "
        "read, or set what a second call sets alike. http: `verify` too, if a second verification costs and changes "
        "nothing",
    )
    reopens: bool = Field(
        default=False,
        description="Another process may open a session again under its id, and finds its state: tools without state, "
        "or a server that keeps sessions by the id in the header Rollstream-Session. Else a sample whose generator "
        "died begins anew",
    )
    max_sessions: int = Field(
        default=256, ge=1, le=65536, description="Most sessions that are open in this process; others wait"
    )
    open_seconds: float = Field(
        default=60.0, gt=0, le=3600, description="Deadline of opening a session, with its repetitions"
    )
    call_seconds: float = Field(default=60.0, gt=0, le=3600, description="Deadline of one call, with its repetitions")
    verify_seconds: float | None = Field(
        default=None,
        gt=0,
        le=86400,
        description="Deadline of a verification, e.g. by a judge, with its repetitions; default: call_seconds",
    )
    close_seconds: float = Field(
        default=10.0, gt=0, le=600, description="Deadline of closing a session; a process that still runs is killed"
    )
    max_answer_bytes: int = Field(
        default=2**20,
        ge=1024,
        le=2**26,
        description="Most bytes of one answer of the server; beyond it the sample is unresolved",
    )

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        strange = [name for name, kinds in _OWN.items() if name in self.model_fields_set and self.kind not in kinds]
        if strange:
            raise ValueError(f"{', '.join(strange)}: not of kind {self.kind}")
        if self.kind == "python" and self.path is None:
            raise ValueError("kind python needs its `path`, e.g. path = 'my_package.my_module.MyTools'")
        if self.kind == "http" and self.url is None:
            raise ValueError("kind http needs its `url`, e.g. url = 'http://127.0.0.1:8080'")
        if self.kind == "mcp" and (self.url is None) == (not self.command):
            raise ValueError("kind mcp needs either a `url` or a `command`")
        return self


ToolTables = Annotated[dict[Annotated[str, AfterValidator(checked_name)], ToolSettings], Field(max_length=64)]
"""By the names that prompts carry."""
