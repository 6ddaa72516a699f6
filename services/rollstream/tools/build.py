"""Makes the sets of tools that the settings declare."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from rollstream.process.settings.tools import ToolSettings
from rollstream.tools.python import PythonTools
from rollstream.tools.sessions import BoundedTools, Connection


class _SharedPart(Protocol):
    """What the sessions of a set share: a process, or a client."""

    async def start(self) -> None: ...

    async def connect(self, session_id: str, attempt: int, task: Mapping[str, Any], /) -> Connection: ...

    async def close(self) -> None: ...


@asynccontextmanager
async def tool_sets(declared: Mapping[str, ToolSettings]) -> AsyncIterator[dict[str, BoundedTools]]:
    """The sets by name, as long as the block runs. Raises `ConfigurationError` for a class that can't be imported."""
    async with AsyncExitStack() as stack:
        made: dict[str, BoundedTools] = {}
        for name, settings in declared.items():
            made[name] = await _made(name, settings, stack)
        yield made


async def _made(name: str, settings: ToolSettings, stack: AsyncExitStack) -> BoundedTools:
    tools = _of_kind(name, settings)
    # Before it starts, which may be cancelled.
    stack.push_async_callback(tools.close)
    await tools.start()
    return BoundedTools(name, settings, tools.connect)


def _of_kind(name: str, settings: ToolSettings) -> _SharedPart:
    """Heavy libraries are imported for what is declared only."""
    if settings.kind == "http":
        from rollstream.tools.http import HttpTools

        return HttpTools(settings)
    if settings.kind == "mcp":
        from rollstream.tools.mcp import McpTools

        return McpTools(settings)
    return PythonTools(name, settings)
