"""How a prompt becomes turns: the one interface that every agent has."""

from typing import Protocol

from rollstream.engines.protocol import Engine
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.rollout import Turn


class Agent(Protocol):
    """Turns one prompt into the turns of one sample."""

    async def run(
        self, prompt: PromptSubmitted, engine: Engine, *, request_id: str, seed: int | None
    ) -> tuple[Turn, ...]:
        """The turns in order. Raises `FailedSampleError` (failed) or `EngineError` (unresolved)."""
        ...
