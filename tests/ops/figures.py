"""The figures that rules and panels make of a known run: `python -m tests.ops.figures` writes them to figures.yaml."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import promql_parser
import yaml

from tests.observability.boards import NAMES, charts
from tests.observability.expressions import rules
from tests.observability.questions import Question, questions
from tests.ops.fleet import as_asked, figures

TABLE: Final = Path(__file__).with_suffix(".yaml")
_HEAD: Final = """\
# What rules and panels make of the run of fleet.py, in which every stage has two processes: the second counts 3 times
# as much as the first. A sum over both is 4/3 of the most and twice the mean. Alerts: severity, how long, and what they
# compare, bounds of `thresholds.yaml` aside. Panels: the figure, its unit, and from which value on it has which color.
#
# Made by `python -m tests.ops.figures`. Read each line that changes: is it what you meant?
"""
_COMPARISONS: Final = frozenset({"==", "!=", ">", "<", ">=", "<="})
_SETS: Final = frozenset({"and", "or", "unless"})


def table(promtool: str, folder: Path) -> dict[str, dict[str, str]]:
    """Alerts, recorded metrics and panels, each with its figures."""
    asked, compared = asked_for(), compared_by_alerts()
    exprs = [*(as_asked(one.expr) for one in asked), *(expr for found in compared.values() for expr in found)]
    found = figures(promtool, exprs, folder)
    shown = _shown()
    return {
        "alerts": {
            rule["alert"]: f"{rule['labels']['severity']}, {rule['for']}: "
            + "; ".join(found[expr] for expr in compared[rule["alert"]])
            for rule in rules("alerts")
        },
        "recorded": {one.place: found[as_asked(one.expr)] for one in asked if not one.board},
        "panels": {
            one.place: f"{found[as_asked(one.expr)]}{shown.get(_panel_of(one), '')}" for one in asked if one.board
        },
    }


def asked_for() -> list[Question]:
    """What panels show and rules record, thresholds aside."""
    return [question for question in questions() if not question.is_alert and "threshold" not in question.place]


def compared_by_alerts() -> dict[str, list[str]]:
    """What each alert compares."""
    return {rule["alert"]: list(dict.fromkeys(_compared(rule["expr"]))) for rule in rules("alerts")}


def _compared(expr: str) -> Iterator[str]:
    """The parts of an alert's expression that are compared or chosen by; numbers and bounds aside."""
    yield from _parts(promql_parser.parse(expr))


def _parts(node: Any) -> Iterator[str]:
    if isinstance(node, promql_parser.ParenExpr):
        yield from _parts(node.expr)
    elif isinstance(node, promql_parser.BinaryExpr) and str(node.op) in _COMPARISONS | _SETS:
        yield from _parts(node.lhs)
        yield from _parts(node.rhs)
    elif not isinstance(node, promql_parser.NumberLiteral) and not node.prettify().startswith("scalar("):
        yield node.prettify()


def _panel_of(question: Question) -> str:
    return " / ".join(question.place.split(" / ")[:2])


def _shown() -> dict[str, str]:
    """Unit and colors of each panel."""
    found = {}
    for name in NAMES:
        for panel in charts(name):
            defaults = panel.get("fieldConfig", {}).get("defaults", {})
            steps = [step for step in defaults.get("thresholds", {}).get("steps", []) if step.get("value") is not None]
            colors = "".join(f", {step['color']} from {step['value']:g}" for step in steps)
            found[f"{name} / {panel['title']}"] = f" [{defaults.get('unit', '')}{colors}]"
    return found


def main() -> None:
    """Write the table."""
    with tempfile.TemporaryDirectory() as folder:
        made = table("promtool", Path(folder))
    TABLE.write_text(_HEAD + yaml.safe_dump(made, sort_keys=False, allow_unicode=True, width=1000), encoding="utf-8")


if __name__ == "__main__":
    main()
