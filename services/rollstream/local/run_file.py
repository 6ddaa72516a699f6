"""Writes a run's settings file with what the local stack knows: where Kafka, Redis and the weights are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import tomli_w

from rollstream.local.stack import LocalStack
from rollstream.process.settings import RUN_FILE
from rollstream.schemas.errors import ConfigurationError


def ensure_run_file(run_dir: Path, stack: LocalStack) -> Path:
    """Write `<run_dir>/rollstream.toml` for a stack that runs; a file that exists stays. Stages take it as --config."""
    path = run_dir.resolve() / RUN_FILE
    if not path.exists():
        path.write_text(tomli_w.dumps(shared_settings(run_dir, stack)), encoding="utf-8")
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


def run_name(run_dir: Path) -> str:
    """A run's name, made from its directory's name: `[a-z0-9-]{1,60}`, so that topics may begin with it."""
    return re.sub(r"[^a-z0-9]+", "-", run_dir.resolve().name.lower()).strip("-")[:60].rstrip("-") or "local"
