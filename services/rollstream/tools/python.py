"""Tools of kind `python`: a user's own class, in a process for each session, which is killed when it hangs."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import from_json

from rollstream.process.masking import harmless_variables
from rollstream.process.settings.tools import ToolSettings
from rollstream.schemas.errors import ConfigurationError, ToolError
from rollstream.tools.child import LENGTH
from rollstream.tools.sessions import Said, mistake

_START_SECONDS: Final = 120.0
_END_SECONDS: Final = 5.0
_MOST_SCHEMA_BYTES: Final = 2**18


class PythonTools:
    """Starts the process that forks sessions, and connects to them. `start` comes first, `close` last."""

    def __init__(self, name: str, settings: ToolSettings) -> None:
        self._name = name
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._starting = asyncio.Lock()
        self.schemas: tuple[str, ...] = ()

    async def start(self) -> None:
        """Import the class in its own process. Raises `ConfigurationError` if that can't be done."""
        async with self._starting:
            if self._process is not None and self._process.returncode is None and self._control is not None:
                return
            await self.close()
            try:
                async with asyncio.timeout(_START_SECONDS):
                    await self._start()
            except TimeoutError as error:
                raise ConfigurationError(f"{self._setting} was not imported in {_START_SECONDS:g} s") from error

    async def connect(self, _session_id: str, _attempt: int, task: Mapping[str, Any]) -> "PythonConnection":
        """A new process, which has begun with the task."""
        own, other = socket.socketpair()
        own.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=own)
        connection = PythonConnection(self, reader, writer, self._settings.max_answer_bytes)
        try:
            with other:
                await self._fork(other)
            await connection.begin(task)
        except BaseException:
            await connection.kill()
            raise
        return connection

    async def _fork(self, other: socket.socket) -> None:
        """Have a process forked that talks through `other`."""
        await self.start()
        try:
            self._tell(b"fork", other.fileno())
        except ToolError:
            # Its process has ended, and the event loop has not heard of it yet.
            await self.start()
            self._tell(b"fork", other.fileno())

    def end(self, pid: int) -> None:
        """Kill a session's process and those that it started."""
        with contextlib.suppress(ToolError):
            self._tell(str(pid).encode())

    async def close(self) -> None:
        """End the process and all sessions."""
        if self._control is not None:
            self._control.close()
            self._control = None
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.wait_for(process.wait(), _END_SECONDS)

    @property
    def _setting(self) -> str:
        return f"[tools.{self._name}] path = {self._settings.path!r}"

    async def _start(self) -> None:
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own.setblocking(False)
        self._control = own
        with other:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "rollstream.tools.child", str(other.fileno()), str(os.getpid()),
                stdin=asyncio.subprocess.DEVNULL, pass_fds=(other.fileno(),), start_new_session=True,
                env=harmless_variables(),
            )  # fmt: skip
        setup = {
            "module_path": sys.path,
            "path": self._settings.path,
            "options": {name: value.get_secret_value() for name, value in self._settings.options.items()},
            "max_memory_bytes": self._settings.max_memory_bytes,
        }
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(own, json.dumps(setup).encode())
        answer = await loop.sock_recv(own, _MOST_SCHEMA_BYTES)
        if not answer:
            raise ConfigurationError(f"{self._setting} ended its process while it was imported; its output is above")
        said = from_json(answer)
        if "refused" in said:
            raise ConfigurationError(f"{self._setting}: {said['refused']}")
        self.schemas = tuple(said["schemas"])

    def _tell(self, message: bytes, *descriptors: int) -> None:
        if self._control is None:
            raise ToolError(f"tools {self._name!r} are closed")
        try:
            socket.send_fds(self._control, [message], descriptors)
        except OSError as error:
            # A full socket says that its process is busy; anything else that it is gone, with all sessions.
            if not isinstance(error, BlockingIOError):
                self._control.close()
                self._control = None
            raise ToolError(f"the process of tools {self._name!r} takes no request: {error}") from error


class PythonConnection:
    """One session's process (`Connection`): one request at a time. After one without an answer it takes no other."""

    def __init__(
        self, tools: PythonTools, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most_bytes: int
    ) -> None:
        self._tools = tools
        self._reader = reader
        self._writer = writer
        self._most_bytes = most_bytes
        self._turn = asyncio.Lock()
        self._pid = 0
        self._lost = ""

    @property
    def schemas(self) -> tuple[str, ...]:
        return self._tools.schemas

    async def begin(self, task: Mapping[str, Any]) -> None:
        """Wait for the process, and tell it the task."""
        self._pid = int((await self._read())["pid"])
        await self._ask({"begin": [task]})

    async def call(self, name: str, arguments: Mapping[str, Any], *, is_replayable: bool) -> Said:
        """See `Connection.call`. A call is never made again: the session's state went with its process."""
        answer = await self._ask({"call": name, "arguments": arguments})
        if "broken" in answer:
            return mistake(answer["broken"])
        return Said(answer["content"], answer["error"])

    async def verify(self, said: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What the class's `verify` gives; None if it has none."""
        verdict = (await self._ask({"verify": [said]})).get("done")
        if verdict is not None and not isinstance(verdict, dict):
            raise ToolError(f"verify gave a {type(verdict).__name__}, not an object")
        return verdict

    async def leave(self) -> None:
        """As `close`: its process is this one's."""
        await self.close()

    async def close(self) -> None:
        """Have the object closed, and end its process."""
        try:
            if not self._lost:
                await self._ask({"close": []})
        finally:
            await self.kill()

    async def kill(self) -> None:
        """End the process whatever it does."""
        self._lost = self._lost or "it is closed"
        self._writer.close()
        if self._pid:
            self._tools.end(self._pid)

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer; `ToolError` if there is none, or if the class's own code raised."""
        async with self._turn:
            if self._lost:
                raise ToolError(f"the session's process takes no request: {self._lost}")
            # Until the answer is read: if this is cancelled, the next answer would be another request's.
            self._lost = "it did not answer an earlier one"
            body = json.dumps(request).encode()
            self._writer.write(LENGTH.pack(len(body)) + body)
            answer = await self._read()
            self._lost = ""
        if "broken" in answer and "call" not in request:
            raise ToolError(f"{next(iter(request))} of the tools' class raised {answer['broken']}")
        return answer

    async def _read(self) -> dict[str, Any]:
        try:
            length = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))[0]
            if length > self._most_bytes:
                raise ToolError(f"the answer has {length} bytes, the bound max_answer_bytes is {self._most_bytes}")
            found = from_json(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError, ValueError) as error:
            raise ToolError(f"the session's process ended, or wrote what is no answer: {error}") from error
        if not isinstance(found, dict):
            raise ToolError("the session's process wrote what is no answer")
        return found
