"""Endpoints of a running vLLM engine, and clients that stream from them."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from copy import copy
from typing import Any, Final

import numpy as np
from uvicorn._types import ASGI3Application

from rollstream.engines.vllm.engine import VllmEngine
from rollstream.generator.serve.asking import ROUTES
from rollstream.http.keys import Keys
from rollstream.http.server import Address, HttpServer
from rollstream.http.settings import GuardSettings
from rollstream.schemas.errors import BrokenWorldError
from tests.harness.processes import ROOT

HOST: Final = "127.0.0.1"


class UnrecordedEngine:
    """vLLM's AsyncLLM for its routes, without record and gate; with the logprobs of sampled tokens, or without."""

    def __init__(self, engine: VllmEngine, *, logprobs: bool) -> None:
        self._engine = engine
        self._has_logprobs = logprobs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine.llm, name)

    def generate(self, prompt: Mapping[str, Any], params: Any, request_id: str, **others: Any) -> AsyncIterator[Any]:
        """vLLM's outputs."""
        if self._has_logprobs:
            params = copy(params)
            params.logprobs, params.flat_logprobs = 0, True
        outputs: AsyncIterator[Any] = self._engine.llm.generate(prompt, params, request_id, **others)
        return outputs


@asynccontextmanager
async def an_endpoint(app: ASGI3Application, name: str) -> AsyncIterator[int]:
    """The port at which `app` is served behind the guard while the block runs."""
    server = HttpServer(
        app,
        name=name,
        address=Address(host=HOST, port=0),
        guard=GuardSettings(),
        keys=Keys({}, HOST),
        routes=ROUTES,
    )
    port = await server.start()
    try:
        yield port
    finally:
        await server.close()


async def streamed(
    port: int, *, num_clients: int, seconds: int, mean_tokens: int, cores: Collection[int] | None
) -> dict[str, float]:
    """The 95th percentiles of so many clients' times in seconds: `first_token` and `per_token`; and how many calls."""
    client = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.bench.stream_client",
        *map(str, (port, num_clients, seconds, mean_tokens)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    if cores:
        os.sched_setaffinity(client.pid, cores)
    told, _ = await client.communicate()
    times = json.loads(told) if told else {}
    if client.returncode or not times["first_token"]:
        raise BrokenWorldError(f"the clients had no answer in {seconds} s: raise --seconds, end other work")
    found = {name: float(np.percentile(moments, 95)) for name, moments in times.items()}
    return {**found, "calls": float(len(times["first_token"]))}
