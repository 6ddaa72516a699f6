"""Agents of two model calls: one whose second call goes on after a tool's answer, and one that begins anew."""

from rollstream.agents.session import LAST, Session
from rollstream.schemas.prompt import Message


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
