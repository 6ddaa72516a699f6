"""The chart makes of its defaults and examples what a person has read."""

import difflib
from collections.abc import Iterator
from typing import Any, Final

import helm_python
import pytest
import yaml

from tests.chart.rendering import CHART, at, render
from tests.chart.renderings import DEFAULTS, FOLDER, lines, others, renderings

# Read by a chart above this one; and what `test_monitoring.py` compares with the rules.
_HELD_ELSEWHERE: Final = ("enabled", "metrics.prometheusRule.thresholds.")
NAMES = (DEFAULTS, *others())


@pytest.mark.parametrize("name", NAMES)
def test_what_is_rendered_is_what_was_read(name: str) -> None:
    read, made = (FOLDER / f"{name}.txt").read_text(encoding="utf-8"), renderings()[name]
    changed = list(difflib.unified_diff(read.splitlines(), made.splitlines(), "read", "made", lineterm="", n=0))
    assert not changed, "\n".join(["if it is meant, run `python -m tests.chart.renderings`:", *changed])


def test_there_is_one_file_for_each() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(NAMES) == renderings().keys()


@pytest.mark.timeout(600)
def test_no_default_number_or_switch_could_be_another_one_unnoticed() -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    changes = [(path, other) for path, other in _changes(defaults) if not path.startswith(_HELD_ELSEWHERE)]
    assert len(changes) > 50
    made = [(values, _text(values)) for values in ({}, *others().values())]
    unheld = [path for path, other in changes if all(_text(at(path, other), values) == text for values, text in made)]
    assert not unheld, f"no rendering has their defaults: {unheld}"


def _changes(value: Any, path: str = "") -> Iterator[tuple[str, int | float]]:
    """Each number and switch below, and what it could be instead."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield from _changes(below, f"{path}.{name}".lstrip("."))
    elif isinstance(value, bool):
        yield path, not value
    elif isinstance(value, (int, float)):
        yield path, value * 3 + 1


def _text(*layers: dict[str, Any]) -> str:
    try:
        return "\n".join(lines(render(*layers)))
    except helm_python.HelmError as refusal:
        return str(refusal)
