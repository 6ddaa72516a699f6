"""Starts of records, counted in a real Redis."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import redis

from rollstream.bus.message import KafkaMessage
from rollstream.schemas.errors import BrokerError, EncodeError, EngineDeadError
from rollstream.stage.starts import GIVEN_UP_AFTER, PoisonGuard
from tests.harness.strange_redis import STRANGE_COUNTS, write_strange

RECORD = KafkaMessage(topic="demo.prompts", partition=0, offset=7, key=b"g", value=b"")


@asynccontextmanager
async def a_guard(redis_url: str, group: str) -> AsyncIterator[PoisonGuard]:
    guard = PoisonGuard(redis_url, group)
    try:
        yield guard
    finally:
        await guard.close()


def starts(redis_url: str, group: str) -> tuple[int | None, int]:
    """The count and the seconds until it expires; None and -2 when there is none."""
    key = f"{{{group}}}:starts:demo.prompts:0:7"
    with redis.Redis.from_url(redis_url) as client:
        count = client.get(key)
        return None if count is None else int(count), client.ttl(key)


def test_each_start_without_an_end_counts_until_the_record_is_given_up(redis_url: str, topic_prefix: str) -> None:
    async def died() -> tuple[int, str]:
        async with a_guard(redis_url, topic_prefix) as guard:
            start = await guard.start(RECORD).__aenter__()  # never left, as by a process that dies
            return start.number, "hopeless" if start.is_hopeless else "given up" if start.is_given_up else ""

    attempts = [asyncio.run(died()) for _ in range(GIVEN_UP_AFTER + 2)]
    assert attempts == [(1, ""), (2, ""), (3, ""), (4, ""), (5, ""), (6, "given up"), (7, "hopeless")]
    assert starts(redis_url, topic_prefix)[1] > 3600


def test_an_owner_that_gives_a_record_back_leaves_the_start_of_the_next_owner(
    redis_url: str, topic_prefix: str
) -> None:
    async def moved() -> int | None:
        async with a_guard(redis_url, topic_prefix) as old, a_guard(redis_url, topic_prefix) as new:
            revoked, taken_over = old.start(RECORD), new.start(RECORD)
            await asyncio.gather(revoked.__aenter__(), taken_over.__aenter__())
            error = asyncio.CancelledError()
            await revoked.__aexit__(type(error), error, None)
            return starts(redis_url, topic_prefix)[0]  # the new owner dies here

    assert asyncio.run(moved()) == 1


def test_giving_back_what_was_done_elsewhere_leaves_no_count_behind(redis_url: str, topic_prefix: str) -> None:
    async def moved() -> None:
        async with a_guard(redis_url, topic_prefix) as old, a_guard(redis_url, topic_prefix) as new:
            revoked = old.start(RECORD)
            await revoked.__aenter__()
            async with new.start(RECORD):
                pass
            error = asyncio.CancelledError()
            await revoked.__aexit__(type(error), error, None)

    asyncio.run(moved())
    assert starts(redis_url, topic_prefix) == (None, -2)


async def ended_by(error: BaseException, redis_url: str, group: str, *, is_blamed: bool = False) -> None:
    async with a_guard(redis_url, group) as guard:
        with contextlib.suppress(type(error)):
            async with guard.start(RECORD):
                if is_blamed:
                    guard.blame(RECORD)
                raise error


@pytest.mark.parametrize(
    "error",
    [RuntimeError("a bug"), EncodeError("too large"), EngineDeadError("gone"), SystemExit(1)],
    ids=lambda error: type(error).__name__,
)
def test_a_record_whose_own_handling_ends_the_process_keeps_its_start(
    error: BaseException, redis_url: str, topic_prefix: str
) -> None:
    asyncio.run(ended_by(error, redis_url, topic_prefix))
    assert starts(redis_url, topic_prefix)[0] == 1


@pytest.mark.parametrize(
    "error", [BrokerError("gone"), asyncio.CancelledError()], ids=lambda error: type(error).__name__
)
def test_what_ends_the_process_from_outside_takes_the_start_back(
    error: BaseException, redis_url: str, topic_prefix: str
) -> None:
    asyncio.run(ended_by(error, redis_url, topic_prefix))
    assert starts(redis_url, topic_prefix)[0] == 0


def test_a_record_that_is_blamed_keeps_its_start_though_it_is_cancelled(redis_url: str, topic_prefix: str) -> None:
    asyncio.run(ended_by(asyncio.CancelledError(), redis_url, topic_prefix, is_blamed=True))
    assert starts(redis_url, topic_prefix)[0] == 1


def test_what_is_no_count_of_ours_counts_as_none_and_the_next_starts_are_counted(
    redis_url: str, topic_prefix: str
) -> None:
    async def died(group: str) -> int:
        async with a_guard(redis_url, group) as guard:
            return (await guard.start(RECORD).__aenter__()).number

    for number, value in enumerate(STRANGE_COUNTS):
        group = f"{topic_prefix}-{number}"
        with redis.Redis.from_url(redis_url) as client:
            write_strange(client, f"{{{group}}}:starts:demo.prompts:0:7", value)
        assert [asyncio.run(died(group)) for _ in range(2)] == [1, 2], value
