"""What the dashboards and rules ask Prometheus, and what has no answer there."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import promql_parser

from tests.observability.answers import Prometheus, Span, choices, put_in
from tests.observability.boards import NAMES, board, charts
from tests.observability.expressions import RULES, rules

_RULE_FILES: Final = tuple(sorted(path.stem for path in RULES.glob("*.yaml")))
_OPERATORS: Final = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """An expression, and where it stands. `board`: whose variables it has; empty for a rule, which has none.

    The expression of an alert has no answer while nothing is wrong: of it only the selectors must have one.
    """

    place: str
    expr: str
    board: str = ""
    is_alert: bool = False


def questions() -> list[Question]:
    """All that is asked: by panels, by annotations, by rules."""
    return [*(question for name in NAMES for question in _of_board(name)), *_of_rules()]


def _of_board(name: str) -> Iterator[Question]:
    for panel in charts(name):
        for target in panel["targets"]:
            legend = f" / {target['legendFormat']}" if len(panel["targets"]) > 1 else ""
            yield Question(place=f"{name} / {panel['title']}{legend}", expr=target["expr"], board=name)
    for mark in board(name)["annotations"]["list"]:
        yield Question(place=f"{name} / {mark['name']}", expr=mark["expr"], board=name)


def _of_rules() -> Iterator[Question]:
    for rule in rules(*_RULE_FILES):
        is_alert = "alert" in rule
        name = rule["alert"] if is_alert else " ".join([rule["record"], *rule.get("labels", {}).values()])
        yield Question(place=name, expr=rule["expr"], is_alert=is_alert)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """A choice of series within an expression. `name`: without what says which run and which processes."""

    name: str
    text: str


def selectors(expr: str) -> list[Selector]:
    """The choices of an expression without variables for intervals, whatever is compared or computed with them."""
    found: list[Any] = []
    promql_parser.walk(promql_parser.parse(expr), found.append)
    return [_selector(node) for node in found if isinstance(node, promql_parser.VectorSelector)]


def _selector(node: Any) -> Selector:
    every = [(one.name, _OPERATORS[str(one.op).rpartition(".")[2]], one.value) for one in node.matchers.matchers]
    kept = [one for one in every if "$" not in one[2] and one != ("run", "!=", "")]
    return Selector(name=_written(node.name, kept), text=_written(node.name, every))


def _written(metric: str, matchers: Sequence[tuple[str, str, str]]) -> str:
    inside = ", ".join(f'{name}{operator}"{value.replace(chr(92), chr(92) * 2)}"' for name, operator, value in matchers)
    return f"{metric}{{{inside}}}" if inside else metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """What had no answer. `expressions` → the selectors in it; `known`: every place and selector that was asked for."""

    expressions: Mapping[str, Collection[str]]
    selectors: Collection[str]
    known: Collection[str]

    def faults(
        self,
        listed_selectors: Collection[str],
        listed_expressions: Collection[str],
        may_have_data: Collection[str] = (),
    ) -> list[str]:
        """Where this differs from what is listed. An expression needs no entry if one of its selectors has one.

        `may_have_data`: of those that are listed, the ones that have data in some runs and none in others.
        """
        listed = {*listed_selectors, *listed_expressions}
        explained = {place for place, inside in self.expressions.items() if set(inside) & set(listed_selectors)}
        silent = {*self.selectors, *(self.expressions.keys() - explained)}
        answered = (listed & set(self.known)) - silent - set(may_have_data)
        return [
            *(f"nothing asks for it any more: {name}" for name in sorted(listed - set(self.known))),
            *(f"no data, and not listed: {name}" for name in sorted(silent - listed)),
            *(f"listed, and needs no entry: {name}" for name in sorted(answered)),
        ]


def ask_all(asked: Sequence[Question], prometheus: Prometheus, span: Span, run: str) -> Silence:
    """Ask for every expression and for every selector, as Grafana would for a dashboard of this time."""
    values = {"": span.intervals, **{name: choices(board(name), prometheus, span, run=run) for name in NAMES}}
    silent: dict[str, Collection[str]] = {}
    inside: dict[str, set[str]] = {}
    for question in asked:
        own = values[question.board]
        chosen = selectors(put_in_intervals(question.expr, span))
        for selector in chosen:
            inside.setdefault(selector.name, set()).add(put_in(selector.text, own))
        answer = prometheus.over_time(put_in(question.expr, own), span)
        if not answer and not question.is_alert:
            silent[question.place] = {selector.name for selector in chosen}
    empty = {name for name, texts in inside.items() if not all(prometheus.over_time(text, span) for text in texts)}
    return Silence(expressions=silent, selectors=empty, known={*inside, *(one.place for one in asked)})


def put_in_intervals(expr: str, span: Span) -> str:
    """The expression with the lengths of time that Grafana knows by itself, so that a parser can read it."""
    return re.sub(r"\$(__\w+)", lambda found: span.intervals[found[1]], expr)
