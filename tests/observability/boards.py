"""The committed dashboards, and what is in them."""

import json
from collections.abc import Iterator
from typing import Any, Final

from helm.dashboards.build import BOARDS, path_of

NAMES: Final = tuple(BOARDS)


def board(name: str) -> dict[str, Any]:
    """The dashboard as committed."""
    found: dict[str, Any] = json.loads(path_of(name).read_text(encoding="utf-8"))
    return found


def panels(name: str) -> list[dict[str, Any]]:
    """Its panels, headings of rows aside."""
    return [panel for panel in board(name)["panels"] if panel["type"] != "row"]


def charts(name: str) -> list[dict[str, Any]]:
    """Its panels that show figures."""
    return [panel for panel in panels(name) if panel["type"] != "text"]


def expressions(name: str) -> Iterator[tuple[str, str]]:
    """Each expression, with the title of its panel or annotation."""
    for panel in charts(name):
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for annotation in board(name)["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]
