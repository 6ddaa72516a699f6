"""Starts of records, counted in Redis, which outlives a process that a record kills (a poison record).

A start is counted before a record is handled and deleted after its end. An orderly end (shutdown, revoke, a broken
world) takes its start back. A record that was started 3 times without an end runs alone, so that no other record runs
when the process dies again; after 5 starts it is given up. Without Redis nothing is counted and everything goes on, but
a record that kills is started for ever.

`StartCounter` counts a batch with one command; `PoisonGuard` counts records one by one as they arrive, and lets each
wait until it may run.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from rollstream.bus.message import Message
from rollstream.schemas.errors import BadMessageError, RollstreamError

_LOG = logging.getLogger(__name__)

ALONE_AFTER: Final = 3
GIVEN_UP_AFTER: Final = 5
_ANSWERS: Final = "it answers"
_GONE: Final = "it is gone: starts are not counted until it is back"
_EXPIRE_SECONDS: Final = 24 * 3600
_TIMEOUT_SECONDS: Final = 1.0
_MAX_CONNECTIONS: Final = 8
_WAIT_SECONDS: Final = 30.0
_REST_SECONDS: Final = 5.0
# One command for all keys, not a pipeline of one a key, which costs four times the time. A record may have two owners
# while its partition moves: each counts its own start, and takes back no more than that.
_START: Final = (
    "local counts = {} for index, key in ipairs(KEYS) do "
    "counts[index] = redis.call('INCR', key) redis.call('EXPIRE', key, ARGV[1]) end return counts"
)
_TAKE_BACK: Final = (
    "for _, key in ipairs(KEYS) do if redis.call('EXISTS', key) == 1 then redis.call('DECR', key) end end"
)


def _is_broken_world(error: BaseException) -> bool:
    """Whether a batch ends by no fault of its records; a bug or a record that nobody can handle may be their fault."""
    return isinstance(error, RollstreamError) and not isinstance(error, BadMessageError)


def _is_any_exception(error: BaseException) -> bool:
    # What a record's own handler raises ends inside the block: whatever comes out of it is an orderly end.
    return isinstance(error, Exception | asyncio.CancelledError)


class StartCounter:
    """Counts the starts of one group's records. `redis_url` None: nothing is counted."""

    def __init__(self, redis_url: str | None, group_id: str) -> None:
        self._prefix = f"{{{group_id}}}:starts"  # the braces keep a group's keys on one node of a Redis cluster
        self._resting_until = 0.0
        self.redis_state = ""
        """How Redis was when it was last asked, for people."""
        self._redis = _connection(redis_url) if redis_url else None

    async def previous(self, messages: Sequence[Message]) -> list[int]:
        """How often each was started without an end; 0 while Redis is gone."""
        found = await self._ask("MGET", *self._keys(messages))
        return [int(count or 0) for count in found] if found else [0] * len(messages)

    @asynccontextmanager
    async def counted(
        self, messages: Sequence[Message], *, is_orderly: Callable[[BaseException], bool] = _is_broken_world
    ) -> AsyncIterator[list[int]]:
        """Count a start of each while the block runs; gives each one's number, from 1, 0 while Redis is gone.

        An exception that `is_orderly` takes the starts back; with any other one they stay counted.
        """
        keys = self._keys(messages)
        numbers = await self._ask("EVAL", _START, len(keys), *keys, _EXPIRE_SECONDS)
        try:
            yield numbers or [0] * len(messages)
        except BaseException as error:
            if is_orderly(error):
                await self._ask("EVAL", _TAKE_BACK, len(keys), *keys)
            raise
        await self._ask("DEL", *keys)

    async def close(self) -> None:
        """Close the connection."""
        if self._redis is not None:
            await self._redis.aclose()

    def _keys(self, messages: Sequence[Message]) -> list[str]:
        return [f"{self._prefix}:{message.topic}:{message.partition}:{message.offset}" for message in messages]

    async def _ask(self, command: str, *arguments: str | int) -> Any:
        """Redis' answer; None while it is gone, when it is left alone for a few seconds."""
        began = time.monotonic()
        if self._redis is None or began < self._resting_until:
            return None
        try:
            answer = await self._redis.execute_command(command, *arguments)  # type: ignore[no-untyped-call]
        except redis.RedisError as error:
            self.redis_state = _GONE
            if began >= self._resting_until:  # of those that asked at the same time, one says it
                _LOG.warning("Redis is gone, starts are not counted until it is back: %s", error)
            self._resting_until = time.monotonic() + _REST_SECONDS
            return None
        self.redis_state = _ANSWERS
        return answer


def _connection(redis_url: str) -> redis.asyncio.Redis:
    # Hundreds of records start side by side: they wait for a connection rather than open one each.
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        redis_url,
        max_connections=_MAX_CONNECTIONS,
        timeout=_WAIT_SECONDS,
        socket_timeout=_TIMEOUT_SECONDS,
        socket_connect_timeout=_TIMEOUT_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
    return redis.asyncio.Redis.from_pool(pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of a record: `number` counts from 1."""

    number: int
    is_given_up: bool


class PoisonGuard:
    """Counts each record's start as it arrives; who was started too often runs alone. `redis_url` as in the counter."""

    def __init__(self, redis_url: str | None, group_id: str) -> None:
        self._counter = StartCounter(redis_url, group_id)
        self._gate = _Gate()

    @property
    def redis_state(self) -> str:
        """How Redis was when it was last asked, for people."""
        return self._counter.redis_state

    @asynccontextmanager
    async def start(self, message: Message) -> AsyncIterator[Start]:
        """Count a start of `message` for as long as the block runs; waits until it may run."""
        (previous,) = await self._counter.previous([message])
        async with (
            self._gate.passing(alone=previous >= ALONE_AFTER),
            self._counter.counted([message], is_orderly=_is_any_exception) as (counted,),
        ):
            number = counted or previous + 1
            yield Start(number=number, is_given_up=number > GIVEN_UP_AFTER)

    async def close(self) -> None:
        """Close the connection."""
        await self._counter.close()


class _Gate:
    """Many pass side by side, or one alone; who waits to be alone goes before newcomers."""

    def __init__(self) -> None:
        self._change = asyncio.Condition()
        self._num_passing = 0
        self._num_waiting_alone = 0
        self._is_one_alone = False

    @asynccontextmanager
    async def passing(self, *, alone: bool) -> AsyncIterator[None]:
        await (self._enter_alone() if alone else self._enter())
        try:
            yield
        finally:
            async with self._change:
                self._num_passing -= 1
                self._is_one_alone = False
                self._change.notify_all()

    async def _enter(self) -> None:
        async with self._change:
            await self._change.wait_for(lambda: not self._is_one_alone and not self._num_waiting_alone)
            self._num_passing += 1

    async def _enter_alone(self) -> None:
        async with self._change:
            self._num_waiting_alone += 1
            try:
                await self._change.wait_for(lambda: not self._num_passing)
            finally:
                self._num_waiting_alone -= 1
                self._change.notify_all()
            self._num_passing += 1
            self._is_one_alone = True
