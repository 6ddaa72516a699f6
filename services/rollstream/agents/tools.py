"""The agent `tools`: the model calls tools until it answers without a call."""

from rollstream.agents.session import Session
from rollstream.schemas.bounds import MAX_TURNS
from rollstream.schemas.errors import FailedSampleError
from rollstream.schemas.failure import FailureCode


class ToolAgent:
    """Options: `tools`, a set of `[tools.NAME]`; `max_steps`, most turns; `parallel`, calls of a turn side by side."""

    def __init__(self, tools: str, max_steps: str = "8", parallel: str = "false") -> None:
        if not max_steps.isdecimal() or not 1 <= int(max_steps) <= MAX_TURNS:
            raise FailedSampleError(
                FailureCode.BAD_AGENT_OPTIONS, f"max_steps {max_steps[:20]!r} must be from 1 to {MAX_TURNS}"
            )
        if parallel not in ("true", "false"):
            raise FailedSampleError(FailureCode.BAD_AGENT_OPTIONS, f"parallel {parallel[:20]!r} must be true or false")
        self.tool_set = tools
        self.max_turns = int(max_steps)
        self._in_parallel = parallel == "true"

    async def run(self, session: Session) -> None:
        """As many turns as it takes; a sample whose last allowed turn calls a tool is cut off."""
        turn = await session.generate()
        # The calls of an answer that was cut off may be half ones.
        while turn.tool_calls and not turn.is_truncated:
            if len(session.turns) == self.max_turns:
                session.cut_off(f"turn {self.max_turns} calls a tool again, and is the last one")
            turn = await session.generate(await session.call(turn.tool_calls, in_parallel=self._in_parallel))
