"""The run's settings file, as far as the local stack knows it: where Kafka, Redis and the weights are."""

from __future__ import annotations

import json
import re
from pathlib import Path

from rollstream.local.stack import LocalStack
from rollstream.process.settings import RUN_FILE


def ensure_run_file(run_dir: Path, stack: LocalStack) -> Path:
    """Write `<run_dir>/rollstream.toml` for a stack that is up, unless there is one; stages take it as --config."""
    path = run_dir.resolve() / RUN_FILE
    if not path.exists():
        path.write_text(
            f"run = {_quoted(run_name(run_dir))}\n"
            f"redis_url = {_quoted(stack.redis.url)}\n"
            f"weight_store = {_quoted(str(run_dir.resolve() / 'weights'))}\n"
            "\n[kafka]\n"
            f"bootstrap_servers = {_quoted(stack.kafka.bootstrap_servers)}\n"
        )
    return path


def run_name(run_dir: Path) -> str:
    """A run's name after its directory, as topics allow it: `[a-z0-9-]{1,60}`."""
    return re.sub(r"[^a-z0-9]+", "-", run_dir.resolve().name.lower()).strip("-")[:60].rstrip("-") or "local"


def _quoted(text: str) -> str:
    return json.dumps(text)  # a JSON string is a TOML basic string
