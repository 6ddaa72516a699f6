"""The time in which a bench counts tokens, of which no sample is counted only where it ends."""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from rollstream.schemas.errors import BrokenWorldError
from tests.bench.live_engine import EndedRequest, Watched

_COOL_DOWN_SECONDS: Final = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The time that is measured, in Unix seconds, and the CPU time used within it."""

    began: float
    ended: float
    cpu_seconds: float

    def tokens_of(self, answers: Iterable[EndedRequest]) -> float:
        """The tokens that were sampled within the window: of each answer, in proportion to its time in the window.

        A sample may take as long as the window, and the samples of a group end together. If all tokens of a sample
        counted at its end, the figure would depend on where exactly the window begins and ends.
        """
        return sum(
            answer.num_tokens
            * max(0.0, min(answer.ended, self.ended) - max(answer.began, self.began))
            / (answer.ended - answer.began)
            for answer in answers
        )


async def a_window(watched: Watched, seconds: float, cpu_seconds: Callable[[], float] = lambda: 0.0) -> Window:
    """The window of `seconds` from now, once every sample has ended that began in it."""
    began, cpu = time.time(), cpu_seconds()
    await asyncio.sleep(seconds)
    window = Window(began=began, ended=time.time(), cpu_seconds=cpu_seconds() - cpu)
    while watched.runs_since_before(window.ended):
        if time.time() - window.ended > _COOL_DOWN_SECONDS:
            raise BrokenWorldError(
                f"samples of the window have not ended {_COOL_DOWN_SECONDS:.0f} s later: the machine is too slow or "
                "too busy; end other work on it"
            )
        await asyncio.sleep(0.1)
    return window
