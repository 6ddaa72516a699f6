"""Rules and panels give the figures of a known run that a person has read."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.mutations.kinds import other_aggregations, other_windows
from tests.observability.boards import NAMES
from tests.ops.figures import TABLE, asked_for, compared_by_alerts, table
from tests.ops.fleet import as_asked, figures

_IS_ADDED_UP: Final = re.compile(r"_total$|:rate5m$|:groups_\w+$|:interruptions$")
"""Metrics that are counts: of several the sum is taken. Of moments, shares and what else can't be added, the most."""
_METRIC: Final = re.compile(r"\b(?:rollstream|kafka|process)[_:][\w:]+")
_HELD_BY_CASES: Final = {
    "rollstream:stages_seen": "[7d]",
    "rollstream:last_step_timestamp_seconds": "[1h]",
    "rollstream:unsaved_since_timestamp_seconds": "[1h]",
    "RollstreamTwoTrainers": "[1h]",
    "RollstreamNotReady": "[15m]",
    "RollstreamTrainingLaneDown": "[15m]",
    "RollstreamThresholdMissing": "count",
}
"""What the run of fleet.py can't tell apart, and the cases of test_rules.py do: processes that come and go."""


@pytest.fixture(scope="module")
def made(promtool: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    return table(promtool, tmp_path_factory.mktemp("figures"))


@pytest.mark.parametrize("part", ["alerts", "recorded", "panels"])
def test_every_figure_is_the_one_that_was_read(part: str, made: dict[str, dict[str, str]]) -> None:
    read: dict[str, str] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))[part]
    changed = [
        f"{name}: {read.get(name, 'not there')} → {made[part].get(name, 'not there')}"
        for name in [*read, *(made[part].keys() - read.keys())]
        if read.get(name) != made[part].get(name)
    ]
    assert not changed, "\n".join(["if they are meant, run `python -m tests.ops.figures`:", *changed])


def test_every_expression_has_a_figure_but_the_mark_of_a_start_that_is_long_ago(
    made: dict[str, dict[str, str]],
) -> None:
    nothing = {name for part in made.values() for name, figure in part.items() if "nothing" in figure}
    assert nothing == {f"{board} / Process started" for board in NAMES}


def test_no_aggregation_or_window_could_be_another_one_unnoticed(promtool: str, tmp_path: Path) -> None:
    changes = [(place, expr, word, other) for place, expr in _places() for word, other in _changes(expr)]
    assert len(changes) > 200
    found = figures(promtool, [expr for _, *both in changes for expr in (both[0], both[2])], tmp_path)
    unheld = [
        f"{place}: {word.split()[0]} in {expr}"
        for place, expr, word, other in changes
        if found[expr] == found[other] and not _is_held_otherwise(place, word)
    ]
    assert not unheld, "\n".join(["another one gives the same figure, and it is not what its metric wants:", *unheld])


def _places() -> Iterator[tuple[str, str]]:
    """Each expression, and where it stands."""
    yield from ((question.place, as_asked(question.expr)) for question in asked_for())
    yield from ((alert, expr) for alert, compared in compared_by_alerts().items() for expr in compared)


def _changes(expr: str) -> Iterator[tuple[str, str]]:
    """For each aggregation and window: the expression from there on, and the whole of it with another one."""
    for find in (other_aggregations, other_windows):
        for start, end, after in find(expr):
            yield expr[start:], expr[:start] + after + expr[end:]


def _is_held_otherwise(place: str, rest: str) -> bool:
    """By a case, or since it aggregates a single series by what its metric wants."""
    if rest.startswith(_HELD_BY_CASES.get(place, "nothing")):
        return True
    metric = _METRIC.search(rest)
    return metric is not None and rest.startswith("sum" if _IS_ADDED_UP.search(metric[0]) else "max")
