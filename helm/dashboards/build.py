"""Writes the dashboards of the chart: `python -m helm.dashboards.build`, in the directory at the top."""

import json
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from helm.dashboards import generators, kafka, overview, pipeline, quality, serving, trainer

FOLDER: Final = Path(__file__).parents[1] / "rollstream" / "files" / "dashboards"
BOARDS: Final = {
    "overview": overview.make,
    "pipeline": pipeline.make,
    "generators": generators.make,
    "trainer": trainer.make,
    "quality": quality.make,
    "kafka": kafka.make,
    "serving": serving.make,
}


def as_json(name: str) -> str:
    """The text of one dashboard's file."""
    return json.dumps(BOARDS[name]().build(), cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def path_of(name: str) -> Path:
    """Where it lies."""
    return FOLDER / f"rollstream-{name}.json"


if __name__ == "__main__":
    for board in BOARDS:
        path_of(board).write_text(as_json(board), encoding="utf-8")
