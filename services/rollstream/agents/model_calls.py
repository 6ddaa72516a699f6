"""The model calls of one attempt at a sample: their ids and seeds, each tried again by itself."""

import hashlib
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace

from rollstream.engines.deadline import is_over, task_ends_at
from rollstream.engines.protocol import Engine, Generation, GenerationRequest
from rollstream.schemas.errors import EngineDeadError, EngineError
from rollstream.schemas.prompt import Sampling


def sample_seed(sampling: Sampling, sample_index: int, turn: int = 0) -> int | None:
    """The call's own seed: 63 bits of sha256(seed, sample_index, turn). None: the engine chooses one.

    That of the first turn does without the turn: it stays what it was for samples of one turn.
    """
    if sampling.seed is None:
        return None
    named = f"{sampling.seed}/{sample_index}" + (f"/{turn}" if turn else "")
    # 63 bits, because engines take the seed as a signed integer of 64 bits.
    return int.from_bytes(hashlib.sha256(named.encode()).digest()[:8], "little") >> 1


@dataclass(eq=False, slots=True)
class ModelCalls:
    """The calls of sample `sample_index`. `name`: of the attempt, unique; request ids begin with it.

    `retried` is told of each engine error.
    """

    engine: Engine
    _: KW_ONLY
    name: str
    sample_index: int
    max_tries: int
    retried: Callable[[], None]

    async def answer(self, request: GenerationRequest, turn: int) -> Generation:
        """The answer to `request`, whose id and seed are chosen here. Raises `EngineError` if no try has one."""
        request = replace(request, seed=sample_seed(request.sampling, self.sample_index, turn))
        for number in range(self.max_tries):
            try:
                return await self.engine.generate(replace(request, request_id=f"{self.name}-{turn}-{number}"))
            # It answers no other call either.
            except EngineDeadError:
                raise
            except EngineError:
                if is_over(task_ends_at()):  # most likely no fault of the engine's
                    raise
                self.retried()
                if number + 1 == self.max_tries:
                    raise
        raise AssertionError("max_tries is at least 1")
