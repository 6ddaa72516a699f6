"""The beat of an event loop: one that runs goes on, and one that hangs ends its process and says where."""

import subprocess
import sys

from tests.harness.waits import DEADLINE_SECONDS

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
