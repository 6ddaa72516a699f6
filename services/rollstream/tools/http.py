"""Tools of kind `http`: a resources server of NeMo Gym, asked by POST: /seed_session, /TOOL, /verify, /close_session.

A session's identity travels in the server's cookies, and in two headers for servers that know them (`wire.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import SimpleCookie
from typing import Any, Final

import aiohttp
from pydantic_core import from_json, to_json
from tenacity import AsyncRetrying, RetryError, retry_if_exception_type, stop_after_attempt, wait_random_exponential
from yarl import URL

from rollstream.engines.http.bodies import has_more_values, read_body
from rollstream.engines.http.outgoing import open_client
from rollstream.process.settings.tools import ToolSettings
from rollstream.schemas.errors import EngineError, FailedSampleError, FencedToolError, RepeatableToolError, ToolError
from rollstream.schemas.failure import FailureCode
from rollstream.tools.gym_form import response_of, row_of
from rollstream.tools.sessions import Said, by_name
from rollstream.tools.wire import session_headers

FENCED: Final = 409
RESERVED: Final = frozenset(("seed_session", "verify", "close_session", "aggregate_metrics", "reverify_mode", "mcp"))
"""Routes of the server that are no tools."""
_BUSY: Final = 429
_NO_ROUTE: Final = (404, 405, 501)
_REFUSED_KEY: Final = (401, 403)
_BAD_TASK: Final = (400, 422)
_MAX_COOKIES: Final = 16
_MAX_COOKIE_CHARACTERS: Final = 8192


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")

    @property
    def is_ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def shown(self) -> str:
        """For an error."""
        return f"status {self.status}: {self.text[:300]}"


class HttpTools:
    """Connects to one server. `start` comes first, `close` last."""

    def __init__(self, settings: ToolSettings) -> None:
        self.settings = settings
        self.http: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Make the client. Nothing is asked yet."""
        options = {name: value.get_secret_value() for name, value in self.settings.options.items()}
        # Sessions are bounded, and so are the calls of one. Each has cookies of its own.
        self.http = open_client({"Content-Type": "application/json", **options})

    async def connect(self, session_id: str, attempt: int, task: Mapping[str, Any]) -> "HttpConnection":
        """Seed a session with the task's row. Raises `FailedSampleError` if the server does not take the task."""
        schemas = self.settings.schemas or tuple(task.get("tools") or ())
        _refuse_bad_tools(schemas)
        connection = HttpConnection(self, session_id, attempt, task, schemas)
        await connection.seed()
        return connection

    async def close(self) -> None:
        """Close the client."""
        if self.http is not None:
            await self.http.close()


class HttpConnection:
    """One session of a server (`Connection`)."""

    def __init__(
        self, tools: HttpTools, session_id: str, attempt: int, task: Mapping[str, Any], schemas: tuple[str, ...]
    ) -> None:
        self._tools = tools
        self._settings = tools.settings
        self._session_id = session_id
        self._task = task
        self._headers = session_headers(session_id, attempt)
        self._cookies: dict[str, str] = {}
        self.schemas = schemas

    async def seed(self) -> None:
        """Begin the session."""
        reply = await self._post("seed_session", row_of(self._task))
        if reply.status in _BAD_TASK:
            raise FailedSampleError(FailureCode.BAD_PROMPT, f"the tools' server refuses the task, {reply.shown}")
        _refuse(reply, "seed_session")

    async def call(self, name: str, arguments: Mapping[str, Any], *, is_replayable: bool) -> Said:
        """What the tool says; its own refusal (400 to 499) is an answer too."""
        reply = await self._post(name, arguments, repeats=is_replayable, takes_500=self._settings.answers_500)
        return Said(reply.text, None if reply.is_ok else f"status {reply.status}")

    async def verify(self, said: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The whole answer of the server on the sample, or on the `response` that `said` has.

        A verification that may have arrived is asked for again only if the settings say so: it may cost, or count.
        """
        response = said.get("response") or response_of(self._session_id, self._task, said)
        asked = {**row_of(self._task), "response": response}
        reply = await self._post("verify", asked, repeats="verify" in self._settings.replayable)
        _refuse(reply, "verify")
        if has_more_values(reply.content, self._settings.max_answer_bytes):
            raise ToolError("verify answered with more values than a verdict can need")
        try:
            verdict = from_json(reply.content, allow_inf_nan=False)
        except ValueError as error:
            raise ToolError(f"verify answered with what is no JSON: {error}") from error
        if not isinstance(verdict, dict):
            raise ToolError(f"verify answered with a {type(verdict).__name__}, not an object")
        return verdict

    async def leave(self) -> None:
        """Nothing of it is here."""

    async def close(self) -> None:
        """Close the session; servers before /close_session have no such route."""
        reply = await self._post("close_session", {})
        if reply.status not in _NO_ROUTE:
            _refuse(reply, "close_session")

    async def _post(
        self, route: str, body: Mapping[str, Any], *, repeats: bool = True, takes_500: bool = False
    ) -> _Reply:
        """The reply, unless it says nothing of what was asked. `repeats`: also what may have arrived is asked again."""
        trying = AsyncRetrying(
            retry=retry_if_exception_type(RepeatableToolError),
            stop=stop_after_attempt(self._settings.max_tries),
            wait=wait_random_exponential(multiplier=0.1, max=5.0),
        )
        content = to_json(body)
        try:
            return await trying(self._try, route, content, repeats=repeats, takes_500=takes_500)
        except RetryError as error:
            why = error.last_attempt.exception()
            raise ToolError(f"{route}: {error.last_attempt.attempt_number} tries failed, the last: {why}") from why

    async def _try(self, route: str, content: bytes, *, repeats: bool, takes_500: bool) -> _Reply:
        try:
            reply = await self._once(route, content)
        except aiohttp.ClientConnectorError as error:  # it did not arrive
            raise RepeatableToolError(f"no connection: {type(error).__name__}: {error}") from error
        except (aiohttp.ClientError, OSError, EngineError) as error:
            why = f"{type(error).__name__}: {str(error)[:300]}"
            raise _again(repeats, f"{route} was broken off, {why}") from error
        # Whatever else the client raises, the bytes of a stranger caused it.
        except (ValueError, ArithmeticError, LookupError, TypeError) as error:
            raise ToolError(f"{route} gave no readable reply: {type(error).__name__}: {str(error)[:300]}") from error
        if reply.status == _BUSY:
            raise RepeatableToolError(reply.shown)
        if reply.status == FENCED:
            raise FencedToolError(f"{route}: the session is another process's, or not open any more, {reply.shown}")
        if reply.status in _REFUSED_KEY:
            raise ToolError(f"{route}: the server refuses the key among the options, {reply.shown}")
        if 300 <= reply.status < 400:
            raise ToolError(f"{route}: the server redirects, which is not followed: correct the url, {reply.shown}")
        if reply.status >= 500 and not (takes_500 and reply.status == 500):
            raise _again(repeats or reply.status == 501, f"{route} failed, {reply.shown}")
        return reply

    async def _once(self, route: str, content: bytes) -> _Reply:
        if self._tools.http is None or self._tools.http.closed:
            raise ToolError("the tools are closed")
        async with self._tools.http.post(
            URL(f"{self._settings.url}/{route}"),
            data=content,
            headers=self._headers,
            cookies=self._cookies,
            allow_redirects=False,
        ) as response:
            found = await read_body(response, self._settings.max_answer_bytes)
            self._keep(response.cookies)
            return _Reply(response.status, found)

    def _keep(self, cookies: SimpleCookie) -> None:
        for name, morsel in cookies.items():
            if morsel["max-age"] in ("0", 0):
                self._cookies.pop(name, None)
            else:
                self._cookies[name] = morsel.value
        size = sum(len(name) + len(value) for name, value in self._cookies.items())
        if len(self._cookies) > _MAX_COOKIES or size > _MAX_COOKIE_CHARACTERS:
            raise ToolError(
                f"the server sets {len(self._cookies)} cookies of {size} characters, the bounds are {_MAX_COOKIES} and "
                f"{_MAX_COOKIE_CHARACTERS}"
            )


def _again(may: bool, why: str) -> ToolError:
    """The error of something that may have arrived."""
    return RepeatableToolError(why) if may else ToolError(f"{why}; it may have arrived, and is not declared replayable")


def _refuse(reply: _Reply, route: str) -> None:
    if not reply.is_ok:
        raise ToolError(f"{route}: {reply.shown}")


def _refuse_bad_tools(schemas: tuple[str, ...]) -> None:
    """The tools of a prompt are a stranger's."""
    try:
        reserved = sorted(by_name(schemas).keys() & RESERVED)
    except ToolError as error:
        raise FailedSampleError(FailureCode.BAD_PROMPT, f"its tools can't be called: {error}") from error
    if reserved:
        raise FailedSampleError(FailureCode.BAD_PROMPT, f"{reserved} are routes of the server, and no tools")
