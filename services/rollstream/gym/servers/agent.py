"""The simple agent's server: the model calls tools until it answers without a call, then its work is verified.

What the model or a tool does wrong, the model sees. A tool or a model that gives no answer ends the rollout with 502,
and so without a reward. A session is closed whatever happens.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from uvicorn._types import ASGI3Application

from rollstream.engines.http.replies import Reply, failed_sample
from rollstream.gym.names import PARAMS
from rollstream.gym.servers.answers import application, input_of, items_of, object_of, refused
from rollstream.gym.servers.calls import JsonCalls
from rollstream.gym.servers.metrics_route import aggregate
from rollstream.gym.servers.model import RESPONSES
from rollstream.gym.transcript import has_output, is_cut_off
from rollstream.process.masking import SECRETS
from rollstream.schemas.bounds import MAX_TOOL_ANSWER_BYTES, MAX_TOOL_CALLS, MAX_TURNS
from rollstream.schemas.errors import EngineError, ToolError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.prompt import ToolCall
from rollstream.tools.gym_form import ROW
from rollstream.tools.protocol import ToolSession, ToolSet

ROUTES: Final = ("/run", RESPONSES, "/aggregate_metrics")
_LOG = logging.getLogger(__name__)
_CUT: Final = "… (cut off)"
_CUT_OFF: Final = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}

Row = Mapping[str, Any]
Item = dict[str, Any]


class SimpleAgent:
    """Asks the model at `model_url` by `calls`, and opens sessions of `tools`."""

    def __init__(
        self, model_url: str, calls: JsonCalls, tools: ToolSet, *, max_steps: int | None, run_seconds: float
    ) -> None:
        self._model_url = model_url
        self._calls = calls
        self._tools = tools
        self._max_steps = max_steps or MAX_TURNS
        self._run_seconds = run_seconds

    def app(self) -> ASGI3Application:
        """The application."""
        return application({"/run": self._run, RESPONSES: self._respond, "/aggregate_metrics": aggregate})

    async def _run(self, request: Request) -> Response:
        row = object_of(request)
        params = row.get(PARAMS)
        if not isinstance(params, dict):
            raise refused(f"a row has {PARAMS}, an object; this one has none")
        async with self._session(row, params) as session:
            response = await self._conversation(params, session)
            verdict = await session.verify({"response": response})
        return JSONResponse(verdict)

    async def _respond(self, request: Request) -> Response:
        params = object_of(request)
        async with self._session({PARAMS: params}, params) as session:
            return JSONResponse(await self._conversation(params, session))

    @asynccontextmanager
    async def _session(self, row: Row, params: Row) -> AsyncIterator[ToolSession]:
        """A session for this rollout alone, within its deadline."""
        tools = [json.dumps(tool) for tool in items_of(params, "tools")]
        task = {"tools": tools, "metadata": {ROW: json.dumps(row)}}
        try:
            async with asyncio.timeout(self._run_seconds):
                session = await self._tools.open(uuid4().hex, 0, task)
                try:
                    yield session
                finally:
                    await _close(session)
        except TimeoutError as error:
            raise EngineError(f"the rollout took longer than run_seconds, {self._run_seconds:g} s") from error

    async def _conversation(self, params: Row, session: ToolSession) -> dict[str, Any]:
        """The last response, with the items and the tokens of all."""
        asked = input_of(params)
        output: list[Item] = []
        response: dict[str, Any] = {}
        usage: dict[str, Any] | None = None
        for step in range(self._max_steps):
            reply = await self._calls.post(self._model_url + RESPONSES, {**params, "input": [*asked, *output]})
            if step and _is_full(reply):
                response = {**response, **_CUT_OFF}
                break
            response = _response(reply)
            usage = response.get("usage") if step == 0 else _summed(usage, response.get("usage"))
            calls = [item for item in response["output"] if item.get("type") == "function_call"]
            output += response["output"]
            if is_cut_off(response) or not calls:
                break
            output += [await _answered(number, call, session) for number, call in enumerate(calls)]
        return {**response, "output": output, "usage": usage}


async def _close(session: ToolSession) -> None:
    try:
        await session.close()
    except ToolError as error:
        _LOG.warning("a session was not closed: %s", SECRETS.masked(str(error)))


async def _answered(number: int, call: Item, session: ToolSession) -> Item:
    """The item with what a tool said. Raises `ToolError` if nothing says what became of the call."""
    call_id = str(call.get("call_id"))
    if number >= MAX_TOOL_CALLS:
        said = json.dumps({"error": f"at most {MAX_TOOL_CALLS} calls at once: this one was not made"})
    else:
        made = ToolCall(call_id=call_id, name=str(call.get("name")), arguments=str(call.get("arguments")))
        said = (await session.call(made)).content
    if len(said.encode()) > MAX_TOOL_ANSWER_BYTES:
        said = said.encode()[: MAX_TOOL_ANSWER_BYTES - len(_CUT.encode())].decode(errors="ignore") + _CUT
    return {"type": "function_call_output", "call_id": call_id, "output": said}


def _is_full(reply: Reply) -> bool:
    """Whether the model has no room for another turn, as it says."""
    return not reply.is_ok and failed_sample(reply, "").code == FailureCode.PROMPT_TOO_LONG


def _response(reply: Reply) -> dict[str, Any]:
    """The model's response. Raises `FailedSampleError` if it refuses the request, `EngineError` if it gives none."""
    if not reply.is_ok:
        why = f"the model's server answered {reply.status}: {reply.message}"
        if reply.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, 422):
            raise failed_sample(reply, why)
        raise EngineError(why)
    found = reply.fields
    if not has_output({"response": found}) or not all(isinstance(item, dict) for item in found["output"]):
        raise EngineError("the model's server gave a response without `output`, a list of items")
    return found


def _summed(one: Any, other: Any) -> dict[str, Any] | None:
    """Tokens of both; a figure that one of them lacks is lacking."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return None
    both: dict[str, Any] = {}
    for name in one.keys() & other.keys():
        if isinstance(one[name], dict):
            both[name] = _summed(one[name], other[name])
        elif type(one[name]) is int and type(other[name]) is int:
            both[name] = one[name] + other[name]
    return both
