"""Records that kill the process: their starts are counted in Redis, which outlives it.

A record that was started 3 times without an end runs alone, so that the next crash accuses no other record; after 5
starts it is given up. An orderly end (shutdown, revoke, a broken world) takes its start back. Without Redis nothing
is counted and everything goes on, but a record that kills is started for ever.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from rollstream.bus.message import Message

_LOG = logging.getLogger(__name__)

ALONE_AFTER: Final = 3
GIVEN_UP_AFTER: Final = 5
ANSWERS: Final = "it answers"
GONE: Final = "it is gone: starts are not counted until it is back"
_EXPIRE_SECONDS: Final = 24 * 3600
_TIMEOUT_SECONDS: Final = 1.0
_MAX_CONNECTIONS: Final = 8
_WAIT_SECONDS: Final = 30.0
_REST_SECONDS: Final = 5.0
# A record may have two owners while its partition moves: each counts its own start, and takes back no more than that.
_START: Final = "local n = redis.call('INCR', KEYS[1]) redis.call('EXPIRE', KEYS[1], ARGV[1]) return n"
_TAKE_BACK: Final = "if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('DECR', KEYS[1]) end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of a record: `number` counts from 1."""

    number: int
    is_given_up: bool


class PoisonGuard:
    """Counts the starts of one group's records. `redis_url` None: no protection."""

    def __init__(self, redis_url: str | None, group_id: str) -> None:
        self._group_id = group_id
        self._gate = _Gate()
        self._resting_until = 0.0
        self.redis_state = ""
        """How Redis was when it was last asked, for people."""
        self._redis = _connection(redis_url) if redis_url else None

    @asynccontextmanager
    async def start(self, message: Message) -> AsyncIterator[Start]:
        """Count a start of `message` for as long as the block runs; waits until it may run."""
        key = f"{self._group_id}:starts:{message.topic}:{message.partition}:{message.offset}"
        previous = await self._ask("GET", key)
        async with self._gate.passing(alone=previous >= ALONE_AFTER):
            number = await self._ask("EVAL", _START, 1, key, _EXPIRE_SECONDS) or previous + 1
            try:
                yield Start(number=number, is_given_up=number > GIVEN_UP_AFTER)
            except (Exception, asyncio.CancelledError):
                await self._ask("EVAL", _TAKE_BACK, 1, key)
                raise
            await self._ask("DEL", key)

    async def close(self) -> None:
        """Close the connection."""
        if self._redis is not None:
            await self._redis.aclose()

    async def _ask(self, command: str, *arguments: str | int) -> int:
        """Redis' answer as a number; 0 while Redis is gone, which is then left alone for a few seconds."""
        now = asyncio.get_running_loop().time()
        if self._redis is None or now < self._resting_until:
            return 0
        try:
            answer = await self._redis.execute_command(command, *arguments)  # type: ignore[no-untyped-call]
            self.redis_state = ANSWERS
            return int(answer or 0)
        except redis.RedisError as error:
            self.redis_state = GONE
            if now >= self._resting_until:
                _LOG.warning("Redis is gone, starts are not counted until it is back: %s", error)
            self._resting_until = asyncio.get_running_loop().time() + _REST_SECONDS
            return 0


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
