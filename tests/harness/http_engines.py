"""Engines of kind `openai_http`, and requests for them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import numpy as np

from rollstream.engines.build import build_engine
from rollstream.engines.openai_http import OpenAiHttpEngine
from rollstream.engines.protocol import Generation, GenerationRequest
from rollstream.engines.settings import EngineSettings
from rollstream.schemas.prompt import Message, Sampling

T = TypeVar("T")
ASKED = (Message(role="system", content="Be brief."), Message(role="user", content="2+2="))


def an_engine(*urls: str, max_model_len: int | None = None, **http: Any) -> OpenAiHttpEngine:
    """An engine for these servers, not started."""
    values = {"urls": urls, "model": "tiny", "ready_seconds": 20.0, "request_seconds": 20.0, **http}
    engine = build_engine(
        EngineSettings.model_validate({"kind": "openai_http", "http": values, "max_model_len": max_model_len})
    )
    assert isinstance(engine, OpenAiHttpEngine)
    return engine


def a_request(number: int = 0, *, messages: tuple[Message, ...] = ASKED, **fields: Any) -> GenerationRequest:
    """A request in messages, at most 16 tokens of answer."""
    values: dict[str, Any] = {
        "request_id": f"request-{number}",
        "prompt_token_ids": np.zeros(0, dtype=np.int32),
        "sampling": Sampling(temperature=0.7, top_p=0.9),
        "max_tokens": 16,
        "seed": None,
        "messages": messages,
    }
    return GenerationRequest(**{**values, **fields})


def on(engine: OpenAiHttpEngine, work: Callable[[OpenAiHttpEngine], Awaitable[T]]) -> T:
    """Start the engine, do the work on it, and close it."""

    async def run() -> T:
        await engine.start(0)
        try:
            return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(run())


def many(number: int) -> Callable[[OpenAiHttpEngine], Awaitable[list[Generation]]]:
    """So many requests side by side."""

    async def generate(engine: OpenAiHttpEngine) -> list[Generation]:
        return await asyncio.gather(*(engine.generate(a_request(index)) for index in range(number)))

    return generate
