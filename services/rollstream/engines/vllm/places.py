"""How many requests of training may be in vLLM at once, beside those of clients.

Some more than vLLM runs: if none waited inside, then each answer would leave its place empty for a step. Where places
are reserved for clients there are fewer than vLLM runs, since those that wait inside would take them. The difference is
lent to training as long as no client calls: an endpoint that nobody uses costs no tokens.
"""

import asyncio
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """`num_places`: left to clients. After `lend_after_seconds` without a call training has them too."""

    num_places: int = 0
    lend_after_seconds: float = 60.0


NO_RESERVE: Final = Reserve()


class TrainingPlaces:
    """The places of training's requests; in one event loop."""

    def __init__(self, max_num_seqs: int, reserve: Reserve) -> None:
        all_places = max_num_seqs + max_num_seqs // 8
        self._num_lendable = all_places - (max_num_seqs - reserve.num_places) if reserve.num_places else 0
        self._free = asyncio.Semaphore(all_places)
        self._lend_after_seconds = reserve.lend_after_seconds
        self._is_lent = True
        self._num_owed = 0
        """Lent places that requests still hold; each is kept back when its request ends."""
        self._num_calls = 0
        self._lending: asyncio.TimerHandle | None = None

    @property
    def is_full(self) -> bool:
        """Whether the next request must wait for a place."""
        return self._free.locked()

    async def take(self) -> None:
        """Wait for a place."""
        await self._free.acquire()

    def give(self) -> None:
        """The request in it has ended."""
        if self._num_owed:
            self._num_owed -= 1
        else:
            self._free.release()

    async def call_begins(self) -> bool:
        """A client calls. Whether places were lent until now: then requests that wait in vLLM are in the call's way."""
        self._num_calls += 1
        if self._lending is not None:
            self._lending.cancel()
            self._lending = None
        was_lent, self._is_lent = self._is_lent, False
        if not was_lent:
            return False
        self._num_owed = self._num_lendable
        while self._num_owed and not self.is_full:
            await self._free.acquire()
            self._num_owed -= 1
        return self._num_owed > 0

    def call_ends(self) -> None:
        """The last one to end starts the time after which places are lent again."""
        self._num_calls -= 1
        if not self._num_calls:
            self._lending = asyncio.get_running_loop().call_later(self._lend_after_seconds, self._lend)

    def _lend(self) -> None:
        self._lending, self._is_lent = None, True
        for _ in range(self._num_lendable - self._num_owed):
            self._free.release()
        self._num_owed = 0
