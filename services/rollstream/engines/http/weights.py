"""Loads weight versions into servers, by vLLM's or SGLang's own routes. They read the files by the path that we name.

vLLM (routes of VLLM_SERVER_DEV_MODE=1): pause → reload → label → resume. Every call carries its version as cache salt,
since a reload does not empty the prefix cache. SGLang: pause → reload → continue; it empties the cache itself. Calls
that run are paused and go on, since what is broken off is lost: with updates every 2 s no answer longer than that would
ever come, and the policy would learn from its short answers alone.

A server that was gone, or was asked nothing for some seconds, may have started anew, with the weights that it was
started with: before it is asked again, its label is compared, and its weights are loaded if it is another one.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp

from rollstream.engines.http.client import HttpClient
from rollstream.engines.http.pool import Server
from rollstream.engines.http.replies import Reply
from rollstream.engines.http.settings import HttpSettings
from rollstream.engines.model_directory import read_config
from rollstream.process.terminal import shown
from rollstream.schemas.errors import ConfigurationError, EngineDeadError, EngineError

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
_OWN_EXTENSION: Final = "rollstream.engines.vllm.worker.ReloadExtension"


class ServerWeights:
    """The weights of all servers of a client."""

    def __init__(
        self, client: HttpClient, settings: HttpSettings, weight_version: int, path: Path | None = None
    ) -> None:
        """`weight_version`: of the weights in `path`; without a path, of those that the servers started with."""
        self._client = client
        self._settings = settings
        self.version, self._path = weight_version, path or Path()
        self._extended: set[Server] = set()
        self._plain_on_cpu: set[Server] = set()
        self._locks = {server: asyncio.Lock() for server in client.pool.servers}
        self._looks = {server: asyncio.Lock() for server in client.pool.servers}

    async def start_all(self, servers: Iterable[Server]) -> None:
        """`start` servers that are ready, at least one; one that fails rests. Raises `EngineDeadError` if all fail."""
        await self._of_all(servers, self.start, "no server can be updated")

    async def _of_all(self, servers: Iterable[Server], do: Callable[[Server], Awaitable[T]], failure: str) -> list[T]:
        """What `do` gives for each server; one that fails rests. Raises `EngineDeadError` with `failure` if all fail.

        It is tried again before its next call.
        """
        asked = list(servers)
        done: list[T] = []
        problems: list[str] = []
        outcomes = await asyncio.gather(*map(do, asked), return_exceptions=True)
        for server, outcome in zip(asked, outcomes, strict=True):
            if isinstance(outcome, EngineError):
                self._client.pool.failed(server, str(outcome))
                problems.append(f"{server.root}: {outcome}")
                _LOG.error("%s rests: %s", server.root, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                done.append(outcome)
        if not done:
            raise EngineDeadError(f"{failure}: {'; '.join(problems)}")
        return done

    async def start(self, server: Server) -> None:
        """Label the weights that the server started with; it goes on if it was paused.

        Raises `ConfigurationError` if it can't be updated, or its logprobs are not those of what it samples from, and
        `EngineError` if it does not do what is asked.
        """
        if self._settings.weight_updates == "sglang":
            return
        await self._look_at(server)
        # A process that was killed during an update left the server paused.
        await self._done(server, "/resume")
        await self._label_as(server, self.version)
        server.seen_at = time.monotonic()

    async def _look_at(self, server: Server) -> None:
        """Raise `ConfigurationError` if a vLLM server can't be updated as the settings say; note how it is."""
        reply = await self._asked(server, "GET", "/server_info?config_format=json")
        if reply.status in (404, 405):
            raise ConfigurationError(
                f"{server.root} has no routes to load weights: start vLLM with VLLM_SERVER_DEV_MODE=1, or set "
                "http.weight_updates to 'none' where its weights stay"
            )
        _require_done(reply, server, "/server_info")
        mode = _setting(reply, "model_config", "logprobs_mode")
        if self._settings.tokenizer_path is not None and mode != "processed_logprobs":
            raise ConfigurationError(
                f"{server.root} has logprobs_mode {shown(mode)}, whose logprobs are not those of the distribution that "
                "it samples from: start vLLM with --logprobs-mode processed_logprobs"
            )
        if _setting(reply, "parallel_config", "worker_extension_cls") == _OWN_EXTENSION:
            self._extended.add(server)
        elif _setting(reply, "device_config", "device") == "cpu":
            self._plain_on_cpu.add(server)

    async def load(self, version: int, path: Path) -> float:
        """Load a version into every server; the longest stall, seconds. Raises `EngineDeadError` if none loads it."""
        self.version, self._path = version, path
        return max(await self._of_all(self._client.pool.servers, self._load, f"no server loaded version {version}"))

    async def load_anew(self, server: Server) -> float:
        """Load the current version into a server that nothing is known of; its stall, seconds.

        Raises `ConfigurationError` if it can't be updated, and `EngineError` if it does not do what is asked.
        """
        if self._settings.weight_updates == "vllm":
            await self._look_at(server)
        return await self._load(server)

    async def confirm(self, server: Server) -> None:
        """See that a server which may have started anew has the current version; else load it. Raises `EngineError`."""
        # One of the calls that wait for it looks and loads; the others then find it as it should be.
        async with self._looks[server]:
            await self._confirm(server)

    async def _confirm(self, server: Server) -> None:
        if await self._label(server) == shown(str(self.version)):
            server.weight_version = self.version
            return
        try:
            # Labeled only with weights that it has: a load that fails must not leave the label of what it lacks.
            if self._path == Path():
                await self.start(server)
            else:
                await self.load_anew(server)
        except ConfigurationError as error:
            raise EngineError(str(error)) from error

    async def _load(self, server: Server) -> float:
        load = self._load_vllm if self._settings.weight_updates == "vllm" else self._load_sglang
        # A server that returns may be loaded at the moment of an update.
        async with self._locks[server]:
            version, path = self.version, self._path
            with self._client.pool.updating(server):
                stall = await load(server, version, path)
                server.weight_version, server.seen_at = version, time.monotonic()
        return stall

    async def _load_vllm(self, server: Server, version: int, path: Path) -> float:
        started = time.monotonic()
        await self._done(server, "/pause?mode=keep")
        try:
            await self._reload_vllm(server, path)
            await self._label_as(server, version)
        finally:
            await self._done(server, "/resume")
        return time.monotonic() - started

    async def _reload_vllm(self, server: Server, path: Path) -> None:
        if server in self._extended:
            rpc = {"method": "load_version", "kwargs": {"path": str(path)}}
        elif server in self._plain_on_cpu and read_config(path).get("tie_word_embeddings"):
            raise EngineError(
                f"{server.root} runs on a CPU, where vLLM's own reload leaves a tied output head as it was: start it "
                f"with --worker-extension-cls {_OWN_EXTENSION}"
            )
        else:
            rpc = {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
        reply = await self._done(server, "/collective_rpc", rpc)
        results = reply.fields.get("results")
        # One of each of its processes: nothing, or what went wrong. Silence is no proof that new weights are there.
        if not isinstance(results, list) or not results or any(one not in (None, "None") for one in results):
            raise EngineError(f"{server.root} did not load {path}: {shown(results)}")

    async def _label_as(self, server: Server, version: int) -> None:
        reply = await self._done(server, "/update_weight_version", {"new_version": str(version)})
        if reply.fields.get("success") is not True:
            raise EngineError(f"{server.root} did not take the label {version}: {reply.message}")

    async def _load_sglang(self, server: Server, version: int, path: Path) -> float:
        started = time.monotonic()
        # Its keys and values are computed again by the new weights. Servers without the route wait for running calls.
        paused = await self._asked(server, "POST", "/pause_generation", {"mode": "retract"})
        if not paused.is_ok and paused.status not in (404, 405):
            raise EngineError(f"{server.root}/pause_generation answered {paused.status}: {paused.message}")
        try:
            body = {"model_path": str(path), "weight_version": str(version), "abort_all_requests": False}
            reply = await self._done(server, "/update_weights_from_disk", body)
            if reply.fields.get("success") is not True:
                raise EngineError(f"{server.root} did not load {path}: {reply.message}")
        finally:
            if paused.is_ok:
                await self._done(server, "/continue_generation", {})
        return time.monotonic() - started

    async def _label(self, server: Server) -> str | None:
        """The version that the server says it has, as `shown`."""
        routes = ("/weight_info",) if self._settings.weight_updates == "vllm" else ("/model_info", "/get_model_info")
        for route in routes:
            reply = await self._asked(server, "GET", route)
            if reply.is_ok and isinstance(reply.body, dict):
                return shown(reply.body.get("weight_version"))
        return None

    async def _done(self, server: Server, route: str, body: Any = None) -> Reply:
        reply = await self._asked(server, "POST", route, body)
        _require_done(reply, server, route)
        return reply

    async def _asked(self, server: Server, method: str, route: str, body: Any = None) -> Reply:
        try:
            async with asyncio.timeout(self._settings.ready_seconds):
                return await self._client.ask(server, method, route, body)
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"{server.root}{route}: {type(error).__name__}: {error}") from error


def _require_done(reply: Reply, server: Server, route: str) -> None:
    if not reply.is_ok:
        raise EngineError(f"{server.root}{route} answered {reply.status}: {reply.message}")


def _setting(reply: Reply, *names: str) -> Any:
    """A value of vLLM's configuration, as `/server_info` shows it; None if it is not there."""
    found = reply.body.get("vllm_config") if isinstance(reply.body, dict) else None
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found
