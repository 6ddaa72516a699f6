"""The parts of a process end together, and the error of the one that ended first is what the process ends with."""

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from rollstream.process.stop import Stop, ending_within, first_to_end
from rollstream.schemas.errors import BrokerError
from tests.harness.processes import start_process
from tests.harness.waits import wait_until

BLOCKED_START = """
import multiprocessing, time
from rollstream.process.entry import run_process
from rollstream.process.stop import ending_within

def main(stop):
    with ending_within(stop, 0.3):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        child.start()
        print("child", child.pid, flush=True)
        time.sleep(600)

run_process("generator", main)
"""


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


def test_a_start_that_blocks_the_process_ends_soon_after_a_sigterm_with_its_children(tmp_path: Path) -> None:
    process = start_process([sys.executable, "-c", BLOCKED_START], log=tmp_path / "log")
    try:
        wait_until(lambda: "child" in process.said(), "the child")
        child = psutil.Process(int(process.said().split("child ")[1].split()[0]))
        assert process.terminate(10) == 0
        wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the child's end")
    finally:
        process.kill()


def test_a_start_that_ends_in_time_is_left_alone() -> None:
    stop = Stop()
    with ending_within(stop, 0.0):
        pass
    stop.ask()
