"""Evaluation samples run on the version that they name; a newer one is not loaded before they end, within a bound."""

import asyncio

import pytest

from rollstream.generator.current_version import CurrentVersion
from rollstream.schemas.errors import FailedSampleError
from rollstream.schemas.failure import FailureCode

DEADLINE_SECONDS = 5.0


async def load(current: CurrentVersion, version: int, hold_seconds: float = DEADLINE_SECONDS) -> None:
    async with current.changing(version, hold_seconds):
        pass


def test_an_evaluation_waits_for_the_version_it_names() -> None:
    async def scenario() -> None:
        current = CurrentVersion()
        entered = asyncio.Event()

        async def evaluation() -> None:
            async with current.on_version(1):
                entered.set()

        task = asyncio.create_task(evaluation())
        await load(current, 0)
        assert not entered.is_set()
        await load(current, 1)
        await asyncio.wait_for(task, DEADLINE_SECONDS)
        assert entered.is_set()

    asyncio.run(scenario())


def test_a_version_that_has_passed_is_gone() -> None:
    async def scenario() -> None:
        current = CurrentVersion()
        await load(current, 2)
        with pytest.raises(FailedSampleError, match="version 1 was asked for, 2 is loaded") as gone:
            async with current.on_version(1):
                pass
        assert gone.value.code == FailureCode.VERSION_GONE

    asyncio.run(scenario())


def test_a_newer_version_waits_for_running_evaluations() -> None:
    async def scenario() -> None:
        current = CurrentVersion()
        await load(current, 0)
        async with current.on_version(0):
            loading = asyncio.create_task(load(current, 1))
            await asyncio.sleep(0)
            assert current.version == 0
        await asyncio.wait_for(loading, DEADLINE_SECONDS)
        assert current.version == 1

    asyncio.run(scenario())


def test_a_newer_version_waits_no_longer_than_its_bound() -> None:
    async def scenario() -> None:
        current = CurrentVersion()
        await load(current, 0)
        async with current.on_version(0):
            await asyncio.wait_for(load(current, 1, hold_seconds=0.01), DEADLINE_SECONDS)
            assert current.version == 1

    asyncio.run(scenario())


def test_a_load_that_fails_leaves_the_old_version() -> None:
    async def scenario() -> None:
        current = CurrentVersion()
        await load(current, 0)
        with pytest.raises(OSError, match="disk"):
            async with current.changing(1, DEADLINE_SECONDS):
                raise OSError("disk")
        assert current.version == 0
        async with current.on_version(0):
            pass

    asyncio.run(scenario())
