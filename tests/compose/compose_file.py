"""docker-compose.yml and .env.example as Compose reads them: variables filled in, services chosen by profile.

No engine for containers is needed. `Project.services` are the services of the chosen profiles.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
COMPOSE_FILE = ROOT / "docker-compose.yml"
ENV_EXAMPLE = ROOT / ".env.example"
STAGES = ("producer", "ingest", "generator", "scorer", "trainer")
OUR_IMAGE = "rollstream:"
# ${NAME}, ${NAME:-value}, ${NAME:?message}; $$ is a plain dollar.
_VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<name>\w+)(?::(?P<how>[-?])(?P<rest>[^}]*))?\}|(?P<bad>.?))")

Service = dict[str, Any]


@cache
def document() -> dict[str, Any]:
    """The file itself, variables not filled in. It is read once: change a copy."""
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE_FILE.read_text())
    return loaded


def example_variables(*, with_optional: bool = False) -> dict[str, str]:
    """What .env.example sets; `with_optional`: also what it shows as a comment."""
    begins = "#?" if with_optional else ""
    found = re.findall(rf"^{begins}([A-Z][A-Z0-9_]*)=(.*)$", ENV_EXAMPLE.read_text(), re.MULTILINE)
    return dict(found)


@dataclass(frozen=True)
class Project:
    """The file with the variables of an environment filled in."""

    variables: Mapping[str, str]

    @cached_property
    def all_services(self) -> dict[str, Service]:
        """Every service, whatever its profile."""
        filled = _filled(document()["services"], self.variables)
        assert isinstance(filled, dict)
        return filled

    @property
    def services(self) -> dict[str, Service]:
        """The services that `docker compose up` starts."""
        chosen = set(self.variables["COMPOSE_PROFILES"].split(","))
        return {
            name: service
            for name, service in self.all_services.items()
            if "profiles" not in service or chosen & set(service["profiles"])
        }

    def environment(self, name: str) -> dict[str, str]:
        """What the service's container gets. A variable without a value is taken from the environment, if it is set."""
        given = self.all_services[name].get("environment", {})
        values = {key: self.variables.get(key) if value is None else str(value) for key, value in given.items()}
        return {key: value for key, value in values.items() if value is not None}


def example_project(*, with_optional: bool = False, **changed: str) -> Project:
    """The project of a user who has copied .env.example and changed some of it."""
    return Project({**example_variables(with_optional=with_optional), **changed})


def variables_of(node: object) -> Iterator[str]:
    """The names of all variables that a part of the file takes from the environment."""
    if isinstance(node, Mapping):
        for name, below in node.items():
            if name == "environment":
                yield from (variable for variable, value in below.items() if value is None)
            yield from variables_of(below)
    elif isinstance(node, list):
        for below in node:
            yield from variables_of(below)
    elif isinstance(node, str):
        yield from (match["name"] for match in _VARIABLE.finditer(node) if match["name"])


def mounts(service: Service) -> dict[str, tuple[str, bool]]:
    """By path in the container: what is mounted there, a volume's name or a path, and whether only for reading."""
    found = {}
    for text in service.get("volumes", ()):
        source, target, *mode = text.split(":")
        found[target] = (source, mode == ["ro"])
    return found


def is_path(source: str) -> bool:
    """Whether a mount's source is a path on the machine, not a named volume."""
    return source.startswith((".", "/"))


def _filled(node: object, variables: Mapping[str, str]) -> object:
    if isinstance(node, Mapping):
        return {name: _filled(below, variables) for name, below in node.items()}
    if isinstance(node, list):
        return [_filled(below, variables) for below in node]
    return _VARIABLE.sub(lambda match: _value(match, variables), node) if isinstance(node, str) else node


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    if match["dollar"]:
        return "$"
    name = match["name"]
    if name is None:
        raise ValueError(f"{match.string!r}: a single $ that begins no variable")
    value = variables.get(name, "")
    if match["how"] == "?" and not value:
        raise ValueError(f"{name} is not set: {match['rest']}")
    return value or (match["rest"] if match["how"] == "-" else "")
