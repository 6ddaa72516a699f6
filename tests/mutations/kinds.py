"""The changes that can be planted: each kind finds its places in the files of the tree."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_RULES: Final = "helm/rollstream/files/rules/*.yaml"
_ALERTS: Final = "helm/rollstream/files/rules/alerts.yaml"
_PANELS: Final = "helm/dashboards/*.py"
_TEMPLATES: Final = "helm/rollstream/templates/**/*.*"
_VALUES: Final = "helm/rollstream/values.yaml"
_COMPOSE: Final = "docker-compose.yml"
_METRICS: Final = "{services,trainer,producers}/rollstream/**/*.py"
_SWAPPED: Final = {"sum": "max", "max": "sum", "min": "max", "avg": "max", "count": "max", "group": "sum"}
_CALLS: Final = frozenset({"inc", "set", "observe", "dec"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One change. `file`: relative to the tree; the text from `start` to `end` becomes `after`."""

    kind: str
    file: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        before, after = (" ".join(text.split())[:60] for text in (self.before, self.after))
        return f"{self.kind}, {self.file}:{self.line}: {before!r} → {after!r}"

    def apply(self, text: str) -> str:
        """The file with the change."""
        assert text[self.start : self.end] == self.before
        return text[: self.start] + self.after + text[self.end :]


Finder = Callable[[str], Iterator[tuple[int, int, str]]]
"""Finds (start, end, what it becomes) in a text."""


def by_pattern(pattern: str, becomes: Callable[[re.Match[str]], str]) -> Finder:
    """Each match of the pattern; what does not change, or is in a comment, is none."""

    def find(text: str) -> Iterator[tuple[int, int, str]]:
        for match in re.finditer(pattern, text, re.MULTILINE):
            line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
            if not line.lstrip().startswith("#") and (after := becomes(match)) != match[0]:
                yield match.start(), match.end(), after

    return find


def panels_of_rows(text: str) -> Iterator[tuple[int, int, str]]:
    """Each panel of a `Row(title, panel, …)`, with the comma after it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Row":
            for panel in node.args[1:]:
                start, end = _span(text, panel)
                comma = re.match(r"\s*,", text[end:])
                yield start, end + (comma.end() if comma else 0), ""


def metric_calls(text: str) -> Iterator[tuple[int, int, str]]:
    """Each statement that does nothing but count, set or observe a metric, whose name is in capitals."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func
            if isinstance(function, ast.Attribute) and function.attr in _CALLS:
                start, end = _span(text, node)
                if re.match(r"(\w+\.)?_?[A-Z][A-Z_]+\b", text[start:end]):
                    yield start, end, "pass"


def _span(text: str, node: ast.expr | ast.stmt) -> tuple[int, int]:
    lines = text.splitlines(keepends=True)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None

    def at(line: int, column: int) -> int:
        # Columns count bytes.
        return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())

    return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)


def _other_length(match: re.Match[str]) -> str:
    return match[0].replace(match[1], "1h" if match[1] == "5m" else "5m")


def _other_number(match: re.Match[str]) -> str:
    return f"{match[1]}{float(match[2]) * 3 + 1:g}"


def _other_severity(match: re.Match[str]) -> str:
    return "severity: info" if match[1] != "info" else "severity: warning"


def _swapped(match: re.Match[str]) -> str:
    return match[0].replace(match[1], _SWAPPED[match[1]], 1)


def _not(match: re.Match[str]) -> str:
    return f"{match[1]}not ({match[2]}){match[3]}"


# Where only zeros are aggregated, another aggregation changes nothing.
_AGGREGATION: Final = r"\b(?!\w+ by \([^)]*\) \(0 \* )(sum|max|min|avg|count|group)(?= by \(|\(|_over_time\()"
other_aggregations: Final = by_pattern(_AGGREGATION, _swapped)
other_windows: Final = by_pattern(r"\[(\d+[mhd])\]", _other_length)
KINDS: Final[Mapping[str, tuple[str, Finder]]] = {
    "severity": (_ALERTS, by_pattern(r"severity: (\w+)", _other_severity)),
    "aggregation in a rule": (_RULES, other_aggregations),
    "window in a rule": (_RULES, other_windows),
    "duration of an alert": (_ALERTS, by_pattern(r"for: (\d+[mh])$", _other_length)),
    "comparison in a rule": (_ALERTS, by_pattern(r" ([<>])(?= |$)", lambda m: " <" if m[1] == ">" else " >")),
    "threshold": (_RULES, by_pattern(r"(vector\()([\d.]+)", _other_number)),
    "aggregation in a panel": (_PANELS, by_pattern(r"\b(sum|max|min|avg)(?= by \(|\()(?=[^\n]*[{\"])", _swapped)),
    "panel removed": (_PANELS, panels_of_rows),
    "condition in a template": (_TEMPLATES, by_pattern(r"(\{\{-? (?:else )?if )(.+?)( -?\}\})", _not)),
    "value": (_VALUES, by_pattern(r"(?<=: )(true|false)$", lambda m: "true" if m[1] == "false" else "false")),
    "number among the values": (_VALUES, by_pattern(r"(: )(\d+)$", _other_number)),
    "compose: order": (_COMPOSE, by_pattern(r"condition: (service_\w+)", lambda _: "condition: service_started")),
    "compose: setting": (_COMPOSE, by_pattern(r"^ +[A-Z_]+: .+\n", lambda _: "")),
    "compose: mount": (_COMPOSE, by_pattern(r":ro$", lambda _: "")),
    "metric": (_METRICS, metric_calls),
}


def mutations(root: Path, kind: str) -> list[Mutation]:
    """All changes of this kind that the files of the tree have room for."""
    pattern, find = KINDS[kind]
    found = []
    for path in sorted(_files(root, pattern)):
        text = path.read_text(encoding="utf-8")
        for start, end, after in find(text):
            found.append(
                Mutation(
                    kind=kind,
                    file=str(path.relative_to(root)),
                    line=text.count("\n", 0, start) + 1,
                    start=start,
                    end=end,
                    before=text[start:end],
                    after=after,
                )
            )
    return found


def _files(root: Path, pattern: str) -> Iterator[Path]:
    """pathlib knows no braces."""
    choices = re.fullmatch(r"\{(.+)\}(.+)", pattern)
    for one in [f"{first}{choices[2]}" for first in choices[1].split(",")] if choices else [pattern]:
        yield from (path for path in root.glob(one) if path.is_file())
