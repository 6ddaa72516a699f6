"""The training lane beside clients: which errors it outlives, and which end the process."""

import asyncio

import pytest

from rollstream.generator.serve.outliving import outlived
from rollstream.process.health import Health
from rollstream.process.stop import Stop
from rollstream.schemas.errors import (
    BrokerError,
    EngineDeadError,
    RollstreamError,
    StuckRecordError,
    TopicChangedError,
)
from tests.harness.waits import in_a_loop


@in_a_loop
async def test_after_an_error_of_the_bus_the_lane_begins_anew_and_reports_anew() -> None:
    health, stop, lanes = Health(), Stop(), list[Health]()

    async def lane(own: Health) -> None:
        lanes.append(own)
        own.check("assignment", len(lanes) == 2, "")
        if len(lanes) == 1:
            raise BrokerError("no broker answered")
        stop.ask()

    async with asyncio.timeout(30):
        await outlived(lane, health, stop)
    assert len(lanes) == 2
    assert not lanes[0].is_well
    assert health.of_lanes(Health.readiness).keys() == {"training/assignment"}
    assert lanes[1].is_well


@pytest.mark.parametrize("error", [EngineDeadError, TopicChangedError, StuckRecordError])
def test_what_a_new_lane_would_meet_again_ends_the_process(error: type[RollstreamError]) -> None:
    async def lane(_: Health) -> None:
        raise error("it is over")

    with pytest.raises(error, match="it is over"):
        asyncio.run(outlived(lane, Health(), Stop()))


@in_a_loop
async def test_a_lane_that_waits_to_begin_anew_ends_when_the_process_is_asked_to() -> None:
    stop = Stop()

    async def lane(_: Health) -> None:
        stop.ask()
        raise BrokerError("no broker answered")

    async with asyncio.timeout(30):
        await outlived(lane, Health(), stop)
