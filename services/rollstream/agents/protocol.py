"""The interface of an agent, which turns a prompt into the turns of one sample."""

from typing import Protocol

from rollstream.engines.protocol import Engine
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.rollout import Turn


class Agent(Protocol):
    """Answers a prompt with one or more model calls; each call is a turn."""

    async def run(
        self, prompt: PromptSubmitted, engine: Engine, *, request_id: str, seed: int | None
    ) -> tuple[Turn, ...]:
        """The turns, in their order.

        At the sample's deadline the engine answers with the tokens so far, finish reason `length`. After such a turn
        there is no other: an engine that is asked once more raises `EngineLateError`, and the turns are lost.
        Raises `FailedSampleError` if the task can't be asked (the sample is failed), and `EngineError` if the engine
        does not answer (the sample is tried again, then unresolved).
        """
        ...
