"""Functions that answer prompts as engines do: out of order, with failures, or stopped on the way."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from rollstream.training.datasets import DataBuffer
from rollstream.training.rollout_gen import AsyncRolloutManager
from rollstream.training.types import Prompt, RolloutBatch, RolloutConfig, Sample, SampleStatus

COMPLETED = SampleStatus.COMPLETED


def answered(prompt: Prompt, number: int = 0, status: SampleStatus = COMPLETED, reward: float | None = None) -> Sample:
    """An answer of two tokens to a prompt of one; its reward is 0 or 1 by turns."""
    return Sample(
        prompt,
        response=f"answer {number}",
        tokens=[1, 2, number],
        loss_mask=[0, 1, 1],
        reward=number % 2 if reward is None else reward,
        status=status,
    )


@dataclass
class ShuffledEngine:
    """Async; each call ends after as many turns of the event loop as chance says."""

    seed: int = 0
    asked: list[Prompt] = field(default_factory=list)
    fails: Callable[[int], bool] = lambda number: False
    """Says of each call, by its number, whether it fails."""

    def __post_init__(self) -> None:
        self._random = Random(self.seed)

    async def __call__(self, prompts: list[Prompt]) -> list[Sample]:
        number = len(self.asked)
        self.asked += prompts
        for _ in range(self._random.randrange(20)):
            await asyncio.sleep(0)
        if self.fails(number):
            raise ConnectionError("the server went away")
        return [answered(prompt, number) for prompt in prompts]


@dataclass
class HeldEngine:
    """Async; answers the first `free` calls at once, and holds the others until `gate` opens.

    A call that is cancelled while it is held returns the first token, as stopped on the way.
    """

    free: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[Prompt] = field(default_factory=list)

    async def __call__(self, prompts: list[Prompt]) -> list[Sample]:
        number = len(self.asked)
        self.asked += prompts
        if number >= self.free:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                begun = replace(answered(prompts[0], number), tokens=[1, 2], loss_mask=[0, 1], response="")
                return [replace(begun, status=SampleStatus.ABORTED)]
        return [answered(prompt, number) for prompt in prompts]


def a_manager(generate_fn: Any, num_prompts: int = 100, **settings: Any) -> AsyncRolloutManager:
    """A manager over numbered prompts; failed calls are repeated at once."""
    config = RolloutConfig(**({"batch_size": 4, "generate_fn": generate_fn, "retry_delay": 0} | settings))
    return AsyncRolloutManager(DataBuffer([f"prompt {number}" for number in range(num_prompts)]), config)


def groups_of(*batches: RolloutBatch) -> dict[int, Counter[str]]:
    """The prompts of each group, with how many samples have it."""
    found: dict[int, Counter[str]] = {}
    for batch in batches:
        for group, prompt in zip(batch.group_indices or [], batch.metadata["prompts"], strict=True):
            found.setdefault(group, Counter())[prompt] += 1
    return found
