"""A task that needs a tool, small enough for a model of a million parameters: its environment, agent and server.

The model sees `2735?` and names the largest digit. A server of tools gives three to five digits for the right one, and
the model sorts them: `7`, then `4120=`, then `0124`. Who can do one of both only gets nothing.
"""

import hashlib
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

from aiohttp import web

from rollstream.agents.session import Session
from rollstream.environments.protocol import Split, Task, split_of
from rollstream.environments.rubric import Rubric, WeightedReward
from rollstream.environments.sort_digits import exact_match
from rollstream.schemas.prompt import Message, Sampling, ToolCall
from tests.harness.threads import application

SCHEMA: Final = json.dumps({"type": "function", "function": {"name": "digits", "parameters": {"type": "object"}}})
_NOTHING: Final = "no"


def key_of(name: str) -> str:
    """What opens it: its largest digit."""
    return max(name)


def hidden(name: str) -> str:
    """The digits that the server gives for it."""
    number = int(hashlib.sha256(name.encode()).hexdigest(), 16)
    return str(number)[: 3 + number % 3]


class HiddenDigits:
    """Names without end; what is to be sorted is not in the prompt."""

    name = "hidden_digits"
    rubric = Rubric(WeightedReward("exact_match", exact_match))
    sampling = Sampling(temperature=1.0, max_tokens=10)

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        for row, name in enumerate(_names(split, seed)):
            yield Task(
                task_id=f"{split}/{seed}/{row}",
                messages=(Message(role="user", content=f"{name}?"),),
                reference_answer="".join(sorted(hidden(name))),
            )


class HiddenDigitsShown:
    """The same tasks turn by turn, each with a demonstration, for a warm-up."""

    name = "hidden_digits_shown"
    rubric = HiddenDigits.rubric
    sampling = HiddenDigits.sampling

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        for row, name in enumerate(_names(split, seed)):
            key, digits = key_of(name), hidden(name)
            asked = [Message(role="user", content=f"{name}?")]
            answer = key
            if row % 2:
                asked += [Message(role="assistant", content=key), Message(role="user", content=f"{digits}=")]
                answer = "".join(sorted(digits))
            yield Task(
                task_id=f"{split}/{seed}/{row}", messages=tuple(asked), reference_answer=answer, demonstration=answer
            )


class HiddenDigitsAgent:
    """Calls the tool with what the model says, and has the model answer what the tool said."""

    tool_set = "hidden"
    max_turns = 2

    async def run(self, session: Session) -> None:
        named = await session.generate(turn_type="name")
        call = ToolCall(call_id="call-1", name="digits", arguments=json.dumps({"key": named.text}))
        [said] = await session.call((call,))
        await session.generate((Message(role="user", content=f"{said.content}="),))


def _names(split: Split, seed: int) -> Iterator[str]:
    chooser = random.Random(f"{split}/{seed}")
    for _ in count():
        name = "".join(chooser.choices("0123456789", k=chooser.randint(3, 6)))
        if split_of(name) == split:
            yield name


class HiddenDigitsServer:
    """A resources server, as NeMo Gym has them: each session knows its task's name."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    async def answer(self, request: web.Request) -> web.Response:
        route, session = request.match_info["route"], request.headers["Rollstream-Session"]
        body: dict[str, Any] = await request.json()
        if route == "seed_session":
            self._names[session] = body["responses_create_params"]["input"][0]["content"].rstrip("?")
        if route == "close_session":
            self._names.pop(session, None)
        if route == "digits":
            name = self._names[session]
            return web.Response(text=hidden(name) if body.get("key") == key_of(name) else _NOTHING)
        return web.json_response({"reward": 0.0} if route == "verify" else {})


@contextmanager
def hidden_digits_server() -> Iterator[str]:
    """The server's address until the block ends."""
    app = web.Application()
    app.add_routes([web.post("/{route}", HiddenDigitsServer().answer)])
    with application(app) as port:
        yield f"http://127.0.0.1:{port}"
