"""The parent's side of one scoring process: starts it when needed, and kills it when a deadline is over."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Final

from rollstream.environments.pool.verdicts import (
    LENGTH,
    MAX_ANSWER_BYTES,
    STARTED,
    Chunk,
    ScoringAnswer,
    Setup,
    Verdict,
    framed_request,
    read_answer,
    rewarded_at_timeout,
    unresolved,
)
from rollstream.process.masking import harmless_variables
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.errors import BrokenWorldError
from rollstream.schemas.failure import FailureCode

_LOG = logging.getLogger(__name__)

_START_SECONDS: Final = 60.0
_START_TRIES: Final = 3
_END_SECONDS: Final = 5.0


class ScoringProcess:
    """Scores chunks, one after the other. It must not be used by two tasks at the same time."""

    def __init__(
        self,
        *,
        sample_seconds: float,
        load_seconds: float,
        rewards_at_timeout: Mapping[str, float],
        environments: Mapping[str, Declaration] | None = None,
    ) -> None:
        self._sample_seconds = sample_seconds
        self._load_seconds = load_seconds
        self._late = {name: rewarded_at_timeout(reward) for name, reward in rewards_at_timeout.items()}
        self._environments = environments or {}
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def score(self, chunk: Chunk) -> AsyncIterator[Verdict]:
        """Verdicts in the chunk's order. If a sample ends the process, the verdict on it is the last.

        Raises `BrokenWorldError` if no process can be started.
        """
        refusal = await self._load(chunk)
        for sample_id in chunk.sample_ids:
            late = self._late.get(chunk.environment)
            verdict = refusal or await self._answer(sample_id, self._sample_seconds, "scoring this sample", late)
            yield verdict or unresolved(FailureCode.CRASH, "the scoring process sent no verdict")
            if refusal is None and self._process is None:
                return

    async def _load(self, chunk: Chunk) -> Verdict | None:
        """Send the chunk. None when its environment is loaded, else the verdict on every sample of the chunk."""
        is_fresh = self._process is None or self._process.returncode is not None
        if is_fresh:
            await self.start()
        self._send(chunk)
        refusal = await self._answer(chunk.number, self._load_seconds, f"loading the environment {chunk.environment!r}")
        if self._process is not None or is_fresh:
            return refusal
        # An older process may have died of something else. If a fresh one dies, loading the environment is the cause.
        return await self._load(chunk)

    async def start(self) -> None:
        """Start the process and wait until it takes chunks; one that dies meanwhile is started again.

        Raises `BrokenWorldError` after three that died, and after one that hangs.
        """
        for _ in range(_START_TRIES):
            ended = await self._start_once()
            if ended is None:
                return
            why = ended.failure
            _LOG.warning("a scoring process did not start: %s", why)
            if why is not None and why.code is FailureCode.TIMEOUT:
                break
        raise BrokenWorldError(f"no scoring process can be started: {why}; its output is above")

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

    async def _start_once(self) -> Verdict | None:
        """None when the process takes chunks, else how its start ended."""
        await self.kill()
        # Not a pipe on standard output: reward functions print there.
        own, other = socket.socketpair()
        with other:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "rollstream.environments.pool.child", str(other.fileno()), str(os.getpid()),
                stdin=asyncio.subprocess.DEVNULL, pass_fds=(other.fileno(),), start_new_session=True,
                env=harmless_variables(),
            )  # fmt: skip
        self._reader, self._writer = await asyncio.open_connection(sock=own)
        self._send(Setup(module_path=sys.path, environments=self._environments))
        return await self._answer(STARTED, _START_SECONDS, "starting")

    def _send(self, request: Setup | Chunk) -> None:
        assert self._writer is not None
        # Not drained: if the process does not read, the deadline of its next answer is what ends the wait.
        self._writer.write(framed_request(request))

    async def _answer(self, wanted_id: int, seconds: float, doing: str, late: Verdict | None = None) -> Verdict | None:
        """The answer to `wanted_id`; an unresolved verdict if the process hangs, dies or answers to another id.

        Then the process is gone. `late` replaces the verdict on a process that hangs.
        """
        try:
            async with asyncio.timeout(seconds):
                answered = await self._read()
        except TimeoutError:
            await self.kill()
            return late or unresolved(FailureCode.TIMEOUT, f"{doing} took longer than {seconds:g} s")
        except (asyncio.IncompleteReadError, ConnectionError):
            code = await self._exit_code()
            await self.kill()
            return unresolved(FailureCode.CRASH, f"{doing} ended its process with exit code {code}")
        if answered is not None and answered.answered_id == wanted_id:
            return answered.verdict
        # Somebody else writes on its socket: no later answer can be trusted to belong to its sample either.
        await self.kill()
        found = "what no scoring process writes" if answered is None else f"an answer to {answered.answered_id}"
        return unresolved(
            FailureCode.CRASH, f"{doing} brought {found} instead of {wanted_id}, so its process was killed"
        )

    async def _read(self) -> ScoringAnswer | None:
        """The next frame; None if it is no answer."""
        assert self._reader is not None
        length = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))[0]
        if length > MAX_ANSWER_BYTES:
            return None
        return read_answer(await self._reader.readexactly(length))

    async def _exit_code(self) -> int | None:
        assert self._process is not None
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(self._process.wait(), _END_SECONDS)
        return None
