"""A small server of a Gym agent for tests, which runs a tool itself, and the head server that knows its address.

Its verifier compares the last text with the row's `expected_answer`. What it does with a row can be planned.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.harness.threads import application

Row = dict[str, Any]
AGENT = "counter_simple_agent"


def text_item(text: str) -> Row:
    """The item of an assistant's message."""
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def a_response(*texts: str, calls: int = 0, **fields: Any) -> Row:
    """A response whose last item is the last text, after so many calls of the tool `add`."""
    items: list[Row] = [text_item(text) for text in texts[:-1]]
    for number in range(calls):
        call = {"call_id": f"call-{number}", "name": "add", "arguments": '{"a": 1, "b": 2}'}
        items += [{"type": "function_call", **call}]
        items += [{"type": "function_call_output", "call_id": f"call-{number}", "output": "3"}]
    usage = {
        "input_tokens": 20,
        "output_tokens": 8,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    response = {"id": "resp-1", "object": "response", "model": "tiny", "output": [*items, text_item(texts[-1])]}
    return {**response, "usage": usage, "incomplete_details": None, **fields}


def graded(row: Row) -> Row:
    """Calls the tool once, and answers the row's `says`, which is right if it is the `expected_answer`."""
    says = row.get("says", row.get("expected_answer", "3"))
    return {"response": a_response("I call it.", says, calls=1), "reward": float(says == row.get("expected_answer"))}


@dataclass(slots=True, kw_only=True)
class GymServer:
    """How the agent's server behaves, and what it saw. `answer` may give bytes, or a response with any status."""

    answer: Callable[[Row], Row | bytes | web.StreamResponse] = graded
    seconds: float = 0.0
    waits_for: int = 0
    """Answer nothing until so many rows are in flight."""
    config: str = ""
    """What the head server gives instead of the configuration."""
    reverify_mode: str = "stateless"
    asked: list[bytes] = field(default_factory=list)
    verified: list[Row] = field(default_factory=list)
    cookies: list[str] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def rows(self) -> list[Row]:
        """The rows that came."""
        return [json.loads(body) for body in self.asked]

    def application(self) -> web.Application:
        """`/run` of an agent, and the head server's configuration, on one port."""
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/run", self._run)
        app.router.add_get("/global_config_dict_yaml", self._config)
        app.router.add_post("/verify", self._verify)
        app.router.add_get("/reverify_mode", self._mode)
        return app

    async def _run(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(await request.read())
        self.cookies.append(request.headers.get("Cookie", ""))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            async with asyncio.timeout(30):
                while self.in_flight < self.waits_for and self.most_in_flight < self.waits_for:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(self.seconds)
            row = json.loads(await request.read())
            found = self.answer(row)
        finally:
            self.in_flight -= 1
        if isinstance(found, web.StreamResponse):
            return found
        body = found if isinstance(found, bytes) else json.dumps({**row, **found}).encode()
        headers = {"Set-Cookie": f"session={len(self.asked)}"}
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def _verify(self, request: web.Request) -> web.Response:
        """Another grading than the agent's: what was right is wrong now."""
        row = await request.json()
        self.verified.append(row)
        says = row["response"]["output"][-1]["content"][0]["text"]
        return web.json_response({**row, "reward": float(says != row["expected_answer"])})

    async def _mode(self, request: web.Request) -> web.Response:
        return web.json_response(self.reverify_mode)

    async def _config(self, request: web.Request) -> web.Response:
        place = f"{{host: 127.0.0.1, port: {self.port}}}"
        agent = f"{AGENT}: {{responses_api_agents: {{simple_agent: {place}}}}}\n"
        if self.config:
            return web.json_response(self.config)
        return web.json_response(f"{agent}counter: {{resources_servers: {{counter: {place}}}}}\n")


@contextmanager
def gym_server(**behavior: Any) -> Iterator[GymServer]:
    """The server, in a thread, until the block ends."""
    server = GymServer(**behavior)
    with application(server.application()) as server.port:
        yield server
