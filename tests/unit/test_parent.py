"""A process that is killed leaves none behind that it forked, even if that one has done nothing yet."""

import subprocess
import sys

import psutil

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
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the forked process to end")
