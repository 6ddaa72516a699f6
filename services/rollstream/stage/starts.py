"""Finds poison records, which kill each process that handles them, by counting starts in Redis.

The count must outlive the process, so it is in Redis. A start is counted before a record is handled and deleted after
its end. If what ends the process lies outside of the record (stop, revoked partitions, a broken world), the start is
taken back; if its own handling does (a bug, a dead engine, a handler that hangs), it stays counted. A record with 3
starts and no end runs alone, so that no other record is counted when the process dies again. After 5 starts it is given
up. Without Redis nothing is counted and everything goes on, but a poison record is started for ever. A value that is no
count of ours counts as none.

`StartCounter` counts a batch of records with one command. `PoisonGuard` counts records one by one as they arrive, and
lets each wait until it may run.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from rollstream.bus.message import KafkaMessage
from rollstream.schemas.errors import BadMessageError, EngineDeadError, RollstreamError
from rollstream.stage.maybe_redis import MaybeRedis

ALONE_AFTER: Final = 3
GIVEN_UP_AFTER: Final = 5
# Keys of records that nobody handles any more, e.g. of a deleted run, must not stay for ever.
_EXPIRE_SECONDS: Final = 24 * 3600
_MOST_STARTS: Final = 1000
"""A larger count is none of ours: nothing starts a record so often within a day. Anyone may write into Redis."""
# One command for all keys: a pipeline with one command for each key takes four times as long. While a partition moves,
# a record may have two owners: each counts its own start and takes only that one back. What is no count begins anew.
_START: Final = (
    "local counts = {} for index, key in ipairs(KEYS) do local count = redis.pcall('INCR', key) "
    "if type(count) ~= 'number' or count < 1 or count > tonumber(ARGV[2]) then redis.call('SET', key, 1) count = 1 end "
    "counts[index] = count redis.call('EXPIRE', key, ARGV[1]) end return counts"
)
_TAKE_BACK: Final = (
    "for _, key in ipairs(KEYS) do if redis.call('EXISTS', key) == 1 then redis.pcall('DECR', key) end end"
)


def _is_from_outside(error: BaseException) -> bool:
    """Whether the cause lies outside of the block's records. False for a bug or a dead engine, which one may cause."""
    if isinstance(error, BadMessageError | EngineDeadError):
        return False
    return isinstance(error, RollstreamError | asyncio.CancelledError)


class StartCounter:
    """Counts the starts of records by one consumer group. With `redis_url` None nothing is counted."""

    def __init__(self, redis_url: str | None, group_id: str) -> None:
        self._prefix = f"{{{group_id}}}:starts"  # the braces keep a group's keys on one node of a Redis cluster
        self._redis = MaybeRedis(redis_url, without="starts are not counted")

    @property
    def redis_state(self) -> str:
        """How Redis was when it was last asked, for people."""
        return self._redis.state

    async def previous(self, messages: Sequence[KafkaMessage]) -> list[int]:
        """How often each record was started without an end; 0 while Redis is gone."""
        found = await self._redis.ask("MGET", *self._keys(messages))
        return [_count(count) for count in found] if found else [0] * len(messages)

    @asynccontextmanager
    async def counted(
        self, messages: Sequence[KafkaMessage], *, is_outside: Callable[[BaseException], bool] = _is_from_outside
    ) -> AsyncIterator[list[int]]:
        """Count a start of each record while the block runs. Gives the number of each, from 1; 0 while Redis is gone.

        After an exception for which `is_outside` holds, the starts are taken back. After any other they stay counted.
        """
        keys = self._keys(messages)
        numbers = await self._redis.ask("EVAL", _START, len(keys), *keys, _EXPIRE_SECONDS, _MOST_STARTS)
        try:
            yield numbers or [0] * len(messages)
        except BaseException as error:
            if is_outside(error):
                await self._redis.ask("EVAL", _TAKE_BACK, len(keys), *keys)
            raise
        await self._redis.ask("DEL", *keys)

    async def close(self) -> None:
        await self._redis.close()

    def _keys(self, messages: Sequence[KafkaMessage]) -> list[str]:
        return [f"{self._prefix}:{message.topic}:{message.partition}:{message.offset}" for message in messages]


def _count(value: bytes | None) -> int:
    """A count of ours; 0 for anything else that lies there."""
    is_number = value is not None and value.isdigit() and len(value) <= len(str(_MOST_STARTS))
    number = int(value) if value is not None and is_number else 0
    return number if number <= _MOST_STARTS else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of a record: `number` counts from 1."""

    number: int

    @property
    def is_given_up(self) -> bool:
        """Whether the record ended the process too often to be handled again."""
        return self.number > GIVEN_UP_AFTER

    @property
    def is_hopeless(self) -> bool:
        """Whether the process ended once more when the record was given up."""
        return self.number > GIVEN_UP_AFTER + 1


class PoisonGuard:
    """Counts each record's start; a record that was started too often runs alone. `redis_url` as in `StartCounter`."""

    def __init__(self, redis_url: str | None, group_id: str) -> None:
        self._counter = StartCounter(redis_url, group_id)
        self._gate = _Gate()
        self._blamed: set[KafkaMessage] = set()

    @property
    def redis_state(self) -> str:
        """How Redis was when it was last asked, for people."""
        return self._counter.redis_state

    @asynccontextmanager
    async def start(self, message: KafkaMessage) -> AsyncIterator[Start]:
        """Wait until `message` may run, then count a start of it while the block runs."""
        (previous,) = await self._counter.previous([message])
        async with (
            self._gate.passing(alone=previous >= ALONE_AFTER),
            self._counter.counted([message], is_outside=partial(self._is_outside, message)) as (counted,),
        ):
            yield Start(number=counted or previous + 1)

    def blame(self, message: KafkaMessage) -> None:
        """Note that the handling of `message` ends the process: its start stays counted, though it is cancelled."""
        self._blamed.add(message)

    async def close(self) -> None:
        await self._counter.close()

    def _is_outside(self, message: KafkaMessage, error: BaseException) -> bool:
        return message not in self._blamed and _is_from_outside(error)


class _Gate:
    """Lets many tasks in together, or one alone. A task that waits to be alone goes before those that come later."""

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
