"""Engines of kind `openai_http`, and requests for them."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors.numpy import save_file

from rollstream.engines.build import build_engine
from rollstream.engines.http.engine import OpenAiHttpEngine
from rollstream.engines.protocol import Generation, GenerationRequest
from rollstream.engines.settings import EngineSettings
from rollstream.local.tiny_model import write_tokenizer
from rollstream.schemas.prompt import Message, Sampling
from tests.harness.fake_openai import FakeOpenAI

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


def a_version(path: Path, width: int) -> Path:
    """A file of weights in this directory, and a tokenizer."""
    path.mkdir(exist_ok=True)
    write_tokenizer(path, max_length=512)
    save_file({"model.norm.weight": np.zeros(width, dtype=np.float32)}, path / "model.safetensors")
    return path


def a_token_request(engine: OpenAiHttpEngine, **fields: Any) -> GenerationRequest:
    """The same prompt in tokens."""
    token_ids = engine.tokenize(ASKED, ())
    assert token_ids is not None
    return a_request(prompt_token_ids=token_ids, **{"sampling": Sampling(temperature=0.7), **fields})


async def when_asked(*servers: FakeOpenAI, number: int = 1) -> None:
    """Wait until the servers work on so many calls each."""
    async with asyncio.timeout(20):
        while any(server.in_flight < number for server in servers):
            await asyncio.sleep(0.005)
