"""A generator whose engine notes every token that it samples, in a file that outlives it, and an agent of many turns.

No two answers of this engine are alike: what is published can be told from what was sampled and lost.
"""

import asyncio
import hashlib
import json
import os
import random
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from rollstream.agents.session import Session
from rollstream.engines.protocol import Generation, GenerationRequest
from rollstream.engines.scripted import ScriptedEngine
from rollstream.engines.settings import EngineSettings
from rollstream.schemas.prompt import ToolCall
from rollstream.schemas.rollout import FinishReason, WeightSpan
from tests.harness.forking import run_words

AT_ONCE: Final = 64
"""Tokens that come together, and are noted together: a part of every answer."""
NUM_CALLS: Final = 8
LONG_TOKENS: Final = 4096
REASONING_TOKENS: Final = 1024
NUM_CYCLES: Final = 3
"""The default of the agent `reasoning_cache`."""
_LONG_TURN: Final = 4


class CountingEngine(ScriptedEngine):
    """Answers random digits, a token each, as many as may be."""

    def __init__(self, settings: EngineSettings, sampled: Path) -> None:
        super().__init__(settings)
        self._places = asyncio.Semaphore(settings.max_num_seqs)
        self._seconds = settings.scripted.token_seconds * AT_ONCE
        self._sampled = os.open(sampled, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def generate(self, request: GenerationRequest) -> Generation:
        async with self._places:
            text = "".join([await self._more() for _ in range(0, request.max_tokens, AT_ONCE)])
        token_ids = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)
        return Generation(
            token_ids=token_ids,
            behavior_logprobs=np.full(len(token_ids), -2.3, dtype=np.float32),
            weight_spans=(WeightSpan(weight_version=0, start=0, end=len(token_ids)),),
            finish_reason=FinishReason.LENGTH,
            text=text,
        )

    async def _more(self) -> str:
        await asyncio.sleep(self._seconds)
        # Of the system: processes that are forked from one have the same state of `random`.
        text = "".join(random.SystemRandom().choices("0123456789", k=AT_ONCE))
        # One write: what was written is in the file, also if the process is killed right after.
        os.write(self._sampled, f"{os.getpid()} {text}\n".encode())
        return text


class CountingAgent:
    """Calls a tool between each two turns, one of which is long. What it calls follows from all that was sampled."""

    tool_set = "counter"

    async def run(self, session: Session) -> None:
        """A turn more than calls."""
        await session.generate()
        long = session.prompt.sampling.model_copy(update={"max_tokens": LONG_TOKENS})
        for number in range(NUM_CALLS):
            tokens = b"".join(turn.token_ids.tobytes() for turn in session.turns)
            key = f"{number}-{hashlib.sha256(tokens).hexdigest()[:16]}"
            answers = await session.call([ToolCall(call_id=key, name="add", arguments=json.dumps({"key": key}))])
            await session.generate(answers, sampling=long if number + 1 == _LONG_TURN else None)


def expected_tokens(agent: str) -> list[int]:
    """How many tokens each turn of a sample has."""
    if agent == "single_turn":
        return [LONG_TOKENS]
    if agent == "reasoning_cache":
        return [REASONING_TOKENS, AT_ONCE] * NUM_CYCLES
    return [LONG_TOKENS if turn == _LONG_TURN else AT_ONCE for turn in range(NUM_CALLS + 1)]


def generate(config: Path, sampled: Path) -> None:
    """Be `rollstream generator` with that engine."""
    import rollstream.engines.scripted

    rollstream.engines.scripted.ScriptedEngine = partial(CountingEngine, sampled=sampled)  # type: ignore[assignment,misc]
    run_words("generator", "--config", str(config))
