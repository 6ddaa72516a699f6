"""The manifest of a collection: what it was begun with. A resume with other settings would mix two data sets in one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollstream.process.files import replace_text
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.record import utc_now

START_ANEW = "--overwrite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`settings` and `input` must stay the same; `versions` may change, and each is noted."""

    settings: Mapping[str, Any]
    input: str
    versions: tuple[Mapping[str, str], ...]
    started_at: str
    is_finished: bool = False
    counts: Mapping[str, int] | None = None

    def with_versions(self, versions: Mapping[str, str]) -> "Manifest":
        """With those of this process too, unless an earlier one had the same."""
        known = [dict(one) for one in self.versions]
        return self if dict(versions) in known else replace(self, versions=(*known, dict(versions)))

    def write(self, path: Path) -> None:
        """Replace the manifest at `path`."""
        values = {
            "input": self.input,
            "settings": dict(self.settings),
            "versions": [dict(one) for one in self.versions],
            "started_at": self.started_at,
            "written_at": utc_now().isoformat(),
            "is_finished": self.is_finished,
            "counts": None if self.counts is None else dict(self.counts),
        }
        replace_text(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def read_manifest(path: Path) -> Manifest | None:
    """The manifest at `path`; None if there is none. Raises `ConfigurationError` if it can't be read."""
    try:
        values = json.loads(path.read_bytes())
        return Manifest(
            settings=dict(values["settings"]),
            input=str(values["input"]),
            versions=tuple(dict(one) for one in values["versions"]),
            started_at=str(values["started_at"]),
            is_finished=values["is_finished"] is True,
            counts=values["counts"],
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path} is not the manifest of a collection: {error!r}; begin anew with {START_ANEW}"
        ) from error


def begun_input(path: Path) -> str:
    """The identity of the source that the output of the manifest at `path` was begun with; "" if it was not begun."""
    earlier = read_manifest(path)
    return "" if earlier is None else earlier.input


def begun(earlier: Manifest | None, settings: Mapping[str, Any], identity: str) -> Manifest:
    """The manifest to go on with; raises `ConfigurationError` that names a setting which is not as it was."""
    # As JSON gives it back.
    wanted = json.loads(json.dumps(dict(settings)))
    if earlier is None:
        return Manifest(settings=wanted, input=identity, versions=(), started_at=utc_now().isoformat())
    # The engine first: what else differs may follow from it.
    for key in sorted({*wanted, *earlier.settings}, key=lambda key: (key != "engine", key)):
        _refuse_other(key, earlier.settings.get(key), wanted.get(key))
    _refuse_other("input", earlier.input, identity)
    return replace(earlier, is_finished=False, counts=None)


def _refuse_other(key: str, before: Any, now: Any) -> None:
    if before != now:
        raise ConfigurationError(
            f"this output was begun with {key} = {json.dumps(before, ensure_ascii=False)}, now it is "
            f"{json.dumps(now, ensure_ascii=False)}: go on with the same, name another output, or begin anew with "
            f"{START_ANEW}, which removes what was collected"
        )
