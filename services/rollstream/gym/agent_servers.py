"""Asks servers for rollouts: one `POST` with the whole row, to `/run` of an agent's or `/verify` of a resources server.

The answer has response and reward.

A try that nobody took (no connection, 429) is repeated within the rollout's time. Any other one ends the attempt: it
may have run tools, so only a new attempt, with a session of its own, asks again. What came instead of an answer is
unresolved or failed, never a reward of 0.
"""

import asyncio
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    retry_if_result,
    stop_after_attempt,
)
from yarl import URL

from rollstream.engines.http.bodies import read_body
from rollstream.engines.http.outgoing import CONNECT_SECONDS, last, open_client, pause
from rollstream.engines.http.replies import Reply
from rollstream.gym.addresses import AGENTS, CONFIG_ROUTE, Addresses, HeadAddresses, OneAddress
from rollstream.gym.names import AGENT
from rollstream.gym.options import HeadServer
from rollstream.gym.transcript import answer_text, is_cut_off, output_tokens, token_mismatch
from rollstream.offline.askers import AskedSample
from rollstream.offline.ended import EndedSample
from rollstream.offline.tasks import CollectTask
from rollstream.process.masking import SECRETS
from rollstream.rows.row import MAX_ROW_BYTES
from rollstream.schemas.bounds import MAX_REWARD
from rollstream.schemas.errors import ConfigurationError, EngineDeadError, EngineError, RefusedKeyError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.rollout import FinishReason, Status

_MAX_CONFIG_BYTES: Final = 2**24
_UNTAKEN_TRIES: Final = 10
_LOOK_SECONDS: Final = 0.5
_MAX_MESSAGE: Final = 500
_TOO_MANY: Final = 429

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which servers are asked. `url`: the one server; None: the head server knows those of `kind` by their names.

    `server`: the name of the one server of all rows; "": of each row its agent's. `accepts` is told of the first reply
    of `GET first_route` of the one server. `body_of`: what is sent of a row; None: the row stays as it is.
    """

    head: HeadServer
    url: str | None
    kind: str = AGENTS
    server: str = ""
    route: str = "/run"
    first_route: str = "/"
    accepts: Callable[[Reply], None] = lambda reply: None
    body_of: Callable[[Row], Row | None] = lambda row: row
    call_seconds: float
    start_seconds: float


class GymServerAsker:
    """A `SampleAsker` over these servers."""

    name = "gym"
    version = ""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._addresses: Addresses | None = None
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Find the addresses, waiting for servers that start. Raises `EngineDeadError` if none is there."""
        # A cookie names a session, and each rollout has its own, which the agent's server keeps.
        self._session = open_client()
        target, head = self._target, self._target.head
        if target.url is not None:
            self._addresses = OneAddress(_address(target.url))
        else:
            reply = await self._first_reply(f"http://{head.host}:{head.port}{CONFIG_ROUTE}")
            self._addresses = HeadAddresses(head, target.kind, reply)
        if target.url is not None or target.server:
            target.accepts(await self._first_reply(self._addresses.of(target.server) + target.first_route))

    async def ask(self, task: CollectTask, sample: int, attempts: int) -> AskedSample:
        """One attempt at a rollout."""
        body, began = self._target.body_of(task.fields), time.monotonic()
        values = answered(task.fields) if body is None else await self._asked(task, body)
        seconds = round(time.monotonic() - began, 6)
        return AskedSample(
            EndedSample(row=task.number, sample=sample, attempts=attempts + 1, seconds=seconds, **values)
        )

    async def _asked(self, task: CollectTask, body: Row) -> dict[str, Any]:
        """What is noted of one call."""
        assert self._addresses is not None
        url = self._addresses.of(self._target.server or task.fields[AGENT]["name"]) + self._target.route
        values: dict[str, Any]
        try:
            values = _values(await self._run(url, body), self._target.route)
        except TimeoutError:
            late = f"no answer within {self._target.call_seconds:g} s"
            values = _failed(Status.UNRESOLVED, FailureCode.DEADLINE, late)
        except (aiohttp.ClientError, OSError, EngineError) as error:
            if isinstance(error, EngineDeadError):
                raise
            values = _failed(Status.UNRESOLVED, FailureCode.ENGINE, f"{url}: {type(error).__name__}: {error}")
        # Whatever else aiohttp raises, the bytes of a stranger caused it.
        except (ValueError, ArithmeticError, LookupError, TypeError) as error:
            values = _failed(Status.UNRESOLVED, FailureCode.ENGINE, f"{url}: no readable answer: {error}")
        return values

    async def close(self) -> None:
        """Break off what runs."""
        if self._session is not None:
            await self._session.close()

    async def _run(self, url: str, row: Row) -> Reply:
        body = json.dumps(row, ensure_ascii=False).encode("utf-8", "replace")
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(aiohttp.ClientConnectorError) | retry_if_result(_is_busy),
            stop=stop_after_attempt(_UNTAKEN_TRIES),
            wait=pause,
            retry_error_callback=last,
        )
        async with asyncio.timeout(self._target.call_seconds):
            reply: Reply = await retrying(self._post, url, body)
            return reply

    async def _post(self, url: str, body: bytes) -> Reply:
        reply = await self._reply("POST", url, body, MAX_ROW_BYTES)
        if reply.refuses_key:
            raise RefusedKeyError(f"{url} refuses the request (status {reply.status}): {reply.message[:_MAX_MESSAGE]}")
        return reply

    async def _reply(self, method: str, url: str, body: bytes | None, most_bytes: int) -> Reply:
        if self._session is None or self._session.closed:
            raise EngineDeadError("the agent's server is not asked any more: start() comes first, close() last")
        headers = None if body is None else {"Content-Type": "application/json"}
        # A redirected POST would become a GET.
        async with self._session.request(
            method, URL(url), data=body, headers=headers, allow_redirects=False
        ) as response:
            content = await read_body(response, most_bytes)
            return Reply.read(response.status, content, response.headers.get("Retry-After"), most_bytes)

    async def _first_reply(self, url: str) -> Reply:
        """What `url` answers as soon as anybody listens there."""
        give_up_at, problem = time.monotonic() + self._target.start_seconds, ""
        while time.monotonic() < give_up_at:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    return await self._reply("GET", url, None, _MAX_CONFIG_BYTES)
            except (aiohttp.ClientError, OSError, TimeoutError, EngineError) as error:
                problem = f"{type(error).__name__}: {error}"
            await asyncio.sleep(_LOOK_SECONDS)
        raise EngineDeadError(
            f"nobody answers at {url} within {self._target.start_seconds:g} s ({problem}): start NeMo Gym's ng_run, "
            "or name the agent's server with +agent_url=http://HOST:PORT"
        )


def _is_busy(reply: Reply) -> bool:
    return reply.status == _TOO_MANY


def _address(url: str) -> str:
    """Without a path. Raises `ConfigurationError` for anything but http or https to a host."""
    try:
        found = URL(url)
    except ValueError as error:
        raise ConfigurationError(f"agent_url is no address: {error}") from error
    if found.scheme not in ("http", "https") or not found.host or found.user is not None:
        raise ConfigurationError("agent_url: expected http://HOST:PORT, without user and password")
    return str(found.origin())


def _values(reply: Reply, route: str) -> dict[str, Any]:
    """What is noted of a reply."""
    if not reply.is_ok:
        is_of_server = reply.status >= 500 or reply.status in (408, 425, _TOO_MANY)
        status = Status.UNRESOLVED if is_of_server else Status.FAILED
        code = FailureCode.ENGINE if status is Status.UNRESOLVED else FailureCode.REFUSED
        return _failed(status, code, f"{route} answered {reply.status}: {reply.message}")
    problem = _problem(reply.fields, reply)
    if problem:
        return _failed(Status.UNRESOLVED, FailureCode.ENGINE, f"{route} {problem}")
    return answered(reply.fields)


def answered(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What is noted of an answer with `response.output`; a masked one, and one without a reward, has none."""
    response = answer["response"]
    is_masked = answer.get("mask_sample") is True or answer.get("reward") is None
    return {
        "status": Status.COMPLETED.value,
        "response": answer_text(response),
        "finish_reason": (FinishReason.LENGTH if is_cut_off(response) else FinishReason.STOP).value,
        "num_tokens": output_tokens(response) or 0,
        "reward": None if is_masked else float(answer["reward"]),
        "answer": dict(answer),
    }


def _problem(answer: Mapping[str, Any], reply: Reply) -> str:
    """Why an answer is none; "" if it is one."""
    if answer.get("failure_kind"):
        return f"says failure_kind {str(answer['failure_kind'])[:_MAX_MESSAGE]!r}"
    response, reward = answer.get("response"), answer.get("reward")
    if not isinstance(response, dict) or not isinstance(response.get("output"), list):
        return f"answered without `response.output`: {(reply.text or json.dumps(reply.body))[:_MAX_MESSAGE]}"
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        return f"answered without a `reward` that is a finite number: {str(reward)[:_MAX_MESSAGE]!r}"
    if abs(reward) > MAX_REWARD:
        return f"answered a reward of {reward:g}, beyond ±{MAX_REWARD:g}"
    return token_mismatch(response["output"])


def _failed(status: Status, code: FailureCode, message: str) -> dict[str, Any]:
    said = SECRETS.masked(message)[: 4 * _MAX_MESSAGE]
    return {"status": status.value, "failure": code.value, "message": said}
