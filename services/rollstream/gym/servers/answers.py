"""What the servers have in common: JSON in, JSON out, and an error that says what was wrong."""

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn._types import ASGI3Application

from rollstream.http.middleware import json_of
from rollstream.http.refusals import error_content
from rollstream.process.masking import SECRETS
from rollstream.schemas.errors import EngineError, FailedSampleError, RefusedRequestError, ToolError

Handler = Callable[[Request], Awaitable[Response]]
_SHOWN: Final = 2000
_STATUSES: Final[dict[type[Exception], HTTPStatus]] = {
    # The task is at fault, and would be again.
    FailedSampleError: HTTPStatus.BAD_REQUEST,
    # Another server is: what it was asked for is unresolved.
    ToolError: HTTPStatus.BAD_GATEWAY,
    EngineError: HTTPStatus.BAD_GATEWAY,
}


def application(posts: Mapping[str, Handler], gets: Mapping[str, Handler] | None = None) -> ASGI3Application:
    """An application with these routes, and `GET /`, which says that it is there."""
    routes = [Route(path, _handled(handler), methods=["POST"]) for path, handler in posts.items()]
    found = {"/": _alive, **(gets or {})}
    routes += [Route(path, _handled(handler), methods=["GET"]) for path, handler in found.items()]
    handlers = {HTTPException: _not_here}
    return cast(ASGI3Application, Starlette(routes=routes, exception_handlers=cast(Any, handlers)))


def object_of(request: Request) -> dict[str, Any]:
    """The body, an object; an empty one is none. Raises `RefusedRequestError`."""
    found = json_of(request.scope)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise refused(f"the body is a {type(found).__name__}, not an object")
    return found


def items_of(asked: Mapping[str, Any], name: str) -> list[Any]:
    """The list in a field, empty if the field is null or missing. Raises `RefusedRequestError` for anything else."""
    found = asked.get(name)
    if not isinstance(found, list | None):
        raise refused(f"`{name}` is a {type(found).__name__}, it must be a list")
    return found or []


def input_of(asked: Mapping[str, Any]) -> list[Any]:
    """The items of `input`; a text is a message of the user."""
    given = asked.get("input")
    return [{"role": "user", "content": given}] if isinstance(given, str) else items_of(asked, "input")


def refused(why: str, status: int = HTTPStatus.BAD_REQUEST, reason: str = "invalid") -> RefusedRequestError:
    """The error of a request that can't be taken."""
    return RefusedRequestError(status, reason, why)


def _handled(handler: Handler) -> Handler:
    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except RefusedRequestError as error:
            return _error(request, error.status, str(error), error.reason)
        except tuple(_STATUSES) as error:
            status = next(status for kind, status in _STATUSES.items() if isinstance(error, kind))
            return _error(request, status, str(error), type(error).__name__)

    return handle


def _error(request: Request, status: int, message: str, code: str) -> Response:
    said = SECRETS.masked(message)[:_SHOWN]
    return JSONResponse(error_content(request.url.path, HTTPStatus(status), said, code), status)


async def _alive(request: Request) -> Response:
    return JSONResponse({"status": "success"})


async def _not_here(request: Request, error: HTTPException) -> Response:
    return _error(request, error.status_code, f"no {request.method} {request.url.path[:200]} here", "not_here")
