"""Agents of several model calls: those that go on after a tool's answer, and one that begins anew."""

from rollstream.agents.session import LAST, Session
from rollstream.schemas.prompt import Message, ToolCall


class ToolUser:
    """Sorts the prompt, then what a tool says. The tool's tokens follow those of the first answer."""

    said = "30="
    extends: int | None = LAST

    async def run(self, session: Session) -> None:
        await session.generate()
        await session.generate((Message(role="tool", content=self.said),), extends=self.extends)


class Starter(ToolUser):
    """Its second call knows nothing of the first one."""

    extends = None


class Adder:
    """Has the tool `add` called after each of its turns, whatever the model says."""

    def __init__(self, tools: str = "count", turns: str = "4") -> None:
        self.tool_set = tools
        self._num_turns = int(turns)

    async def run(self, session: Session) -> None:
        await session.generate()
        for number in range(self._num_turns):
            await session.call([ToolCall(call_id=f"call-{number}", name="add", arguments='{"by": 1}')])
            await session.generate((Message(role="user", content=f"{number}5="),))
