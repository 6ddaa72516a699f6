"""The places that training has in the engine: those reserved for clients are lent while nobody calls."""

import asyncio

from rollstream.engines.vllm.places import NO_RESERVE, Reserve, TrainingPlaces
from tests.harness.waits import in_a_loop


async def taken_at_once(places: TrainingPlaces) -> int:
    """Takes places until one more would have to be waited for."""
    number = 0
    while not places.is_full:
        await places.take()
        number += 1
    return number


@in_a_loop
async def test_without_a_reserve_some_more_than_the_engine_runs_are_let_in() -> None:
    places = TrainingPlaces(64, NO_RESERVE)
    assert await taken_at_once(places) == 72
    assert not await places.call_begins()
    places.call_ends()
    places.give()
    assert await taken_at_once(places) == 1


@in_a_loop
async def test_the_reserve_is_trainings_until_a_client_calls() -> None:
    places = TrainingPlaces(64, Reserve(num_places=8))
    assert not await places.call_begins(), "nothing of training is in the call's way"
    assert await taken_at_once(places) == 56
    assert not await places.call_begins(), "only the first call finds places that were lent"


@in_a_loop
async def test_a_call_takes_lent_places_back_as_their_requests_end() -> None:
    places = TrainingPlaces(64, Reserve(num_places=8))
    assert await taken_at_once(places) == 72
    assert await places.call_begins(), "requests of training wait in the engine, or run in its reserve"
    for _ in range(16):
        places.give()
    assert places.is_full, "16 ended, and 56 are left"
    places.give()
    assert await taken_at_once(places) == 1


@in_a_loop
async def test_places_are_lent_again_so_long_after_the_last_call() -> None:
    places = TrainingPlaces(64, Reserve(num_places=8, lend_after_seconds=0.0))
    assert await taken_at_once(places) == 72
    await places.call_begins()
    await places.call_begins()
    for _ in range(6):
        places.give()
    places.call_ends()
    await asyncio.sleep(0)
    assert places.is_full, "another call still runs"
    places.call_ends()
    waiting = asyncio.create_task(places.take())
    await waiting
    assert await taken_at_once(places) == 5, "6 had ended, and their places were kept back until now"


@in_a_loop
async def test_a_call_within_the_time_puts_lending_off() -> None:
    places = TrainingPlaces(64, Reserve(num_places=8, lend_after_seconds=3600.0))
    await places.call_begins()
    places.call_ends()
    assert not await places.call_begins()
    assert await taken_at_once(places) == 56
