"""The scorer's real stream with a handler that fails as a whole.

Whatever leaves the handler is a broken world to the scorer: nothing can be handled until something is repaired.
"""

import asyncio
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rollstream.bus.message import KafkaMessage
from rollstream.process.entry import run_process
from rollstream.scorer.loop import serve_stream
from rollstream.scorer.settings import ScorerSettings


async def break_world(how: str, messages: Sequence[KafkaMessage], _must_end: Callable[[], bool]) -> None:
    """Do in the middle of a batch what a bug may do there."""
    await asyncio.sleep(0.1)
    match how:
        case "raise":
            raise RuntimeError(f"a bug in a batch of {len(messages)}")
        case "exit":
            sys.exit(0)
        case "cancel":
            raise asyncio.CancelledError


def main(config: Path, how: str) -> None:
    """The process."""
    settings = ScorerSettings.load(config)
    run_process("scorer", lambda stop: serve_stream(settings, partial(break_world, how), stop))
