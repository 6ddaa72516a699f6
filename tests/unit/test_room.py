"""A record that rests holds no room, and gets its own back before records that were not taken yet."""

import asyncio
import threading

from rollstream.bus.group_config import ConsumerSettings
from rollstream.bus.in_flight import InFlight, Room
from rollstream.bus.message import KafkaMessage
from rollstream.bus.offsets import Assignment
from tests.harness.waits import DEADLINE_SECONDS, in_a_loop

PARTITION = ("eval-prompts", 0)


@in_a_loop
async def test_a_record_that_rests_holds_no_room_and_gets_it_back_before_others() -> None:
    assignment, room = empty_room()
    rested, arrival = taken(assignment, room, 0), asyncio.Event()
    assert not room.for_another()
    resting = asyncio.create_task(rested.rest(arrival.wait()))
    await asyncio.sleep(0)
    assert (assignment.weight, room.for_another()) == (0, True)
    other = taken(assignment, room, 1)
    arrival.set()
    await asyncio.sleep(0.01)
    assert not resting.done(), "another one has the room"
    other.tracker.finish(1)
    assert not room.for_another(), "the one that rested comes first"
    room.resume_rested()
    await asyncio.wait_for(resting, DEADLINE_SECONDS)
    assert assignment.weight == 8


@in_a_loop
async def test_a_record_that_rests_on_a_partition_that_was_lost_holds_nothing_afterwards() -> None:
    assignment, room = empty_room()
    rested, arrival = taken(assignment, room, 0), asyncio.Event()
    resting = asyncio.create_task(rested.rest(arrival.wait()))
    await asyncio.sleep(0)
    assignment.remove([PARTITION])
    arrival.set()
    await asyncio.wait_for(resting, DEADLINE_SECONDS)
    assert (assignment.weight, assignment.num_unfinished) == (0, 0)


@in_a_loop
async def test_one_whose_wait_was_in_vain_needs_no_room() -> None:
    async def nothing() -> bool:
        return False

    assignment, room = empty_room()
    rested = taken(assignment, room, 0)
    taken(assignment, room, 1)
    await asyncio.wait_for(rested.rest(nothing()), DEADLINE_SECONDS)
    assert assignment.weight == 8


@in_a_loop
async def test_one_that_is_cancelled_while_it_wants_its_room_back_keeps_nobody_away() -> None:
    assignment, room = empty_room()
    room.take = lambda: None
    rested, arrival = taken(assignment, room, 0), asyncio.Event()
    arrival.set()
    resting = asyncio.create_task(rested.rest(arrival.wait()))
    await asyncio.sleep(0.01)
    resting.cancel()
    await asyncio.wait([resting])
    room.resume_rested()
    assert (assignment.weight, room.for_another()) == (0, True)


def empty_room() -> tuple[Assignment, Room]:
    assignment = Assignment()
    assignment.add([PARTITION])
    room = Room(assignment, threading.Lock(), ConsumerSettings(max_weight=8), lambda: None)
    room.take = room.resume_rested
    return assignment, room


def taken(assignment: Assignment, room: Room, offset: int) -> InFlight:
    tracker = assignment.start(PARTITION, offset, weight=8)
    assert tracker is not None
    return InFlight(KafkaMessage(*PARTITION, offset, None, b""), tracker, room)
