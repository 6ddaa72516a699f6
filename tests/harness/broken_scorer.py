"""The scorer's real stream over a handler that breaks the world: python -m tests.harness.broken_scorer CONFIG HOW."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from rollstream.bus.message import Message
from rollstream.process.entry import run_process
from rollstream.scorer.loop import serve_stream
from rollstream.scorer.settings import ScorerSettings


async def break_world(messages: Sequence[Message]) -> None:
    """What a bug does in the middle of a batch."""
    await asyncio.sleep(0.1)
    match sys.argv[2]:
        case "raise":
            raise RuntimeError(f"a bug in a batch of {len(messages)}")
        case "exit":
            sys.exit(0)
        case "cancel":
            raise asyncio.CancelledError


if __name__ == "__main__":
    settings = ScorerSettings.load(Path(sys.argv[1]))
    run_process("scorer", lambda stop: serve_stream(settings, break_world, stop))
