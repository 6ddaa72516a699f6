"""Writes a run's settings file with what the local stack knows: where Kafka, Redis and the weights are."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from rollstream.local.stack import LocalStack
from rollstream.process.files import write_private
from rollstream.process.settings.base import RUN_FILE
from rollstream.schemas.errors import ConfigurationError


def ensure_run_file(run_dir: Path, stack: LocalStack) -> Path:
    """Write `<run_dir>/rollstream.toml` for a stack that runs; a file that exists stays. Stages take it as --config."""
    path = run_dir.resolve() / RUN_FILE
    if not path.exists():
        write_private(path, tomli_w.dumps(shared_settings(run_dir, stack)))
    return path


def shared_settings(run_dir: Path, stack: LocalStack) -> dict[str, Any]:
    """The settings that every stage of the run needs."""
    return {
        "run": run_name(run_dir),
        "redis_url": stack.redis.url,
        "weight_store": str(run_dir.resolve() / "weights"),
        "kafka": {"bootstrap_servers": stack.kafka.bootstrap_servers},
    }


def refuse_used(run_dir: Path) -> None:
    """Raise ConfigurationError if the directory is that of a run already: its settings and figures must stay."""
    path = run_dir / RUN_FILE
    if path.exists():
        raise ConfigurationError(
            f"{path} exists: {run_dir} is the directory of a run, and its settings would be overwritten; choose a new "
            "--run-dir, or leave it out"
        )


def refuse_another_runs_paths(run_dir: Path, came_from: Path) -> None:
    """Raise ConfigurationError if the run file of a copied or moved directory still leads to where it came from.

    A trainer of the copy would delete there the weights and checkpoints that the copy's ledger does not name.
    """
    path = run_dir / RUN_FILE
    if not path.exists():
        return
    named = _paths(tomllib.loads(path.read_text(encoding="utf-8")))
    foreign = [f"{key} = {str(value)!r}" for key, value in named if value.is_relative_to(came_from)]
    if foreign:
        raise ConfigurationError(
            f"{run_dir} was formatted at {came_from}, and its {RUN_FILE} still leads there: {', '.join(foreign)}. "
            f"Its stages would write to the other directory: change {came_from} to {run_dir.resolve()} in {path}, "
            "then start again"
        )


def _paths(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Path]]:
    """The absolute paths in a file's tables, with their keys."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _paths(value, f"{above}{key}.")
        elif isinstance(value, str) and value.removeprefix("file://").startswith("/"):
            yield f"{above}{key}", Path(value.removeprefix("file://"))


def run_name(run_dir: Path) -> str:
    """A run's name, made from its directory's name: `[a-z0-9-]{1,60}`, so that topics may begin with it."""
    return re.sub(r"[^a-z0-9]+", "-", run_dir.resolve().name.lower()).strip("-")[:60].rstrip("-") or "local"
