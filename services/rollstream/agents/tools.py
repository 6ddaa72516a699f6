"""The agent `tools`: the model calls tools until it answers without a call."""

from rollstream.agents.session import Session
from rollstream.schemas.bounds import MAX_TURNS
from rollstream.schemas.errors import FailedSampleError
from rollstream.schemas.failure import FailureCode


class ToolAgent:
    """Options: `tools`, a set of `[tools.NAME]`; `max_steps`, most turns; `parallel`, calls of a turn side by side.

    `max_context`: most tokens of the conversation with which a tool is still called; by default what the model takes.
    """

    def __init__(self, tools: str, max_steps: str = "8", parallel: str = "false", max_context: str = "") -> None:
        self.max_turns = number_from("max_steps", max_steps, MAX_TURNS)
        self._max_context = number_from("max_context", max_context, 2**31) if max_context else None
        self.tool_set = tools
        self._in_parallel = truth_from("parallel", parallel)

    async def run(self, session: Session) -> None:
        """As many turns as it takes; a sample that would call a tool beyond its bounds is cut off."""
        turn = await session.generate()
        # The calls of an answer that was cut off may be half ones.
        while turn.tool_calls and not turn.is_truncated:
            if len(session.turns) == self.max_turns:
                session.cut_off(f"turn {self.max_turns} calls a tool again, and is the last one")
            num_tokens = turn.prefix_tokens + len(turn.prompt_token_ids) + len(turn.token_ids)
            if self._max_context is not None and num_tokens > self._max_context:
                session.cut_off(f"{num_tokens} tokens of conversation, most are {self._max_context}")
            turn = await session.generate(await session.call(turn.tool_calls, in_parallel=self._in_parallel))


def number_from(name: str, text: str, most: int) -> int:
    """An option's whole number from 1 to `most`; raises `FailedSampleError`."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 10 or not 1 <= int(text) <= most:
        raise FailedSampleError(FailureCode.BAD_AGENT_OPTIONS, f"{name} {text[:20]!r} must be from 1 to {most}")
    return int(text)


def truth_from(name: str, text: str) -> bool:
    """An option's `true` or `false`; raises `FailedSampleError`."""
    if text not in ("true", "false"):
        raise FailedSampleError(FailureCode.BAD_AGENT_OPTIONS, f"{name} {text[:20]!r} must be true or false")
    return text == "true"
