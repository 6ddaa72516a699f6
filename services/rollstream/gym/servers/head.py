"""The head server: it says where all others listen, and how they are."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from uvicorn._types import ASGI3Application

from rollstream.gym.addresses import CONFIG_ROUTE
from rollstream.gym.servers.answers import application
from rollstream.gym.servers.config import without_secrets

INSTANCES_ROUTE: Final = "/server_instances"
ROUTES: Final = (CONFIG_ROUTE, INSTANCES_ROUTE)


def head_app(config: Mapping[str, Any], instances: Callable[[], Sequence[Mapping[str, Any]]]) -> ASGI3Application:
    """The configuration, without keys and passwords, and what `instances` says of each server now."""
    import yaml

    text = yaml.safe_dump(without_secrets(config), sort_keys=False, allow_unicode=True)

    async def configuration(request: Request) -> Response:
        return JSONResponse(text)

    async def servers(request: Request) -> Response:
        return JSONResponse(list(instances()))

    return application({}, {CONFIG_ROUTE: configuration, INSTANCES_ROUTE: servers})
