"""Reads the settings of the actor: a file by its name, then the words of the command line over it."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from rollstream.process.settings.errors import did_you_mean, shown
from rollstream.process.settings.keys import key_at, keys_of, names_below
from rollstream.process.settings.overrides import overridden
from rollstream.rc_actor.built_in import imported_policy
from rollstream.rc_actor.config_files import read_config
from rollstream.rc_actor.refused import refused_below, without_refused
from rollstream.rc_actor.settings import DatasetSettings, RCSettings
from rollstream.schemas.errors import ConfigurationError

_NOT_SET: Final = "???"
"""What stands in a file for a value that the command line must give."""
_MAX_SHOWN: Final = 20


def read_settings(config_name: str, overrides: Sequence[str]) -> RCSettings:
    """The settings of `conf/NAME.yaml` or the packaged file of this name, with the overrides `actor.key=value`.

    Policies of a person's own are imported, so that a wrong path ends the command before any model is asked. Raises
    `ConfigurationError` that names each key with its value, its bound or reason, and what to change.
    """
    values = _without_unset(overridden(overrides, None, read_config(config_name)))
    kept, problems = without_refused(values)
    try:
        settings = RCSettings.model_validate_json(json.dumps(kept, default=str))
    except ValidationError as error:
        problems += [_sentence(one) for one in error.errors(include_url=False, include_context=False)]
    if problems:
        more = len(problems) - _MAX_SHOWN
        raise ConfigurationError("; ".join(problems[:_MAX_SHOWN]) + (f"; and {more} more" if more > 0 else ""))
    _refuse_what_is_missing(settings)
    return settings


def _refuse_what_is_missing(settings: RCSettings) -> None:
    """What lies outside of the files: own code, and the variable that holds a key."""
    for key in ("solution_rollout_policy", "summarization_rollout_policy"):
        imported_policy(f"actor.{key}", getattr(settings.actor, key))
    variable = settings.me.api_key_variable
    if variable is not None and not os.environ.get(variable):
        raise ConfigurationError(f"me.api_key_variable: there is no environment variable {variable!r}, or it is empty")


def _without_unset(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_unset(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if value != _NOT_SET
    }


def _sentence(error: Any) -> str:
    """Key, what is wrong with its value, the bound, and what to change."""
    path = tuple(str(part) for part in error["loc"])
    place, names = ".".join(path), keys_of(RCSettings)
    if error["type"] == "missing":
        return f"{place} is missing: write {place}=VALUE, or set it in the file"
    if error["type"] == "extra_forbidden":
        # Lists hold nothing but data sets.
        is_dataset = any(part.isdigit() for part in path[:-1])
        known = (
            DatasetSettings.model_fields if is_dataset else {*names_below(names, path[:-1]), *refused_below(path[:-1])}
        )
        return f"{place}: no such key; {did_you_mean(path[-1], known)}"
    message = error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    key = key_at(names, path)
    has_value = not isinstance(error["input"], Mapping) and (key is None or not key.is_open)
    return f"{place or 'settings'}: {message}" + (f", got {shown(error['input'])}" if has_value else "")
