"""An OpenAI-compatible API for tests, both of responses and of chats, whose answers a function of the test gives.

`solves_multi_step` is a model that can do the packaged example: it asks for the value of each synonym, then names all.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.harness.threads import application

Item = dict[str, Any]
_USAGE = {"input_tokens": 20, "output_tokens": 8, "total_tokens": 28, "input_tokens_details": {"cached_tokens": 4}}


def says(text: str) -> Item:
    """The item of an assistant's message."""
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "", "role": "assistant", "status": "completed", "content": [part]}


def calls(name: str, arguments: dict[str, Any] | str, call_id: str = "call-1") -> Item:
    """The item of a call."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": text}


def solves_multi_step(items: Sequence[Item]) -> list[Item]:
    """What comes after these items: three calls, a fourth with their values, then an answer."""
    synonyms = re.split(", ", re.findall(r": (.*?)\. get", items[0]["content"])[0])
    values = [json.loads(item["output"]) for item in items if item.get("type") == "function_call_output"]
    if len(values) < len(synonyms):
        return [calls("get_synonym_value", {"synonym": synonyms[len(values)]}, f"call-{len(values)}")]
    if len(values) == len(synonyms):
        named = {"synonym_values": [value["synonym_value"] for value in values]}
        return [calls("extract_synonym_values", named, "call-last")]
    return [says("done")]


@dataclass(slots=True, kw_only=True)
class ScriptedModel:
    """`answer` gives the items after those of a request, or a whole reply. `asked` has the bodies that came."""

    answer: Callable[[list[Item]], list[Item] | web.Response] = solves_multi_step
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def respond(self, request: web.Request) -> web.Response:
        """`/v1/responses`."""
        body = await request.json()
        self.asked.append(body)
        self.keys.add(request.headers.get("Authorization", ""))
        found = self.answer(body["input"])
        if isinstance(found, web.Response):
            return found
        fields = {"id": "resp-1", "object": "response", "model": body["model"], "status": "completed"}
        return web.json_response({**fields, "incomplete_details": None, "output": found, "usage": _USAGE})

    async def chat(self, request: web.Request) -> web.Response:
        """`/v1/chat/completions`, which says what it was asked."""
        body = await request.json()
        self.asked.append(body)
        call = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        is_first = len(body["messages"]) == 1
        message = {"role": "assistant", "content": None if is_first else "done", "reasoning_content": "hm"}
        if is_first:
            message["tool_calls"] = [call]
        usage = {"prompt_tokens": 20, "completion_tokens": 8, "total_tokens": 28}
        return web.json_response(
            {"id": "chat-1", "created": 1, "choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
        )


@contextmanager
def scripted_model(**behavior: Any) -> Iterator[ScriptedModel]:
    """The API, in a thread, until the block ends."""
    model = ScriptedModel(**behavior)
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/responses", model.respond)
    app.router.add_post("/v1/chat/completions", model.chat)
    with application(app) as model.port:
        yield model
