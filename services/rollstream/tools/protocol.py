"""The interface of tools: a set of them that the run's settings name, and its session for one attempt at a sample."""

from collections.abc import Mapping
from typing import Any, Protocol

from rollstream.schemas.prompt import ToolCall
from rollstream.schemas.rollout import ToolAnswer


class ToolSession(Protocol):
    """The tools of one attempt at a sample. Nobody else uses it."""

    @property
    def schemas(self) -> tuple[str, ...]:
        """The tools that the model may call, each a JSON function schema."""
        ...

    def is_replayable(self, name: str) -> bool:
        """Whether a call of this tool that may have arrived may be made again."""
        ...

    async def call(self, call: ToolCall) -> ToolAnswer:
        """What the tool says.

        Arguments that are no JSON, a tool that does not exist and an error of the tool itself are answers, which the
        model sees. Raises `ToolError` if nothing says what became of the call.
        """
        ...

    async def verify(self, said: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What the set says of the whole sample, whose answer is `said`; None if this one judges nothing.

        Raises `ToolError`.
        """
        ...

    async def leave(self) -> None:
        """Free what this process holds of the session, and let it be open: another process goes on with it (`reopens`).

        If none does, it is closed later. Raises `ToolError`.
        """
        ...

    async def close(self) -> None:
        """Free what the session holds, within a bound. Closing twice does nothing.

        Raises `ToolError` if its server may hold it still; the sample is what it is.
        """
        ...


class ToolSet(Protocol):
    """Tools that `[tools.NAME]` of the settings declares."""

    @property
    def reopens(self) -> bool:
        """Whether another process that opens a session under the same id finds its state."""
        ...

    async def open(self, session_id: str, attempt: int, task: Mapping[str, Any]) -> ToolSession:
        """Begin a session for a sample of this task, a JSON object.

        `attempt` counts from 0. A higher one takes over what is open under the same id, whose calls are refused from
        then on. Raises `ToolError`, and `FailedSampleError` if the task can't be begun with.
        """
        ...
