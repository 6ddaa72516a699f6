"""Clients that stream chat completions, one call after the other, in a process of their own.

`python -m tests.bench.stream_client PORT CLIENTS SECONDS MEAN_TOKENS` prints one JSON object: of each call that began
after the first second, the seconds to its first token, and from its first to its last divided by the tokens between.

Answers have MEAN_TOKENS tokens on average. Were all of one length, the calls of all clients would end in one step of
the engine and begin in the next one, as the calls of real clients never do.
"""

import asyncio
import json
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import aiohttp

_WARM_UP_SECONDS: Final = 1.0
_DONE: Final = b"[DONE]"


@dataclass(slots=True)
class StreamTimes:
    """Seconds: to the first token of each call, and per token of each."""

    first_token: list[float] = field(default_factory=list)
    per_token: list[float] = field(default_factory=list)


async def _client(session: aiohttp.ClientSession, url: str, number: int, mean_tokens: int, times: StreamTimes) -> None:
    numbers = random.Random(number)
    counted_from = time.monotonic() + _WARM_UP_SECONDS
    while True:
        asked = {
            "model": "bench",
            "messages": [{"role": "user", "content": "".join(numbers.choices("123456789", k=5))}],
            "max_tokens": numbers.randint(mean_tokens // 2, mean_tokens * 3 // 2),
            "temperature": 1.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        began = time.monotonic()
        first, last, num_tokens = await _streamed(session, url, asked)
        if began > counted_from:
            times.first_token.append(first - began)
            times.per_token.append((last - first) / max(1, num_tokens - 1))


async def _streamed(session: aiohttp.ClientSession, url: str, asked: dict[str, Any]) -> tuple[float, float, int]:
    """When the first and the last token of an answer came, and how many there were."""
    first = last = 0.0
    num_tokens = 0
    async with session.post(url, json=asked) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if not line.startswith(b"data: ") or line[6:].strip() == _DONE:
                continue
            event = json.loads(line[6:])
            if event.get("usage"):
                num_tokens = event["usage"]["completion_tokens"]
            if any(choice["delta"].get("content") for choice in event["choices"]):
                last = time.monotonic()
                first = first or last
    if not num_tokens:
        raise RuntimeError("an answer had no token")
    return first, last, num_tokens


async def _run(port: int, num_clients: int, seconds: float, mean_tokens: int) -> StreamTimes:
    times = StreamTimes()
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        clients = [asyncio.create_task(_client(session, url, one, mean_tokens, times)) for one in range(num_clients)]
        ended, _ = await asyncio.wait(clients, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        for client in ended:
            client.result()
    return times


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(asyncio.run(_run(*map(int, sys.argv[1:]))))))
