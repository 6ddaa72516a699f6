"""Whether servers are ready, found out without any call of a model.

LiteLLM's `GET /health` asks every model that it knows, and SGLang's generates a token. So the order is:
`/health/readiness` (LiteLLM; the others have no such route), `/v1/models`, and only where the list of models says that
this is vLLM, whose `/health` asks its engine alone, `/health`.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from rollstream.engines.http.client import HttpClient, refused_key
from rollstream.engines.http.pool import Server
from rollstream.engines.http.replies import Reply
from rollstream.process.terminal import shown
from rollstream.schemas.bounds import MAX_SAMPLE_TOKENS
from rollstream.schemas.errors import ConfigurationError, EngineDeadError, EngineError

_LOG = logging.getLogger(__name__)
_LOOK_EVERY_SECONDS: Final = 0.5
_PROBE_SECONDS: Final = 10.0
# Once one server is ready, so long for the others: they may start together.
_OTHERS_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What a ready server says of itself. `software`: e.g. `vllm 0.32.0`; empty if it does not say."""

    software: str = ""
    max_model_len: int | None = None


async def wait_until_ready(client: HttpClient, model: str, seconds: float) -> dict[Server, Ready]:
    """Wait until servers are ready, at least one; the others rest until calls try them again.

    Raises `ConfigurationError` if a server refuses the key, `EngineDeadError` if none is ready in time.
    """
    give_up_at = time.monotonic() + seconds
    found: dict[Server, Ready] = {}
    problems: dict[Server, str] = {}
    is_told = False
    while len(found) < len(client.pool.servers) and time.monotonic() < give_up_at:
        missing = [server for server in client.pool.servers if server not in found]
        looks = await asyncio.gather(*(_look(client, server, model) for server in missing))
        for server, looked in zip(missing, looks, strict=True):
            if isinstance(looked, Ready):
                found[server] = looked
                give_up_at = min(give_up_at, time.monotonic() + _OTHERS_SECONDS)
            else:
                problems[server] = looked
        if not (found or is_told):
            _LOG.warning("no server is ready yet, waiting up to %g s: %s", seconds, _told(problems, missing))
            is_told = True
        if len(found) < len(client.pool.servers):
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
    missing = [server for server in client.pool.servers if server not in found]
    said = _told(problems, missing)
    if not found:
        raise EngineDeadError(
            f"no server was ready within {seconds} s: {said}; start one, or correct the addresses (http.urls)"
        )
    for server in missing:
        client.pool.failed(server, problems.get(server, "not ready"))
    if missing:
        _LOG.warning("%d of %d servers are ready; not ready: %s", len(found), len(client.pool.servers), said)
    return found


def _told(problems: Mapping[Server, str], servers: Iterable[Server]) -> str:
    return "; ".join(f"{server.root}: {problems.get(server, 'not asked')}" for server in servers)


async def _look(client: HttpClient, server: Server, model: str) -> Ready | str:
    """What the server says, or why it is not ready."""
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            return await _probe(client, server, model)
    except (aiohttp.ClientError, OSError, EngineError) as error:
        return f"{type(error).__name__}: {error}"


async def _probe(client: HttpClient, server: Server, model: str) -> Ready | str:
    readiness = await client.ask(server, "GET", "/health/readiness")
    if readiness.status >= 500:
        return f"/health/readiness answered {readiness.status}: {readiness.message}"
    models = await client.ask(server, "GET", "/v1/models")
    if models.refuses_key:
        raise ConfigurationError(refused_key(server, models))
    if models.status >= 500:
        return f"/v1/models answered {models.status}: {models.message}"
    cards = _cards(models)
    names = [card.get("id") for card in cards]
    if names and model not in names:
        _LOG.warning("%s does not list the model %r, but %s", server.root, model, ", ".join(map(shown, names[:10])))
    software = await _software(client, server, readiness, cards)
    if software.startswith("vllm"):
        health = await client.ask(server, "GET", "/health")
        if not health.is_ok:
            return f"/health answered {health.status}: {health.message}"
    return Ready(software=software, max_model_len=_max_model_len(card for card in cards if card.get("id") == model))


def _cards(models: Reply) -> list[dict[str, Any]]:
    """The models that the server lists; none where it has no such route."""
    listed = models.body.get("data") if models.is_ok and isinstance(models.body, dict) else None
    return [card for card in listed if isinstance(card, dict)] if isinstance(listed, list) else []


async def _software(client: HttpClient, server: Server, readiness: Reply, cards: list[dict[str, Any]]) -> str:
    # Its newer versions leave the version out.
    if readiness.is_ok and isinstance(readiness.body, dict) and {"litellm_version", "db"} & readiness.body.keys():
        return _named("litellm", readiness.body.get("litellm_version"))
    owner = cards[0].get("owned_by") if cards else None
    if owner == "vllm":
        version = await client.ask(server, "GET", "/version")
        return _named("vllm", version.body.get("version") if isinstance(version.body, dict) else None)
    return "sglang" if owner == "sglang" else ""


def _named(name: str, version: Any) -> str:
    """Name and version; it becomes a field of records, so it is short and printable."""
    is_plain = isinstance(version, str) and version.isprintable() and len(version) <= 100
    return f"{name} {version}" if is_plain else name


def _max_model_len(cards: Iterable[dict[str, Any]]) -> int | None:
    lengths = [card.get("max_model_len") for card in cards]
    known = [length for length in lengths if type(length) is int and 1 <= length <= MAX_SAMPLE_TOKENS]
    return min(known, default=None)
