"""The parent's side of one scoring process: starts it when needed, and kills it when a deadline is over."""

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from rollstream.process.declared import Declaration
from rollstream.schemas.errors import BrokenWorldError
from rollstream.schemas.failure import FailureCode
from rollstream.scorer.pool.verdicts import LENGTH, Chunk, Loaded, Setup, Verdict, framed, unresolved

_START_SECONDS: Final = 60.0
_END_SECONDS: Final = 5.0


class ScoringProcess:
    """Scores chunks, one after the other. It must not be used by two tasks at the same time."""

    def __init__(
        self, *, sample_seconds: float, load_seconds: float, environments: Mapping[str, Declaration] | None = None
    ) -> None:
        self._sample_seconds = sample_seconds
        self._load_seconds = load_seconds
        self._environments = environments or {}
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def score(self, chunk: Chunk) -> AsyncIterator[Verdict]:
        """Verdicts in the chunk's order. If a sample ends the process, the verdict on it is the last.

        Raises `BrokenWorldError` if no process can be started.
        """
        refusal = await self._load(chunk)
        for _ in chunk.answers:
            yield refusal or await self._answer(self._sample_seconds, "scoring this sample")
            if refusal is None and self._process is None:
                return

    async def _load(self, chunk: Chunk) -> Verdict | None:
        """Send the chunk. None when its environment is loaded, else the verdict on every sample of the chunk."""
        is_fresh = self._process is None or self._process.returncode is not None
        if is_fresh:
            await self.start()
        self._send(chunk)
        loaded: Loaded | Verdict = await self._answer(
            self._load_seconds, f"loading the environment {chunk.environment!r}"
        )
        if isinstance(loaded, Loaded):
            return loaded.refusal
        # An older process may have died of something else. If a fresh one dies, loading the environment is the cause.
        return loaded if is_fresh else await self._load(chunk)

    async def start(self) -> None:
        """Start the process and wait until it takes chunks."""
        await self.kill()
        # Not a pipe on standard output: reward functions print there.
        own, other = socket.socketpair()
        with other:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "rollstream.scorer.pool.child", str(other.fileno()), str(os.getpid()),
                stdin=asyncio.subprocess.DEVNULL, pass_fds=(other.fileno(),), start_new_session=True,
            )  # fmt: skip
        self._reader, self._writer = await asyncio.open_connection(sock=own)
        self._send(Setup(module_path=sys.path, environments=self._environments))
        ready = await self._answer(_START_SECONDS, "starting")
        if isinstance(ready, Verdict):
            raise BrokenWorldError(f"no scoring process can be started: {ready.failure}; its output is above")

    async def kill(self) -> None:
        """SIGKILL to the process and to the processes that a reward function started in it."""
        process, self._process = self._process, None
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if process is None:
            return
        # The process leads its own session (`start_new_session`), so its group holds its children too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.wait_for(process.wait(), _END_SECONDS)

    def _send(self, value: Any) -> None:
        assert self._writer is not None
        # Not drained: if the process does not read, the deadline of its next answer is what ends the wait.
        self._writer.write(framed(value))

    async def _answer(self, seconds: float, doing: str) -> Any:
        """The next answer of the process; an unresolved verdict if it hangs or dies, and then the process is gone."""
        try:
            async with asyncio.timeout(seconds):
                return await self._read()
        except TimeoutError:
            await self.kill()
            return unresolved(FailureCode.TIMEOUT, f"{doing} took longer than {seconds:g} s")
        except (asyncio.IncompleteReadError, ConnectionError):
            code = await self._exit_code()
            await self.kill()
            return unresolved(FailureCode.CRASH, f"{doing} ended its process with exit code {code}")

    async def _read(self) -> Any:
        assert self._reader is not None
        length = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))[0]
        return pickle.loads(await self._reader.readexactly(length))

    async def _exit_code(self) -> int | None:
        assert self._process is not None
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(self._process.wait(), _END_SECONDS)
        return None
