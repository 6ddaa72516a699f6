"""How servers are asked that may send anything: one client for all who ask, and the pauses between its tries."""

from collections.abc import Mapping
from typing import Final

import aiohttp
from tenacity import RetryCallState, wait_random_exponential

from rollstream.engines.http.replies import Reply, bounded_wait

CONNECT_SECONDS: Final = 10.0
# uvicorn, and with it vLLM's and LiteLLM's servers, closes connections that are idle for 5 s. One that it just closes
# would break a call, which may have arrived.
_KEPT_SECONDS: Final = 4.0
_BACKOFF: Final = wait_random_exponential(multiplier=0.25, max=15.0)


def open_client(headers: Mapping[str, str] | None = None) -> aiohttp.ClientSession:
    """A client in the running event loop, which its owner closes. Calls are bounded by who makes them."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEPT_SECONDS),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        # A few bytes may decompress to gigabytes: what was compressed all the same is refused.
        headers={"Accept-Encoding": "identity", **(headers or {})},
        auto_decompress=False,
        # What a server would have us remember is another call's, or nothing that we need.
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def pause(state: RetryCallState) -> float:
    """Seconds before the next try: as long as the server of the last one asks for, else longer each time."""
    outcome = state.outcome
    asked = outcome.result().asked_seconds if outcome is not None and not outcome.failed else None
    return _BACKOFF(state) if asked is None else bounded_wait(asked)


def last(state: RetryCallState) -> Reply:
    """What the last try gave, or raised."""
    assert state.outcome is not None
    found: Reply = state.outcome.result()
    return found
