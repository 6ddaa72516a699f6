"""The poison guard of batches: starts are counted in Redis as in `stage.starts`, but for a whole batch at once.

A round trip per record would cost more than scoring it. A batch that kills the process accuses all its records; after
3 starts each of them runs alone, which acquits the innocent, and after 5 the culprit is given up.
"""

import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from rollstream.bus.message import Message
from rollstream.schemas.errors import BadMessageError, RollstreamError
from rollstream.stage.starts import ANSWERS, GONE

_LOG = logging.getLogger(__name__)

_EXPIRE_SECONDS: Final = 24 * 3600
_TIMEOUT_SECONDS: Final = 1.0
_REST_SECONDS: Final = 5.0
_START: Final = "for _, key in ipairs(KEYS) do redis.call('INCR', key) redis.call('EXPIRE', key, ARGV[1]) end"
_TAKE_BACK: Final = (
    "for _, key in ipairs(KEYS) do if redis.call('EXISTS', key) == 1 then redis.call('DECR', key) end end"
)


class BatchStarts:
    """Counts the starts of one group's records. `redis_url` None: no protection."""

    def __init__(self, redis_url: str | None, group_id: str) -> None:
        self._prefix = f"{{{group_id}}}:starts"  # the braces keep a group's keys on one node of a Redis cluster
        self._resting_until = 0.0
        self.redis_state = ""
        """How Redis was when it was last asked, for people."""
        self._redis = (
            redis.asyncio.Redis.from_url(
                redis_url,
                socket_timeout=_TIMEOUT_SECONDS,
                socket_connect_timeout=_TIMEOUT_SECONDS,
                retry=Retry(NoBackoff(), 0),
            )
            if redis_url
            else None
        )

    async def previous(self, messages: Sequence[Message]) -> list[int]:
        """How often each was started without an end; 0 while Redis is gone."""
        found = await self._ask("MGET", *self._keys(messages))
        return [int(count or 0) for count in found] if found else [0] * len(messages)

    @asynccontextmanager
    async def counted(self, messages: Sequence[Message]) -> AsyncIterator[None]:
        """Count a start of each for as long as the block runs; a broken world accuses none of them."""
        keys = self._keys(messages)
        await self._ask("EVAL", _START, len(keys), *keys, _EXPIRE_SECONDS)
        try:
            yield
        except BadMessageError:
            raise  # one of them is at fault: their starts stay counted
        except RollstreamError:
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
        if self._redis is None or time.monotonic() < self._resting_until:
            return None
        try:
            answer = await self._redis.execute_command(command, *arguments)  # type: ignore[no-untyped-call]
        except redis.RedisError as error:
            self.redis_state = GONE
            self._resting_until = time.monotonic() + _REST_SECONDS
            _LOG.warning("Redis is gone, starts are not counted until it is back: %s", error)
            return None
        self.redis_state = ANSWERS
        return answer
