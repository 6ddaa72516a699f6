"""A process that is killed leaves none behind that it started, even if that one has done nothing yet."""

import subprocess
import sys

import psutil
import pytest

from tests.harness.waits import wait_until

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
