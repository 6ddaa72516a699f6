"""`ng_status`: which servers the head server knows, and whether each answers now."""

import asyncio
from collections.abc import Mapping
from typing import Any

from rollstream.gym.servers.calls import JsonCalls
from rollstream.gym.servers.head import INSTANCES_ROUTE
from rollstream.gym.servers.options import StatusOptions
from rollstream.gym.servers.running import is_answering
from rollstream.process.terminal import Say
from rollstream.schemas.errors import EngineDeadError, EngineError

_SECONDS = 5.0


def show_status(options: StatusOptions, say: Say) -> bool:
    """Say one line a server; whether all answer. Raises `EngineDeadError` if there is no head server."""
    return asyncio.run(_show(f"http://{options.head_server.host}:{options.head_server.port}", say))


async def _show(head: str, say: Say) -> bool:
    calls = JsonCalls(seconds=_SECONDS, max_tries=1)
    await calls.start()
    try:
        found = (await calls.get(head + INSTANCES_ROUTE)).json_of(head)
        servers = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
        healthy = [await is_answering(calls, str(one.get("url"))) for one in servers]
    except EngineError as error:
        raise EngineDeadError(f"no head server answers at {head}: start ng_run ({error})") from error
    finally:
        await calls.close()
    for one, is_healthy in zip(servers, healthy, strict=True):
        say(_line(one, is_healthy))
    say(f"{len(servers)} servers found ({sum(healthy)} healthy, {len(servers) - sum(healthy)} unhealthy)")
    return bool(servers) and all(healthy)


def _line(one: Mapping[str, Any], is_healthy: bool) -> str:
    shown = {name: str(one.get(name))[:200] for name in ("process_name", "server_type", "name", "url", "pid", "log")}
    state = "healthy" if is_healthy else f"unhealthy ({one.get('state', 'unknown')})"
    again = f", started again {one['restarts']} times" if one.get("restarts") else ""
    return (
        f"{shown['process_name']} ({shown['server_type']}/{shown['name']}) at {shown['url']}, pid {shown['pid']}: "
        f"{state}{again}; log {shown['log']}"
    )
