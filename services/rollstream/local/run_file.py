"""The run's settings file, as far as the local stack knows it: where Kafka, Redis and the weights are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import tomli_w

from rollstream.local.stack import LocalStack
from rollstream.process.settings import RUN_FILE


def ensure_run_file(run_dir: Path, stack: LocalStack) -> Path:
    """Write `<run_dir>/rollstream.toml` for a stack that is up, unless there is one; stages take it as --config."""
    path = run_dir.resolve() / RUN_FILE
    if not path.exists():
        path.write_text(tomli_w.dumps(shared_settings(run_dir, stack)), encoding="utf-8")
    return path


def shared_settings(run_dir: Path, stack: LocalStack) -> dict[str, Any]:
    """What every stage of the run has to know, as its settings name it."""
    return {
        "run": run_name(run_dir),
        "redis_url": stack.redis.url,
        "weight_store": str(run_dir.resolve() / "weights"),
        "kafka": {"bootstrap_servers": stack.kafka.bootstrap_servers},
    }


def run_name(run_dir: Path) -> str:
    """A run's name after its directory, as topics allow it: `[a-z0-9-]{1,60}`."""
    return re.sub(r"[^a-z0-9]+", "-", run_dir.resolve().name.lower()).strip("-")[:60].rstrip("-") or "local"
