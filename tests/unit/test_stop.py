"""The parts of a process end together, and the error of the one that ended first is what the process ends with."""

import asyncio

import pytest

from rollstream.process.stop import Stop, first_to_end
from rollstream.schemas.errors import BrokerError


def test_the_error_of_the_first_part_to_end_is_raised_once_the_others_have_ended() -> None:
    ended = []

    async def broken() -> None:
        raise BrokerError("the broker is gone") from OSError("no route")

    async def going_on() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            ended.append("going on")

    with pytest.raises(BrokerError, match="gone") as caught:
        asyncio.run(first_to_end(going_on(), broken()))
    assert isinstance(caught.value.__cause__, OSError)
    assert ended == ["going on"]


def test_a_wish_to_end_ends_the_wait_and_leaves_a_shielded_future_as_it_is() -> None:
    async def run() -> bool:
        stop, outcome = Stop(), asyncio.get_running_loop().create_future()
        stop.ask()
        await first_to_end(stop.asked(), asyncio.shield(outcome))
        return outcome.done()

    assert not asyncio.run(run())
