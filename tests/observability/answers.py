"""Asks Prometheus what Grafana would ask for a dashboard: the variables' values, then each expression over a time."""

import json
import math
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_ANSWER_SECONDS: Final = 30.0
_LABEL_VALUES: Final = re.compile(r"label_values\((?P<series>.+), *(?P<label>\w+)\)")
_SCRAPES_IN_A_RATE: Final = 4
"""As Grafana's `$__rate_interval`: so many scrapes at least, so that one that fails leaves no gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A time, Unix seconds, with the seconds between two points of a line and between two scrapes."""

    start: float
    end: float
    step: float
    scrape: float

    @property
    def intervals(self) -> dict[str, str]:
        """What Grafana puts in for a dashboard that shows this time."""
        rate = max(self.step + self.scrape, _SCRAPES_IN_A_RATE * self.scrape)
        return {
            "__rate_interval": _seconds(rate), "__interval": _seconds(self.step),
            "__range": _seconds(self.end - self.start),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line: its labels, and its points (Unix seconds, value). There are only finite values."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


class Prometheus:
    """A server's HTTP API."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def ask(self, path: str, **parameters: Any) -> Any:
        """The data of an answer. Raises ValueError with what Prometheus says of a question that it refuses."""
        body = urllib.parse.urlencode(parameters, doseq=True).encode()
        # Long expressions do not fit into an address; only these two take them in a body.
        takes_body = path in ("query", "query_range")
        url = f"{self._url}/api/v1/{path}" + ("" if takes_body else f"?{body.decode()}")
        try:
            with urllib.request.urlopen(url, body if takes_body else None, timeout=_ANSWER_SECONDS) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                said = error.read().decode(errors="replace")
            raise ValueError(f"Prometheus refuses {path} {parameters}: {said}") from error

    def label_values(self, query: str, span: Span) -> list[str]:
        """The answer to a variable's query, `label_values(SERIES, LABEL)`."""
        parts = _LABEL_VALUES.fullmatch(query)
        if parts is None:
            raise ValueError(f"{query} is no label_values(SERIES, LABEL)")
        values: list[str] = self.ask(
            f"label/{parts['label']}/values", **{"match[]": parts["series"], "start": span.start, "end": span.end}
        )
        return values

    def over_time(self, expr: str, span: Span) -> list[Series]:
        """The lines of an expression. Those without any finite value are left out."""
        data = self.ask("query_range", query=expr, start=span.start, end=span.end, step=span.step)
        return [found for one in data["result"] if (found := _series(one)).points]


def _series(answer: Mapping[str, Any]) -> Series:
    points = [(float(moment), float(value)) for moment, value in answer["values"]]
    return Series(labels=answer["metric"], points=[point for point in points if math.isfinite(point[1])])


def put_in(expr: str, values: Mapping[str, str]) -> str:
    """The expression with the values of its variables, `$name`; raises KeyError for one without a value."""
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], expr)


def choices(board: Mapping[str, Any], prometheus: Prometheus, span: Span, *, run: str) -> dict[str, str]:
    """Values for the variables of a dashboard that shows this run: all that Prometheus has of each other one."""
    values = {**span.intervals, "run": run}
    for variable in board["templating"]["list"]:
        if variable["type"] == "query" and variable["name"] != "run":
            found = prometheus.label_values(put_in(variable["query"], values), span)
            values[variable["name"]] = _any_of(found) or variable["allValue"]
    return values


def _any_of(values: Iterable[str]) -> str:
    """A regular expression for any of these, within quotes of PromQL."""
    return "|".join(re.escape(value).replace("\\", "\\\\") for value in values)


def _seconds(seconds: float) -> str:
    return f"{max(1, round(seconds))}s"
