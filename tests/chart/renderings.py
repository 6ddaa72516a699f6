"""What the chart makes of its defaults and examples, as lines: `python -m tests.chart.renderings` writes them.

One line for each value of each document. Of an example only the lines that differ from the defaults: `-` is gone, `+`
is new. Rules, dashboards and runbooks have tests of their own: here stands only that they are there.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.chart.everything import EVERYTHING, SWITCHED_ON
from tests.chart.rendering import EXAMPLES, Document, Release, example, render

FOLDER: Final = Path(__file__).with_name("renderings")
_OF_OTHERS: Final = ("-runbooks", "-dashboard-")
DEFAULTS: Final = "defaults"


def renderings() -> dict[str, str]:
    """The text of each file, by its name."""
    plain = list(lines(render()))
    found = {DEFAULTS: plain}
    for name, values in others().items():
        own = list(lines(render(values)))
        gone, new = (sorted(set(a) - set(b)) for a, b in ((plain, own), (own, plain)))
        found[name] = [*(f"- {line}" for line in gone), *(f"+ {line}" for line in new)]
    return {name: "".join(f"{line}\n" for line in lines) for name, lines in found.items()}


def others() -> dict[str, dict[str, Any]]:
    """The values of each rendering that is not of the defaults alone."""
    return {**{name.removesuffix(".yaml"): example(name) for name in EXAMPLES}, "everything": EVERYTHING, **SWITCHED_ON}


def lines(release: Release) -> Iterator[str]:
    """One for each value of each document, and the notes."""
    for document in release.documents:
        name = f"{document['kind']} {document['metadata']['name']}"
        if document["kind"] == "PrometheusRule" or any(part in name for part in _OF_OTHERS):
            yield f"{name}: is there"
        else:
            yield from (f"{name}: {path} = {value}" for path, value in _values(_own(document)))
    yield from (f"NOTES: {line}" for line in release.notes.splitlines() if line)


def _own(document: Document) -> Document:
    """Without what every document has, and what changes with the text of another one."""
    labels = document["metadata"].get("labels", {})
    metadata = {**document["metadata"], "labels": labels.get("app.kubernetes.io/component")}
    own = {key: value for key, value in metadata.items() if key not in ("name", "namespace")}
    return {**document, "kind": None, "metadata": own}


def _values(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(node, dict) and node:
        for key, below in node.items():
            if not key.startswith("checksum/") and not key.startswith("app.kubernetes.io/"):
                yield from _values(below, f"{path}.{key}".lstrip("."))
    elif isinstance(node, list) and node:
        for place, below in enumerate(node):
            named = isinstance(below, dict) and "name" in below
            name = below["name"] if named else place
            rest = {key: value for key, value in below.items() if key != "name"} if named else below
            yield from _values(rest, f"{path}[{name}]")
    elif isinstance(node, str) and "\n" in node:
        yield from ((f"{path}|", line) for line in node.splitlines() if line)
    elif node is not None:
        yield path, json.dumps(node, ensure_ascii=False)


def main() -> None:
    """Write all files anew."""
    FOLDER.mkdir(exist_ok=True)
    made = renderings()
    for path in FOLDER.glob("*.txt"):
        path.unlink()
    for name, text in made.items():
        (FOLDER / f"{name}.txt").write_text(text, encoding="utf-8")
    sys.stdout.write(f"{len(made)} files in {FOLDER}\n")


if __name__ == "__main__":
    main()
