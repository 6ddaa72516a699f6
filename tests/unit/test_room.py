"""A record that rests holds no room, and gets its own back before records that were not taken yet."""

import asyncio
import threading

from rollstream.bus.group_config import ConsumerSettings
from rollstream.bus.message import KafkaMessage
from rollstream.bus.offsets import Assignment
from rollstream.bus.room import Room
from tests.harness.waits import DEADLINE_SECONDS, in_a_loop

PARTITION = ("eval-prompts", 0)


class Taken:
    """A record as `Room` knows it."""

    def __init__(self, assignment: Assignment, offset: int, weight: int) -> None:
        self.partition = PARTITION
        self.message = KafkaMessage(*PARTITION, offset, None, b"", (), 0)
        epoch = assignment.start(PARTITION, offset, weight=weight)
        assert epoch is not None
        self.epoch = epoch


@in_a_loop
async def test_a_record_that_rests_holds_no_room_and_gets_it_back_before_others() -> None:
    assignment = Assignment()
    assignment.add([PARTITION])
    room = Room(assignment, threading.Lock(), ConsumerSettings(max_weight=8))
    rested, arrival = Taken(assignment, 0, 8), asyncio.Event()
    assert not room.for_another()
    resting = asyncio.create_task(room.rest(rested, arrival.wait(), room.resume_rested))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert (assignment.weight, room.for_another()) == (0, True)
    Taken(assignment, 1, 8)
    arrival.set()
    await asyncio.sleep(0.01)
    assert not resting.done(), "another one has the room"
    assignment.finish(PARTITION, 1, rested.epoch)
    assert not room.for_another(), "the one that rested comes first"
    room.resume_rested()
    await asyncio.wait_for(resting, DEADLINE_SECONDS)
    assert assignment.weight == 8


@in_a_loop
async def test_a_record_that_rests_on_a_partition_that_was_lost_holds_nothing_afterwards() -> None:
    assignment = Assignment()
    assignment.add([PARTITION])
    room = Room(assignment, threading.Lock(), ConsumerSettings(max_weight=8))
    rested, arrival = Taken(assignment, 0, 8), asyncio.Event()
    resting = asyncio.create_task(room.rest(rested, arrival.wait(), room.resume_rested))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assignment.remove([PARTITION])
    arrival.set()
    await asyncio.wait_for(resting, DEADLINE_SECONDS)
    assert (assignment.weight, assignment.num_unfinished) == (0, 0)


@in_a_loop
async def test_one_whose_wait_was_in_vain_needs_no_room() -> None:
    async def nothing() -> bool:
        return False

    assignment = Assignment()
    assignment.add([PARTITION])
    room = Room(assignment, threading.Lock(), ConsumerSettings(max_weight=8))
    rested = Taken(assignment, 0, 8)
    Taken(assignment, 1, 8)
    await asyncio.wait_for(room.rest(rested, nothing(), room.resume_rested), DEADLINE_SECONDS)  # type: ignore[arg-type]
    assert assignment.weight == 8


@in_a_loop
async def test_one_that_is_cancelled_while_it_wants_its_room_back_keeps_nobody_away() -> None:
    assignment = Assignment()
    assignment.add([PARTITION])
    room = Room(assignment, threading.Lock(), ConsumerSettings(max_weight=8))
    rested, arrival = Taken(assignment, 0, 8), asyncio.Event()
    arrival.set()
    resting = asyncio.create_task(room.rest(rested, arrival.wait(), lambda: None))  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    resting.cancel()
    await asyncio.wait([resting])
    room.resume_rested()
    assert (assignment.weight, room.for_another()) == (0, True)
