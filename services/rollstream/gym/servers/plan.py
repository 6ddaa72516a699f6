"""Which servers a configuration describes, all of it checked before a process starts.

An entry is `NAME: {KIND: {IMPLEMENTATION: settings}}`. Its `entrypoint` says what runs: `app.py` a packaged server of
that implementation, `package.module.Class` a class of yours behind the routes of a resources server, and a file at
`KIND/IMPLEMENTATION/app.py` of the working directory a program of your own.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rollstream.gym.addresses import AGENTS, RESOURCES
from rollstream.gym.servers.settings import AgentSettings, ModelSettings, Place, ResourcesSettings, ServerSettings
from rollstream.process.settings.errors import did_you_mean
from rollstream.schemas.errors import ConfigurationError

MODELS: Final = "responses_api_models"
_KINDS: Final = (MODELS, AGENTS, RESOURCES)
_EXAMPLES: Final = {
    "example_multi_step": "rollstream.gym.servers.examples.multi_step.MultiStep",
    "example_session_state_mgmt": "rollstream.gym.servers.examples.counter.SessionCounter",
}
_CHATS: Final = "vllm_model"
_OWN: Final = {MODELS: ("openai_model", _CHATS), AGENTS: ("simple_agent",), RESOURCES: tuple(_EXAMPLES)}
_SETTINGS: Final[Mapping[str, type[ServerSettings]]] = {
    MODELS: ModelSettings,
    AGENTS: AgentSettings,
    RESOURCES: ResourcesSettings,
}
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")
_CLASS: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_MAX_SERVERS: Final = 64
_SHOWN: Final = 20

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GymServerPlan:
    """One server. `program`: the file that runs as a process of its own; None: this project's server does."""

    name: str
    kind: str
    implementation: str
    settings: ServerSettings
    program: Path | None = None


def planned(config: Config) -> tuple[GymServerPlan, ...]:
    """The servers of a configuration. Raises `ConfigurationError` that names the server, and what to correct."""
    entries = list(_entries(config))
    if not entries:
        raise ConfigurationError(f"the configuration has no server: an entry is NAME: {{{RESOURCES}: {{…}}}}")
    if len(entries) > _MAX_SERVERS:
        raise ConfigurationError(f"the configuration has {len(entries)} servers, at most {_MAX_SERVERS}")
    kinds = {name: kind for name, kind, _, _ in entries}
    for name, _, _, given in entries:
        _refuse_unresolved(name, given, kinds)
    return tuple(_plan(*entry) for entry in entries)


def _entries(config: Config) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Name, kind, implementation and settings of each server; other entries are values to refer to."""
    for name, kinds in config.items():
        kind = next((one for one in _KINDS if isinstance(kinds, dict) and one in kinds), None)
        if kind is None:
            continue
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"server {name[:_SHOWN]!r}: its name must match {_NAME.pattern}")
        made = kinds[kind]
        if len(kinds) != 1 or not isinstance(made, dict) or len(made) != 1:
            raise ConfigurationError(
                f"server {name!r}: expected {name}: {{{kind}: {{IMPLEMENTATION: …}}}}, one of each"
            )
        ((implementation, given),) = made.items()
        if not _NAME.fullmatch(str(implementation)) or not isinstance(given, dict):
            raise ConfigurationError(f"server {name!r}: {kind} has no implementation with settings")
        yield name, kind, str(implementation), given


def _refuse_unresolved(name: str, given: Config, kinds: Mapping[str, str]) -> None:
    """Each `{type, name}` among the settings names a server."""
    for key, value in given.items():
        if not isinstance(value, dict) or value.keys() != {"type", "name"} or value["type"] not in _KINDS:
            continue
        if kinds.get(value["name"]) != value["type"]:
            known = [one for one, kind in kinds.items() if kind == value["type"]]
            raise ConfigurationError(
                f"server {name!r}: its {key} is {value['name']!r}, and no file has {value['type']} of that name; "
                f"there are {', '.join(known[:_SHOWN]) or 'none'}: add a file to config_paths, or correct the name"
            )


def _plan(name: str, kind: str, implementation: str, given: dict[str, Any]) -> GymServerPlan:
    entrypoint = str(given.get("entrypoint", ""))
    program = Path(kind, implementation, entrypoint)
    if entrypoint.endswith(".py") and ".." not in program.parts and program.is_file():
        return GymServerPlan(
            name=name, kind=kind, implementation=implementation, settings=_checked(name, Place, given), program=program
        )
    if implementation in _OWN[kind] and entrypoint == "app.py":
        given = {**given, "entrypoint": _EXAMPLES.get(implementation, entrypoint)}
    elif kind != RESOURCES or not _CLASS.fullmatch(entrypoint) or entrypoint.endswith(".py"):
        raise ConfigurationError(
            f"server {name!r}: no entrypoint {entrypoint[:200]!r}: {program} is not there, and packaged are "
            f"{', '.join(_OWN[kind])}; for {RESOURCES} package.module.Class names a class of yours"
        )
    settings = _checked(name, _SETTINGS[kind], given)
    if isinstance(settings, ModelSettings) and settings.return_token_id_information and implementation != _CHATS:
        raise ConfigurationError(
            f"server {name!r}: return_token_id_information is true, {implementation} can't ask for it: take {_CHATS}"
        )
    return GymServerPlan(name=name, kind=kind, implementation=implementation, settings=settings)


def _checked(name: str, model: type[ServerSettings], given: Config) -> ServerSettings:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)[:_SHOWN]
        raise ConfigurationError(f"server {name!r}: {'; '.join(_problem(model, one) for one in found)}") from error


def _problem(model: type[ServerSettings], found: ErrorDetails) -> str:
    path = tuple(map(str, found["loc"]))
    if found["type"] == "extra_forbidden" and len(path) == 1:
        return f"{path[0][:100]}: no such key; {did_you_mean(path[0][:100], model.names())}"
    return f"{'.'.join(path) or 'settings'}: {found['msg']}"
