"""The process of one server: `python -m rollstream.gym.servers.entry NAME`, with the configuration in a variable."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from uvicorn._types import ASGI3Application

from rollstream.gym.addresses import AGENTS, settings_of, url_of
from rollstream.gym.servers import agent, model, resources
from rollstream.gym.servers.calls import JsonCalls
from rollstream.gym.servers.config import secrets_of
from rollstream.gym.servers.plan import MODELS, GymServerPlan, planned
from rollstream.gym.servers.sessions import Sessions
from rollstream.gym.servers.settings import AgentSettings, ModelSettings, ResourcesSettings
from rollstream.http.keys import Keys
from rollstream.http.server import Address, HttpServer
from rollstream.http.settings import GuardSettings
from rollstream.process.entry import run_process
from rollstream.process.masking import SECRETS
from rollstream.process.settings.tools import ToolSettings
from rollstream.process.stop import Stop
from rollstream.tools.build import tool_sets
from rollstream.tools.protocol import ToolSet

CONFIG_VARIABLE: Final = "NEMO_GYM_CONFIG_DICT"
NAME_VARIABLE: Final = "NEMO_GYM_CONFIG_PATH"
"""As Gym names them, so that its programs find the same here."""
# Only this machine can ask; on a busy one a caller may stand still for seconds.
GUARD: Final = GuardSettings(
    header_seconds=60.0, body_seconds=60.0, body_bytes=2**26, max_calls=4096, max_connections=8192
)
_DRAIN_SECONDS: Final = 1.0
_MAX_ANSWER_BYTES: Final = 2**26

Config = Mapping[str, Any]


def main() -> None:
    """Be the server that the first argument names, until a signal."""
    run_process("gym", partial(_serve, sys.argv[1]))


async def _serve(name: str, stop: Stop) -> None:
    import yaml

    config = yaml.safe_load(os.environ.pop(CONFIG_VARIABLE))
    SECRETS.add(secrets_of(config))
    plan = next(one for one in planned(config) if one.name == name)
    async with _made(plan, config) as (app, routes):
        await answer(app, Address(host=plan.settings.host, port=plan.settings.port or 0), routes, stop.asked())


async def answer(app: ASGI3Application, address: Address, routes: tuple[str, ...], end: Any) -> None:
    """Answer at `address` until `end`, an awaitable, is done."""
    keys = Keys({}, address.host)
    server = HttpServer(app, name="gym", address=address, guard=GUARD, keys=keys, routes=routes)
    await server.start()
    try:
        await end
        await server.drain(_DRAIN_SECONDS)
    finally:
        await server.close()


@asynccontextmanager
async def _made(plan: GymServerPlan, config: Config) -> AsyncIterator[tuple[ASGI3Application, tuple[str, ...]]]:
    """The application of a server, and its routes."""
    settings = plan.settings
    if plan.kind == MODELS:
        assert isinstance(settings, ModelSettings)
        async with model_app(settings, speaks_chat=plan.implementation == "vllm_model") as app:
            yield app, model.ROUTES
    elif plan.kind == AGENTS:
        assert isinstance(settings, AgentSettings)
        async with agent_app(settings, config) as app:
            yield app, agent.ROUTES
    else:
        assert isinstance(settings, ResourcesSettings)
        async with resources_app(settings) as app:
            yield app, resources.ROUTES


@asynccontextmanager
async def model_app(settings: ModelSettings, *, speaks_chat: bool) -> AsyncIterator[ASGI3Application]:
    """A model server, with its client of the API."""
    headers = {"Authorization": f"Bearer {settings.api_key.get_secret_value()}"}
    async with _started(settings.call_seconds, settings.max_tries, headers) as calls:
        yield model.ModelServer(settings, calls, speaks_chat=speaks_chat).app()


@asynccontextmanager
async def agent_app(settings: AgentSettings, config: Config) -> AsyncIterator[ASGI3Application]:
    """An agent's server, with its clients of the other two."""
    resources_server = settings.resources_server
    is_stateless = settings_of(config, resources_server.type, resources_server.name).get("reverify_mode") == "stateless"
    tools = ToolSettings(
        kind="http",
        url=url_of(config, resources_server.type, resources_server.name),
        # A verdict that needs no session may be asked for again.
        replayable=("verify",) if is_stateless else (),
        # A tool's own error, which the model is to see.
        answers_500=True,
        max_sessions=GUARD.max_calls,
        open_seconds=settings.open_seconds,
        call_seconds=settings.tool_seconds,
        verify_seconds=settings.verify_seconds,
        max_answer_bytes=_MAX_ANSWER_BYTES,
    )
    model_url = url_of(config, settings.model_server.type, settings.model_server.name)
    # The model's server repeats by itself.
    async with tool_sets({"resources": tools}) as sets, _started(settings.run_seconds, 1, {}) as calls:
        yield agent.SimpleAgent(
            model_url, calls, sets["resources"], max_steps=settings.max_steps, run_seconds=settings.run_seconds
        ).app()


@asynccontextmanager
async def resources_app(settings: ResourcesSettings) -> AsyncIterator[ASGI3Application]:
    """A resources server, with the process of its class."""
    async with tool_sets({"tools": settings.tools()}) as sets:
        tools: ToolSet = sets["tools"]
        sessions = Sessions(tools, max_sessions=settings.max_sessions, idle_seconds=settings.session_seconds)
        sweeping = asyncio.create_task(sessions.close_idle())
        try:
            yield resources.ResourcesServer(sessions, tools, settings.reverify_mode).app()
        finally:
            sweeping.cancel()
            await sessions.close_all()


@asynccontextmanager
async def _started(seconds: float, max_tries: int, headers: Mapping[str, str]) -> AsyncIterator[JsonCalls]:
    calls = JsonCalls(seconds=seconds, max_tries=max_tries, headers=headers)
    await calls.start()
    try:
        yield calls
    finally:
        await calls.close()


if __name__ == "__main__":
    main()
