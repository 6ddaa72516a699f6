"""What holds for tools of every kind: places, deadlines, and what the model is told of its own mistakes.

A kind knows how to connect (`Connect`) and how to make a call whose arguments are an object (`Connection`).
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from pydantic_core import from_json

from rollstream.process.settings.tools import ToolSettings
from rollstream.schemas.errors import ToolError
from rollstream.schemas.prompt import ToolCall
from rollstream.schemas.record import writable
from rollstream.schemas.rollout import ToolAnswer
from rollstream.tools import metrics

MAX_SCHEMAS: Final = 128
MAX_SCHEMA_BYTES: Final = 2**16
_SHOWN_CHARACTERS: Final = 100
_LONGEST_ERROR: Final = 2000
# No name can leave the path of a server.
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Said:
    """What a tool said: `content` for the model; `error`: why it failed, if it did."""

    content: str
    error: str | None = None


class Connection(Protocol):
    """An open session of one kind. Its methods may be cancelled at any time."""

    @property
    def schemas(self) -> tuple[str, ...]:
        """The tools, each a JSON function schema."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any], *, is_replayable: bool) -> Said:
        """What the tool says. Raises `ToolError`."""
        ...

    async def verify(self, said: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The verdict; None: this kind has none. Raises `ToolError`."""
        ...

    async def leave(self) -> None:
        """End what runs here, and let the session be open at its server. Raises `ToolError`."""
        ...

    async def close(self) -> None:
        """End it. Raises `ToolError`. Whatever happens, and also if it is cancelled, nothing of it runs here."""
        ...


Connect = Callable[[str, int, Mapping[str, Any]], Awaitable[Connection]]
"""Opens a session (id, attempt, task). Raises `ToolError`, `FailedSampleError`."""


class BoundedTools:
    """A set of tools (`ToolSet`)."""

    def __init__(self, name: str, settings: ToolSettings, connect: Connect) -> None:
        self._name = name
        self._settings = settings
        self._connect = connect
        self._places = asyncio.Semaphore(settings.max_sessions)
        metrics.show(name)

    @property
    def reopens(self) -> bool:
        return self._settings.reopens

    async def open(self, session_id: str, attempt: int, task: Mapping[str, Any]) -> "BoundedSession":
        """Begin a session, once there is a place; raises what `ToolSet.open` does."""
        if attempt and not self.reopens:
            raise ToolError(f"tools {self._name!r} keep no state that another process finds: see `reopens`")
        doing = f"opening a session of tools {self._name!r}"
        try:
            return await _within(self._settings.open_seconds, doing, self._opened(session_id, attempt, task))
        except ToolError:
            metrics.SESSIONS.labels(self._name, "not_opened").inc()
            raise

    async def _opened(self, session_id: str, attempt: int, task: Mapping[str, Any]) -> "BoundedSession":
        await self._places.acquire()
        try:
            connection = await self._connect(session_id, attempt, task)
        except BaseException:
            self._places.release()
            raise
        session = BoundedSession(self._name, self._settings, connection, self._places.release)
        try:
            session.read_schemas()
        except ToolError:
            with suppress(ToolError):
                await session.close()
            raise
        return session


class BoundedSession:
    """A session of a set (`ToolSession`). `closed` is told once that it is."""

    def __init__(self, name: str, settings: ToolSettings, connection: Connection, closed: Callable[[], None]) -> None:
        self._set_name = name
        self._settings = settings
        self._connection = connection
        self._closed = closed
        self._is_closed = False
        self._is_left = False
        metrics.OPEN.labels(name).inc()
        self._schemas: dict[str, str] = {}

    def read_schemas(self) -> None:
        """Take what the connection says of its tools. Raises `ToolError` if it is garbage."""
        self._schemas = by_name(self._connection.schemas)

    @property
    def schemas(self) -> tuple[str, ...]:
        return tuple(self._schemas.values())

    def is_replayable(self, name: str) -> bool:
        """Whether the settings say so."""
        return name in self._settings.replayable

    async def call(self, call: ToolCall) -> ToolAnswer:
        """What the tool says, or what the model did wrong. Raises `ToolError`."""
        arguments = self._arguments(call)
        if isinstance(arguments, Said):
            said = arguments
        else:
            making = self._connection.call(call.name, arguments, is_replayable=self.is_replayable(call.name))
            said = await self._made(f"the call of {call.name!r}", making)
        metrics.CALLS.labels(self._set_name, "answered" if said.error is None else "mistake").inc()
        error = None if said.error is None else writable(said.error[:_LONGEST_ERROR])
        return ToolAnswer(call_id=call.call_id, content=writable(said.content), error=error)

    async def verify(self, said: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The verdict on the sample, if this kind gives one. Raises `ToolError`."""
        seconds = self._settings.verify_seconds or self._settings.call_seconds
        doing = f"the verification in tools {self._set_name!r}"
        return await _within(seconds, doing, self._connection.verify(said))

    async def leave(self) -> None:
        """Free the place, as `close` does, which may follow. Raises `ToolError`."""
        await self._end("leaving", "left", self._connection.leave)
        self._is_left = True

    async def close(self) -> None:
        """Free the place, whatever the connection's end does. Raises `ToolError`."""
        if self._is_left:
            self._is_left = False
            await self._ended("closing", self._connection.close())
        await self._end("closing", "closed", self._connection.close)

    async def _end(self, doing: str, ended: str, end: Callable[[], Awaitable[None]]) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        outcome = "failed"
        try:
            await self._ended(doing, end())
            outcome = ended
        finally:
            metrics.OPEN.labels(self._set_name).dec()
            metrics.SESSIONS.labels(self._set_name, outcome).inc()
            self._closed()

    async def _ended(self, doing: str, ending: Awaitable[None]) -> None:
        await _within(self._settings.close_seconds, f"{doing} a session of tools {self._set_name!r}", ending)

    async def _made(self, doing: str, making: Awaitable[Said]) -> Said:
        """The answer to a call that leaves this process."""
        try:
            with metrics.CALL.labels(self._set_name).time():
                return await _within(self._settings.call_seconds, f"{doing} in tools {self._set_name!r}", making)
        except ToolError:
            metrics.CALLS.labels(self._set_name, "failed").inc()
            raise

    def _arguments(self, call: ToolCall) -> dict[str, Any] | Said:
        """The arguments as an object; or what the model is told, if it made a mistake."""
        if call.name not in self._schemas:
            known = ", ".join(self._schemas) or "there are none"
            return mistake(f"no tool is called {call.name[:_SHOWN_CHARACTERS]!r}: {known}")
        try:
            arguments = from_json(call.arguments, allow_inf_nan=False)
        except ValueError as error:
            return mistake(f"Invalid tool call arguments: {error}")
        if not isinstance(arguments, dict):
            return mistake("Invalid tool call arguments: they must be a JSON object")
        return arguments


def mistake(why: str) -> Said:
    """What the model is told of a call that failed by its own fault or the tool's."""
    why = why[:_LONGEST_ERROR]
    return Said(json.dumps({"error": why}, ensure_ascii=False), why)


def by_name(schemas: tuple[str, ...]) -> dict[str, str]:
    """The schemas by the tools' names. Raises `ToolError` for what is none, and beyond the bounds."""
    if len(schemas) > MAX_SCHEMAS:
        raise ToolError(f"there are {len(schemas)} tools, the bound is {MAX_SCHEMAS}")
    found = {_name_of(schema): schema for schema in schemas}
    if len(found) < len(schemas):
        raise ToolError("two tools have the same name")
    return found


def _name_of(schema: str) -> str:
    if len(schema) > MAX_SCHEMA_BYTES:
        raise ToolError(f"the schema of a tool has {len(schema)} characters, the bound is {MAX_SCHEMA_BYTES}")
    try:
        found = from_json(schema)
    except ValueError as error:
        raise ToolError(f"the schema of a tool is no JSON: {error}") from error
    function = found.get("function", found) if isinstance(found, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ToolError(f"a tool is called {str(name)[:_SHOWN_CHARACTERS]!r}: its name must match {_NAME.pattern}")
    return name


async def _within(seconds: float, doing: str, asking: Awaitable[_Found]) -> _Found:
    try:
        async with asyncio.timeout(seconds):
            return await asking
    except TimeoutError as error:
        raise ToolError(f"{doing} took longer than {seconds:g} s") from error
