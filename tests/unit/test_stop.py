"""How the parts of a process end: together, when its loop hangs, and with what it started."""

import asyncio
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rollstream.process.stop import Stop, ending_within, first_to_end
from rollstream.schemas.errors import BrokerError
from tests.harness.processes import start_process
from tests.harness.waits import DEADLINE_SECONDS, wait_until

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


PROGRAM = """
import asyncio, re, signal
from rollstream.process.beat import beat
from rollstream.process.health import Health

async def main():
    beating = asyncio.create_task(beat(Health(), lambda: "", hangs_after=2.0))
    await asyncio.sleep(2.5)
    print("it ran for longer than it may hang", flush=True)
    {block}

asyncio.run(main())
"""
# The second one holds the interpreter's lock: no thread of Python could end the process.
BLOCKING = ("signal.pause()", "re.match('(a+)+$', 'a' * 60 + 'b')")


def test_code_that_blocks_the_event_loop_ends_the_process_and_its_stack_is_shown() -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(block=block)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for block in BLOCKING
    ]
    try:
        for process in started:
            said, stacks = process.communicate(timeout=DEADLINE_SECONDS)
            assert (process.returncode, said) == (1, "it ran for longer than it may hang\n"), stacks
            assert "in main" in stacks
    finally:
        for process in started:
            process.kill()


FORKS_A_SLEEPER = """
import os, signal
from rollstream.process.parent import end_forks_with_this_process

end_forks_with_this_process()
if os.fork() == 0:
    print(os.getpid(), flush=True)
signal.pause()
"""


def test_a_forked_process_ends_with_the_one_that_forked_it() -> None:
    with subprocess.Popen([sys.executable, "-c", FORKS_A_SLEEPER], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.is_running()
        parent.kill()
    wait_until(lambda: not _lives(child), "the forked process to end")


STARTS_ONE_BETWEEN = """
import os, signal, subprocess, sys

between = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())])
signal.pause()
"""
STARTS_A_WORKER = """
import os, signal, subprocess, sys
from rollstream.process.parent import die_with_ancestor

if os.fork() == 0:
    die_with_ancestor(int(sys.argv[1]))
    print(os.getppid(), os.getpid(), flush=True)
signal.pause()
"""


@pytest.mark.parametrize("killed", ["the one above", "the one between"])
def test_a_worker_ends_with_the_one_above_and_with_the_one_between(killed: str) -> None:
    command = [sys.executable, "-c", STARTS_ONE_BETWEEN, STARTS_A_WORKER]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as generator:
        assert generator.stdout is not None
        between, worker = (psutil.Process(int(pid)) for pid in generator.stdout.readline().split())
        assert between.is_running()
        assert worker.is_running()
        (generator if killed == "the one above" else between).kill()
        wait_until(lambda: not _lives(worker) and not _lives(between), "both to end")
        generator.kill()


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
