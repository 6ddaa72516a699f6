"""The two routes of ingest as a FastAPI application; `http/` stands before it and has read the body."""

from http import HTTPStatus
from typing import Final, cast

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from uvicorn._types import ASGI3Application

from rollstream.http.middleware import client_of, json_of
from rollstream.http.refusals import error_content
from rollstream.ingest import metrics
from rollstream.ingest.entries import MOST_KEY_CHARACTERS, invalid
from rollstream.ingest.inlet import Inlet, Kind
from rollstream.ingest.records import Sender
from rollstream.schemas.errors import RefusedRequestError
from rollstream.schemas.record import utc_now

ROUTES: Final = ("/v1/feedback", "/v1/prompts")


def build_app(inlet: Inlet) -> ASGI3Application:
    """The application. Its answers have OpenAI's shape where they say that something is wrong."""
    app = FastAPI(title="rollstream ingest", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(RefusedRequestError, _refused)
    app.add_exception_handler(HTTPException, _not_here)

    @app.post("/v1/feedback")
    async def feedback(request: Request) -> JSONResponse:
        return await _answer(inlet, "feedback", request)

    @app.post("/v1/prompts")
    async def prompts(request: Request) -> JSONResponse:
        return await _answer(inlet, "prompt", request)

    return cast(ASGI3Application, app)


async def _answer(inlet: Inlet, kind: Kind, request: Request) -> JSONResponse:
    client, key = client_of(request.scope)
    sender = Sender(client=client, key=key, received_at=utc_now())
    taken = await inlet.take(kind, json_of(request.scope), sender, _idempotency_key(request))
    if not taken.num_unconfirmed:
        return JSONResponse({"accepted": taken.confirmed}, HTTPStatus.ACCEPTED)
    metrics.REFUSED.labels(reason="unconfirmed").inc()
    error = error_content(
        request.url.path,
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"the broker has not confirmed {taken.num_unconfirmed} entries within {inlet.settings.confirm_seconds:g} s: "
        "send the request again, with the same Idempotency-Key; what is written twice counts once",
        "unconfirmed",
    )
    return JSONResponse({**error, "accepted": taken.confirmed}, HTTPStatus.SERVICE_UNAVAILABLE)


def _idempotency_key(request: Request) -> str | None:
    found = request.headers.getlist("idempotency-key")
    if not found:
        return None
    if len(found) > 1 or not 0 < len(found[0]) <= MOST_KEY_CHARACTERS or not found[0].isprintable():
        raise invalid(f"Idempotency-Key has 1 to {MOST_KEY_CHARACTERS} printable characters, and is sent once")
    return found[0]


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RefusedRequestError)
    metrics.REFUSED.labels(reason=error.reason).inc()
    return _shaped(request, error.status, str(error), error.reason)


async def _not_here(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return _shaped(request, error.status_code, f"there are POST {' and POST '.join(ROUTES)}", "not_here")


def _shaped(request: Request, status: int, message: str, code: str) -> JSONResponse:
    return JSONResponse(error_content(request.url.path, HTTPStatus(status), message, code), status)
