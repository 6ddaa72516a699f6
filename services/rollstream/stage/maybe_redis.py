"""Redis, which may be gone: it holds only what may be lost, so whoever asks it goes on without an answer."""

import logging
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import redis.asyncio

_LOG = logging.getLogger(__name__)

_TIMEOUT_SECONDS: Final = 1.0
_MAX_CONNECTIONS: Final = 8
_WAIT_SECONDS: Final = 30.0
# While Redis does not answer, each question costs a second of waiting: so it is not asked again for a while.
_RETRY_AFTER_SECONDS: Final = 5.0


class MaybeRedis:
    """Redis at `redis_url`; None: there is none. `without` says what is not done while it is gone."""

    def __init__(self, redis_url: str | None, *, without: str) -> None:
        self._without = without
        self._ask_again_at = 0.0
        self.state = ""
        """How Redis was when it was last asked, for people; empty: it was not asked."""
        self._redis = _connection(redis_url) if redis_url else None

    async def ask(self, command: str, *arguments: str | int) -> Any:
        """Redis' answer. None while it is gone; then it is not asked again for a few seconds."""
        began = time.monotonic()
        if self._redis is None or began < self._ask_again_at:
            return None
        from redis import RedisError

        try:
            answer = await self._redis.execute_command(command, *arguments)  # type: ignore[no-untyped-call]
        except RedisError as error:
            self.state = f"it is gone: {self._without} until it is back"
            if began >= self._ask_again_at:  # of many that asked at the same time, only the first logs it
                _LOG.warning("Redis is gone, %s until it is back: %s", self._without, error)
            self._ask_again_at = time.monotonic() + _RETRY_AFTER_SECONDS
            return None
        self.state = "it answers"
        return answer

    async def close(self) -> None:
        if self._redis is not None:
            await self._redis.aclose()


def _connection(redis_url: str) -> "redis.asyncio.Redis":
    # Only where Redis is used: beside vLLM, which installs OpenTelemetry, this import takes half a second and more.
    import redis.asyncio
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    # Hundreds of records start at the same time: they share a few connections and wait for a free one.
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        redis_url,
        max_connections=_MAX_CONNECTIONS,
        timeout=_WAIT_SECONDS,
        socket_timeout=_TIMEOUT_SECONDS,
        socket_connect_timeout=_TIMEOUT_SECONDS,
        # No retries: `ask` gives up at once, so that records do not wait for a Redis that is gone.
        retry=Retry(NoBackoff(), 0),
    )
    return redis.asyncio.Redis.from_pool(pool)
