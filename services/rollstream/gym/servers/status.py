"""`ng_status`: which servers the head server knows, and whether each answers now.

Whoever listens on the head server's port may name any address. So only this machine and the head server's are asked.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from rollstream.gym.addresses import may_be_asked
from rollstream.gym.options import HeadServer
from rollstream.gym.servers.calls import JsonCalls
from rollstream.gym.servers.head import INSTANCES_ROUTE
from rollstream.gym.servers.options import StatusOptions
from rollstream.gym.servers.running import is_answering
from rollstream.process.terminal import Say
from rollstream.schemas.errors import EngineDeadError, EngineError

_SECONDS = 5.0


def show_status(options: StatusOptions, say: Say) -> bool:
    """Say one line a server; whether all answer. Raises `EngineDeadError` if there is no head server."""
    return asyncio.run(_show(options.head_server, say))


async def _show(server: HeadServer, say: Say) -> bool:
    head, calls = f"http://{server.host}:{server.port}", JsonCalls(seconds=_SECONDS, max_tries=1)
    await calls.start()
    try:
        found = (await calls.get(head + INSTANCES_ROUTE)).json_of(head)
        servers = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
        asked = [may_be_asked(str(one.get("url")), server.host) for one in servers]
        healthy = [may and await is_answering(calls, str(one["url"])) for one, may in zip(servers, asked, strict=True)]
    except EngineError as error:
        raise EngineDeadError(f"no head server answers at {head}: start ng_run ({error})") from error
    finally:
        await calls.close()
    for one, may, is_healthy in zip(servers, asked, healthy, strict=True):
        say(_line(one, is_healthy) if may else f"{_line(one, is_healthy)}; not asked: it is on another machine")
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
