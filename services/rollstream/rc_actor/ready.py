"""Waits for the services that a run needs, without any call of a model: whatever starts first, nothing fails."""

import asyncio
import os
import time
from typing import Final

import aiohttp
from pydantic import SecretStr

from rollstream.engines.http.client import HttpClient
from rollstream.engines.http.ready import wait_until_ready
from rollstream.engines.http.settings import HttpSettings
from rollstream.process.masking import SECRETS
from rollstream.rc_actor.settings import RCSettings, split_urls
from rollstream.schemas.errors import EngineDeadError, EngineError

_LOOK_EVERY_SECONDS: Final = 0.5
_PROBE_SECONDS: Final = 10.0


async def wait_for_services(settings: RCSettings) -> None:
    """Until servers of each model are ready, at least one, and the verifier service if there is one.

    Raises `EngineDeadError` that names what was not ready within `me.ready_seconds`, `ConfigurationError` for a server
    that refuses the key.
    """
    waits = [_servers(settings, settings.me.llm_urls, settings.model_path)]
    if settings.me.summarization_llm_urls:
        waits.append(_servers(settings, settings.me.summarization_llm_urls, settings.summarization_model_path))
    if settings.environment.verifier_url is not None:
        waits.append(_verifier(settings.environment.verifier_url, settings.me.ready_seconds))
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def key_of(settings: RCSettings) -> SecretStr | None:
    """The servers' key, from the environment variable that the settings name. No message shows it from then on."""
    variable = settings.me.api_key_variable
    if variable is None:
        return None
    SECRETS.add([os.environ[variable]])
    return SecretStr(os.environ[variable])


async def _servers(settings: RCSettings, urls: str, model: str) -> None:
    client = HttpClient(HttpSettings(urls=split_urls(urls), model=model, api_key=key_of(settings)))
    client.open()
    try:
        await wait_until_ready(client, model, settings.me.ready_seconds)
    finally:
        await client.close()


async def _verifier(url: str, seconds: float) -> None:
    client = HttpClient(HttpSettings(urls=(url,), model="verifier"))
    client.open()
    give_up_at = time.monotonic() + seconds
    try:
        while (why := await _unhealthy(client)) is not None:
            if time.monotonic() >= give_up_at:
                raise EngineDeadError(
                    f"the verifier of environment.verifier_url was not ready within {seconds:g} s: {why}; start it, or "
                    "correct the address"
                )
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
    finally:
        await client.close()


async def _unhealthy(client: HttpClient) -> str | None:
    """Why `GET /health` does not say that it is ready; None if it does."""
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            reply = await client.ask(client.pool.servers[0], "GET", "/health")
    except (aiohttp.ClientError, OSError, EngineError) as error:
        return type(error).__name__
    return None if reply.is_ok else f"GET /health answered {reply.status}"
