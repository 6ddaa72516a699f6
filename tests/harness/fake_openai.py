"""An OpenAI-compatible server for tests: somebody else's program, which fails on demand and keeps what it was asked.

It runs in a thread of the test (`fake_openai`), or as a process where the client's CPU time is measured:
`python -m tests.harness.fake_openai PORT LATENCY_SECONDS`, which answers `GET /records` with its counts.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from aiohttp import web

from tests.harness.threads import application, started

Kind = Literal["vllm", "sglang", "litellm", "plain"]
VERSIONS = {"vllm": "0.32.0", "sglang": "0.5.9", "litellm": "1.80.0"}
MAX_MODEL_LEN = 4096
TOKEN = 4
"""The id of every sampled token but the last."""
LAST_TOKEN = 1
TOKENS_TEXT = "111"
"""What these tokens are in the tokenizer of `local/tiny_model.py`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request for an answer."""

    path: str
    body: dict[str, Any]
    authorization: str


@dataclass(slots=True, kw_only=True)
class Planned:
    """What happens to one request instead of an answer. `drop`: the connection is closed without one."""

    status: int = 200
    message: str = "planned"
    headers: dict[str, str] = field(default_factory=dict)
    drop: bool = False
    body: bytes | None = None


WITHOUT_DATABASE: Final = Planned(
    status=400, body=b'{"error": {"message": "planned", "type": "no_db_connection", "param": null, "code": "400"}}'
)
"""What LiteLLM without a database answers to a key that is not its own."""


@dataclass(slots=True, kw_only=True)
class FakeOpenAI:
    """How the server behaves, and what it saw. All may be changed while it runs."""

    kind: Kind = "plain"
    models: tuple[str, ...] = ("tiny",)
    api_key: str | None = None
    latency_seconds: float = 0.0
    latency_of: Callable[[int], float] | None = None
    """The same of the answer with this number, from 0."""
    answer: Callable[[dict[str, Any]], str] = lambda body: "yes"
    choice: dict[str, Any] = field(default_factory=dict)
    """Fields of the answer's choice that replace those it would have."""
    usage: dict[str, Any] | None = field(default_factory=lambda: {"prompt_tokens": 7, "completion_tokens": 3})
    logprobs_mode: str = "processed_logprobs"
    device: str = "cuda"
    reports_spans: bool = False
    can_pause: bool = True
    """Whether SGLang's server is of a version that has `/pause_generation`."""
    is_ready: bool = True
    planned: deque[Planned] = field(default_factory=deque)
    drops: Callable[[dict[str, Any]], bool] = lambda body: False
    """At which requests the connection is closed, each time."""
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    routes: list[str] = field(default_factory=list)
    """Every request but those for answers, as `GET /path`."""
    in_flight: int = 0
    most_in_flight: int = 0
    num_model_calls: int = 0
    """Answers, and what LiteLLM's `GET /health` and SGLang's ask the models."""
    weight_version: str = "default"
    loaded: list[str] = field(default_factory=list)
    """Directories that weights were loaded from."""
    load_status: int = 200
    info_status: int = 200
    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    _abort: list[asyncio.Event] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Without `/v1`."""
        return f"http://127.0.0.1:{self.port}"

    def application(self) -> web.Application:
        """The routes of a server of this kind."""
        self.is_open.set()
        app = web.Application(middlewares=[self._note], client_max_size=2**26)
        add = app.router
        add.add_post("/v1/chat/completions", self._chat)
        add.add_post("/v1/completions", self._completions)
        add.add_get("/v1/models", self._list_models)
        add.add_get("/records", self._records)
        if self.kind != "plain":
            add.add_get("/health", self._health)
        if self.kind == "litellm":
            add.add_get("/health/readiness", self._readiness)
        if self.kind == "vllm":
            add.add_get("/version", self._version)
            add.add_get("/server_info", self._server_info)
            add.add_get("/weight_info", self._weight_info)
            add.add_post("/pause", self._pause)
            add.add_post("/resume", self._resume)
            add.add_post("/collective_rpc", self._reload)
            add.add_post("/update_weight_version", self._label)
        if self.kind == "sglang":
            add.add_get("/model_info", self._weight_info)
            add.add_post("/update_weights_from_disk", self._update_from_disk)
            if self.can_pause:
                add.add_post("/pause_generation", self._pause_generation)
                add.add_post("/continue_generation", self._resume)
        return app

    @web.middleware
    async def _note(self, request: web.Request, handler: Any) -> web.StreamResponse:
        is_answer = request.path in ("/v1/chat/completions", "/v1/completions")
        if not is_answer:
            self.routes.append(f"{request.method} {request.path_qs}")
        authorization = request.headers.get("Authorization", "")
        if self.api_key is not None and request.path.startswith("/v1") and authorization != f"Bearer {self.api_key}":
            return _error(401, f"Incorrect API key provided: {authorization}")
        if not is_answer:
            return await handler(request)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await handler(request)
        finally:
            self.in_flight -= 1

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        refused = await self._work(request, body)
        message = {"role": "assistant", "content": self.answer(body)}
        choice = {"index": 0, "message": message, "finish_reason": "stop", **self.choice}
        return refused or self._answer("chat.completion", body, choice)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        version = self.weight_version
        refused = await self._work(request, body)
        choice: dict[str, Any] = {"index": 0, "text": self.answer(body), "finish_reason": "stop"}
        if body.get("return_token_ids") and self.kind == "vllm":
            token_ids = [TOKEN] * 3 + [LAST_TOKEN]
            choice["text"] = TOKENS_TEXT
            choice["token_ids"] = token_ids
            choice["prompt_token_ids"] = body["prompt"]
            choice["logprobs"] = {"token_logprobs": [-0.25 * (1 + place) for place in range(len(token_ids))]}
        if body.get("return_weight_versions") and self.reports_spans:
            places = [
                {"version": version, "start": 0, "end": 1},
                {"version": self.weight_version, "start": 1, "end": 4},
            ]
            choice["weight_versions"] = places if version != self.weight_version else [{**places[1], "start": 0}]
        counted = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(choice.get("token_ids", ()))}
        usage = counted if "token_ids" in choice else None
        return refused or self._answer("text_completion", body, {**choice, **self.choice}, usage)

    async def _work(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse | None:
        """Take the time of an answer; what is sent instead of one."""
        self.asked.append(Asked(path=request.path, body=body, authorization=request.headers.get("Authorization", "")))
        if self.planned:
            return _planned(self.planned.popleft(), request)
        if self.drops(body):
            return _planned(Planned(drop=True), request)
        if body.get("model") not in self.models:
            return _error(404, f"The model `{body.get('model')}` does not exist.")
        latency = self.latency_seconds if self.latency_of is None else self.latency_of(self.num_model_calls)
        self.num_model_calls += 1
        aborted = asyncio.Event()
        self._abort.append(aborted)
        try:
            async with asyncio.timeout(latency):
                await aborted.wait()
            return self._answer("", body, {"index": 0, "text": "", "finish_reason": "abort"})
        except TimeoutError:
            await self.is_open.wait()
            return None
        finally:
            self._abort.remove(aborted)

    def _answer(
        self, kind: str, body: dict[str, Any], choice: dict[str, Any], counted: dict[str, int] | None = None
    ) -> web.Response:
        usage = counted or self.usage
        answer = {"id": "answer-1", "object": kind, "model": body["model"], "choices": [choice], "usage": usage}
        return web.json_response(answer)

    async def _list_models(self, request: web.Request) -> web.Response:
        cards = [{"id": model, "object": "model", "owned_by": self.kind} for model in self.models]
        if self.kind in ("vllm", "sglang"):
            cards = [{**card, "max_model_len": MAX_MODEL_LEN} for card in cards]  # type: ignore[dict-item]
        return web.json_response({"object": "list", "data": cards}) if self.is_ready else _error(503, "loading")

    async def _health(self, request: web.Request) -> web.Response:
        if self.kind != "vllm":  # both ask the models
            self.num_model_calls += len(self.models)
        return web.Response(status=200 if self.is_ready else 503)

    async def _readiness(self, request: web.Request) -> web.Response:
        answer = {"status": "healthy", "litellm_version": VERSIONS["litellm"]}
        return web.json_response(answer) if self.is_ready else _error(503, "loading")

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": VERSIONS["vllm"]})

    async def _server_info(self, request: web.Request) -> web.Response:
        found = {"model_config": {"logprobs_mode": self.logprobs_mode}, "device_config": {"device": self.device}}
        return (
            web.json_response({"vllm_config": found}) if self.info_status == 200 else _error(self.info_status, "busy")
        )

    async def _weight_info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.weight_version, "version": VERSIONS["sglang"]})

    async def _pause_generation(self, request: web.Request) -> web.Response:
        self.is_open.clear()
        if (await request.json())["mode"] == "abort":
            self._abort_all()
        return web.json_response({"status": "ok"})

    async def _pause(self, request: web.Request) -> web.Response:
        self.is_open.clear()
        if request.query["mode"] == "abort":
            self._abort_all()
        return web.json_response({"status": "paused"})

    async def _resume(self, request: web.Request) -> web.Response:
        self.is_open.set()
        return web.json_response({"status": "resumed"})

    async def _reload(self, request: web.Request) -> web.Response:
        if self.load_status != 200:
            return _error(self.load_status, "no such weights")
        self.loaded.append((await request.json())["kwargs"]["weights_path"])
        return web.json_response({"results": [None]})

    async def _label(self, request: web.Request) -> web.Response:
        self.weight_version = (await request.json())["new_version"]
        return web.json_response({"success": True})

    async def _update_from_disk(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.load_status != 200:
            return web.json_response({"success": False, "message": "no such weights"}, status=self.load_status)
        if body["abort_all_requests"]:
            self._abort_all()
        self.loaded.append(body["model_path"])
        self.weight_version = body["weight_version"]
        return web.json_response({"success": True, "message": "loaded"})

    async def _records(self, request: web.Request) -> web.Response:
        return web.json_response({"asked": len(self.asked), "most_in_flight": self.most_in_flight})

    def _abort_all(self) -> None:
        for event in self._abort:
            event.set()


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "Error", "code": status}}, status=status)


def _planned(planned: Planned, request: web.Request) -> web.StreamResponse:
    if planned.drop:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()
    if planned.body is not None:
        return web.Response(status=planned.status, body=planned.body, headers=planned.headers)
    answer = _error(planned.status, planned.message)
    answer.headers.update(planned.headers)
    return answer


@contextmanager
def fake_openai(server: FakeOpenAI | None = None, **behavior: Any) -> Iterator[FakeOpenAI]:
    """The server, in a thread, until the block ends. A `server` that ran before gets its port back."""
    fake = server or FakeOpenAI(**behavior)
    with application(fake.application(), fake.port) as fake.port:
        yield fake


async def _serve(port: int, latency_seconds: float) -> None:
    fake = FakeOpenAI(latency_seconds=latency_seconds, port=port)
    await started(fake.application(), port)
    sys.stdout.write(f"{fake.url}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2])))
