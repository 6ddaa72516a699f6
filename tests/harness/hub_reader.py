"""Opens sources in a process of its own, as the hub's libraries read HF_ENDPOINT when they are imported.

`python -m tests.harness.hub_reader` takes a JSON list of sources, each with what an output was begun with, and prints
a JSON list of what came of them.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rollstream.rows.open import open_rows
from rollstream.schemas.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a source gave: rows as number, place and fields; or only why it could not be opened."""

    identity: str = ""
    num_rows: int | None = None
    rows: list[Any]
    error: str = ""

    @property
    def prompts(self) -> list[str]:
        return [fields["prompt"] for _, _, fields in self.rows]


def opened(hub_url: str, home: Path, *sources: tuple[str, str], token: str = "") -> list[Opened]:
    """Each source, opened with what an output of it was begun with. `home`: with the hub's cache."""
    environment = {**os.environ, "HF_ENDPOINT": hub_url, "HF_HOME": str(home), "HF_TOKEN": token}
    command = [sys.executable, "-W", "error", "-m", "tests.harness.hub_reader", json.dumps(sources)]
    found = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, timeout=200)
    return [Opened(**values) for values in json.loads(found.stdout)]


def _open(source: str, begun_with: str) -> Opened:
    try:
        rows = open_rows(Path(source), begun_with)
        identity = rows.identity()
        return Opened(
            identity=identity, num_rows=rows.num_rows, rows=[(row.number, row.where, row.fields) for row in rows]
        )
    except ConfigurationError as error:
        return Opened(rows=[], error=str(error))


if __name__ == "__main__":
    sys.stdout.write(json.dumps([asdict(_open(*asked)) for asked in json.loads(sys.argv[1])]))
