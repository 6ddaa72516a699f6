"""Writes the table of values into `helm/rollstream/README.md`, from the comments of values.yaml.

`python -m helm.chart_readme`. A comment that begins with `# --` explains the key below it, and `# ` above a key of the
top opens a section. What has no comment of its own is explained by the key above it, or by `stageDefaults`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

CHART: Final = Path(__file__).parent / "rollstream"
README: Final = CHART / "README.md"
VALUES: Final = CHART / "values.yaml"
BEGIN: Final = "<!-- Made by `python -m helm.chart_readme` from values.yaml. -->"
END: Final = "<!-- The end of what is made. -->"
_MARK: Final = "# -- "
_STAGES: Final = ("producer", "generator", "scorer", "trainer", "ingest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One line of the table. `meaning` is empty where the key has no comment."""

    path: tuple[str, ...]
    default: Any
    meaning: str


def values() -> list[Value]:
    """The values that have a comment, and those that no commented key holds."""
    text = VALUES.read_text()
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    return list(_walk(root, (), text.splitlines()))


def table() -> str:
    """The section of the README, with its marks."""
    rows = ["| value | default | meaning |", "|---|---|---|"]
    rows += [f"| `{'.'.join(one.path)}` | {_shown(one.default)} | {_meaning(one)} |" for one in values()]
    return "\n".join([BEGIN, "", *rows, "", END])


def with_table(readme: str) -> str:
    """The README with today's table."""
    before, _, rest = readme.partition(BEGIN)
    return before + table() + rest.partition(END)[2]


def _walk(node: yaml.MappingNode, above: tuple[str, ...], lines: list[str]) -> Iterator[Value]:
    for key, below in node.value:
        path = (*above, key.value)
        meaning = _comment(lines, key.start_mark.line)
        is_open = isinstance(below, yaml.MappingNode) and below.value and not below.flow_style
        if is_open and not meaning and not _is_as_everywhere(path):
            yield from _walk(below, path, lines)
        else:
            yield Value(path=path, default=yaml.safe_load(yaml.serialize(below)), meaning=meaning)


def _is_as_everywhere(path: tuple[str, ...]) -> bool:
    """Whether a stage, or the Job, sets what `stageDefaults` explains."""
    return len(path) > 1 and path[0] in _STAGES and path[1] == "resources"


def _comment(lines: list[str], line: int) -> str:
    """The comment above a line, if it begins with the mark."""
    words: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        text = lines[line].strip()
        if text.startswith(_MARK):
            return " ".join([text.removeprefix(_MARK), *words])
        words.insert(0, text.removeprefix("# "))
    return ""


def _shown(default: Any) -> str:
    # An empty value is told by the meaning; GitHub's tables end at a bar.
    return f"`{json.dumps(default, ensure_ascii=False)}`".replace("|", "\\|")


def _meaning(value: Value) -> str:
    return (value.meaning or "As in `stageDefaults`.").replace("|", "\\|")


def main() -> None:
    """Write the file."""
    README.write_text(with_table(README.read_text()))


if __name__ == "__main__":
    main()
