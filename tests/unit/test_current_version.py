"""Evaluation samples run on the version that they name; a newer one is not loaded before they end, within a bound."""

import asyncio

import pytest

from rollstream.generator.current_version import CurrentVersion
from rollstream.schemas.errors import FailedSampleError
from rollstream.schemas.failure import FailureCode
from tests.harness.waits import in_a_loop

DEADLINE_SECONDS = 30.0


async def load(current: CurrentVersion, version: int, hold_seconds: float = DEADLINE_SECONDS) -> None:
    async with current.changing(version, hold_seconds):
        pass


async def enter(current: CurrentVersion, version: int) -> None:
    await current.arrival(version)
    async with current.on_version(version):
        pass


@in_a_loop
async def test_an_evaluation_waits_for_the_version_it_names() -> None:
    current = CurrentVersion()
    entered = asyncio.Event()

    async def evaluation() -> None:
        await current.arrival(1)
        async with current.on_version(1):
            entered.set()

    task = asyncio.create_task(evaluation())
    await load(current, 0)
    assert not entered.is_set()
    await load(current, 1)
    await asyncio.wait_for(task, DEADLINE_SECONDS)
    assert entered.is_set()


@in_a_loop
async def test_a_version_that_nobody_published_is_not_waited_for() -> None:
    current = CurrentVersion(news_seconds=0.01)
    await load(current, 5)
    await current.published(5)
    with pytest.raises(FailedSampleError, match=r"version 7 .* is not published; the newest is 5") as gone:
        await asyncio.wait_for(enter(current, 7), DEADLINE_SECONDS)
    assert gone.value.code == FailureCode.VERSION_GONE


@in_a_loop
async def test_a_published_version_is_waited_for_while_it_is_loaded_but_not_longer_than_its_bound() -> None:
    current = CurrentVersion(news_seconds=0.01, load_seconds=DEADLINE_SECONDS)
    await load(current, 5)
    await current.published(6)
    waiting = asyncio.create_task(enter(current, 6))
    await asyncio.sleep(0.05)
    await load(current, 6)
    await asyncio.wait_for(waiting, DEADLINE_SECONDS)
    impatient = CurrentVersion(load_seconds=0.01)
    await load(impatient, 5)
    await impatient.published(6)
    with pytest.raises(FailedSampleError, match="version 6 was asked for, 5 is loaded"):
        await asyncio.wait_for(enter(impatient, 6), DEADLINE_SECONDS)


@in_a_loop
async def test_a_version_that_has_passed_is_gone() -> None:
    current = CurrentVersion()
    await load(current, 2)
    with pytest.raises(FailedSampleError, match="version 1 was asked for, 2 is loaded") as gone:
        await asyncio.wait_for(enter(current, 1), DEADLINE_SECONDS)
    assert gone.value.code == FailureCode.VERSION_GONE


@in_a_loop
async def test_a_newer_version_waits_for_running_evaluations() -> None:
    current = CurrentVersion()
    await load(current, 0)
    async with current.on_version(0):
        loading = asyncio.create_task(load(current, 1))
        await asyncio.sleep(0)
        assert current.version == 0
    await asyncio.wait_for(loading, DEADLINE_SECONDS)
    assert current.version == 1


@in_a_loop
async def test_a_newer_version_waits_no_longer_than_its_bound() -> None:
    current = CurrentVersion()
    await load(current, 0)
    with pytest.raises(FailedSampleError, match="version 0 was asked for, 1 is loaded, and did not wait") as gone:
        async with current.on_version(0):
            await asyncio.wait_for(load(current, 1, hold_seconds=0.01), DEADLINE_SECONDS)
    assert current.version == 1
    # Whatever its engine says: not every one can tell which version sampled which tokens.
    assert gone.value.code == FailureCode.VERSION_GONE


@in_a_loop
async def test_a_load_that_fails_leaves_the_old_version() -> None:
    current = CurrentVersion()
    await load(current, 0)
    with pytest.raises(OSError, match="disk"):
        async with current.changing(1, DEADLINE_SECONDS):
            raise OSError("disk")
    assert current.version == 0
    async with current.on_version(0):
        pass
