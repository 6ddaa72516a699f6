"""Prompt templates: a YAML file with `system` and `user`, whose {fields} of a row make the row's input."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any, Self

from rollstream.gym.names import PARAMS
from rollstream.schemas.errors import ConfigurationError, UnusableRowError

_ROLES = ("system", "user")
_MAX_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """One text a role, with `{name}` for the row's field of that name; `{{` and `}}` are braces."""

    texts: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> Self:
        """From a YAML file. Raises `ConfigurationError` if it has no `user`, or anything else than names in braces."""
        from yaml import YAMLError, safe_load

        try:
            with path.open("rb") as stream:
                found = safe_load(stream.read(_MAX_BYTES))
        except (OSError, YAMLError) as error:
            raise ConfigurationError(f"cannot read {path}: {str(error).splitlines()[0]}") from error
        if not isinstance(found, dict) or "user" not in found or set(found) - set(_ROLES):
            raise ConfigurationError(f"{path}: expected `user`, perhaps `system`, and no other keys")
        for role, text in found.items():
            if not isinstance(text, str) or not _has_names_alone(text):
                raise ConfigurationError(f"{path}: `{role}` is no text with {{names}} of fields alone")
        return cls({role: found[role] for role in _ROLES if role in found})

    def filled(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row with its input. Raises `UnusableRowError` if it has one already, or lacks a field."""
        params = row.get(PARAMS) or {}
        if not isinstance(params, dict) or "input" in params:
            raise UnusableRowError(f"it has {PARAMS}.input, and a prompt template is given too: leave one out")
        messages = [{"role": role, "content": _filled(text, row)} for role, text in self.texts.items()]
        return {**row, PARAMS: {**params, "input": messages}}


def _has_names_alone(text: str) -> bool:
    try:
        return all(
            name is None or (name.isidentifier() and not form and not turn)
            for _, name, form, turn in Formatter().parse(text)
        )
    except ValueError:
        return False


def _filled(text: str, row: Mapping[str, Any]) -> str:
    parts = []
    for literal, name, _, _ in Formatter().parse(text):
        parts.append(literal)
        if name is None:
            continue
        if row.get(name) is None:
            raise UnusableRowError(f"the prompt template names a field {name!r} that the row lacks")
        parts.append(str(row[name]))
    return "".join(parts)
