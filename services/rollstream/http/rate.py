"""How many calls a key may make: a token bucket for each, in the memory of this process."""

import math
import time
from collections.abc import Callable


class Rate:
    """Lets each client make `per_minute` calls a minute, on average, and as many at once; None: any number."""

    def __init__(self, per_minute: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait_seconds(self, client: str) -> int:
        """Take one call of the client; 0, or in how many seconds it may make one.

        Clients are known by the names of their keys, so that there are as many buckets as keys.
        """
        if self._per_minute is None:
            return 0
        a_second = self._per_minute / 60
        now = self._clock()
        left, since = self._buckets.get(client, (float(self._per_minute), now))
        left = min(self._per_minute, left + (now - since) * a_second)
        is_free = left >= 1
        self._buckets[client] = (left - is_free, now)
        return 0 if is_free else math.ceil((1 - left) / a_second)
