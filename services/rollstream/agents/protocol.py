"""The interface of an agent, which turns a prompt into the turns of one sample."""

from typing import Protocol

from rollstream.agents.session import Session


class Agent(Protocol):
    """Answers a prompt with one or more model calls; each call is a turn.

    It may also have

    - `max_turns: int`, at most so many turns, 1 by default. A generator counts the tokens in flight with it.
    - `tool_set: str`, the tools that it calls: the name of a `[tools.NAME]` of the settings. None by default.
    - `chooses_sampling: bool`, whether it samples turns otherwise than the prompt says. Not by default: then a prompt
      to train on whose sampling changes the distribution is refused before anything is asked.
    """

    async def run(self, session: Session) -> None:
        """Ask the model, and tools, through the session, which keeps the turns.

        At the sample's deadline the engine answers with the tokens so far, finish reason `length`; a call after that
        raises `EngineLateError`. Raises `FailedSampleError` if the task can't be asked (the sample is failed). Errors
        of the session are for its caller: they end the sample, and its turns are kept.
        """
        ...
