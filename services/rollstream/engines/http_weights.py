"""Loads weight versions into servers, by vLLM's or SGLang's own routes. They read the files by the path that we name.

vLLM (routes of VLLM_SERVER_DEV_MODE=1): pause → reload → label → resume. Every call carries its version as cache salt,
since a reload does not empty the prefix cache. SGLang does it all in one route, and empties the cache itself.

A server that was gone may have started anew, with the weights that it was started with: before it is asked again, its
label is compared, and its weights are loaded if it is another one.
"""

import asyncio
import logging
import time
from pathlib import Path
from typing import Any, Final

import aiohttp

from rollstream.engines.http_client import HttpClient
from rollstream.engines.http_pool import Server
from rollstream.engines.http_replies import Reply
from rollstream.engines.http_settings import HttpSettings
from rollstream.engines.model_directory import read_config
from rollstream.schemas.errors import ConfigurationError, EngineError

_LOG = logging.getLogger(__name__)
_OWN_EXTENSION: Final = "rollstream.engines.vllm_worker.ReloadExtension"


class ServerWeights:
    """The weights of all servers of a client."""

    def __init__(self, client: HttpClient, settings: HttpSettings, weight_version: int) -> None:
        """`weight_version`: of the weights that the servers started with."""
        self._client = client
        self._settings = settings
        self._version, self._path = weight_version, Path()
        self._extended: set[Server] = set()
        self._plain_on_cpu: set[Server] = set()
        self._locks = {server: asyncio.Lock() for server in client.pool.servers}

    async def start(self, server: Server) -> None:
        """Label the weights that the server started with.

        Raises `ConfigurationError` if it can't be updated, or its logprobs are not those of what it samples from.
        """
        if self._settings.weight_updates == "sglang":
            return
        reply = await self._asked(server, "GET", "/server_info?config_format=json")
        if reply.status in (404, 405):
            raise ConfigurationError(
                f"{server.root} has no routes to load weights: start vLLM with VLLM_SERVER_DEV_MODE=1, or set "
                "http.weight_updates to 'none' where its weights stay"
            )
        mode = _setting(reply, "model_config", "logprobs_mode")
        if self._settings.tokenizer_path is not None and mode != "processed_logprobs":
            raise ConfigurationError(
                f"{server.root} has logprobs_mode {mode!r}, whose logprobs are not those of the distribution that it "
                "samples from: start vLLM with --logprobs-mode processed_logprobs"
            )
        if _setting(reply, "parallel_config", "worker_extension_cls") == _OWN_EXTENSION:
            self._extended.add(server)
        elif _setting(reply, "device_config", "device") == "cpu":
            self._plain_on_cpu.add(server)
        await self._done(server, "/update_weight_version", {"new_version": str(self._version)})

    async def load(self, version: int, path: Path) -> float:
        """Load a version into every server; the longest stall, seconds. Raises `EngineError` if none has loaded it.

        One that has not is tried again before its next call.
        """
        self._version, self._path = version, path
        servers = self._client.pool.servers
        outcomes = await asyncio.gather(*(self._load(server) for server in servers), return_exceptions=True)
        stalls: list[float] = []
        problems: list[str] = []
        for server, outcome in zip(servers, outcomes, strict=True):
            if isinstance(outcome, float):
                stalls.append(outcome)
            elif isinstance(outcome, (aiohttp.ClientError, OSError, EngineError)):
                self._client.pool.failed(server, f"{type(outcome).__name__}: {outcome}")
                problems.append(f"{server.root}: {server.problem}")
            else:
                raise outcome
        if problems:
            _LOG.error("version %d was not loaded by %s", version, "; ".join(problems))
        if not stalls:
            raise EngineError(f"no server loaded version {version}: {'; '.join(problems)}")
        return max(stalls)

    async def confirm(self, server: Server) -> None:
        """See that a server which was gone has the current version; else load it. Raises `EngineError`."""
        if await self._label(server) == str(self._version):
            server.weight_version = self._version
            return
        try:
            await self.start(server)
        except ConfigurationError as error:
            raise EngineError(str(error)) from error
        if self._path != Path():
            await self._load(server)

    async def _load(self, server: Server) -> float:
        load = self._load_vllm if self._settings.weight_updates == "vllm" else self._load_sglang
        # A server that returns may be loaded at the moment of an update.
        async with self._locks[server]:
            version, path = self._version, self._path
            with self._client.pool.updating(server):
                stall = await load(server, version, path)
                server.weight_version = version
        return stall

    async def _load_vllm(self, server: Server, version: int, path: Path) -> float:
        started = time.monotonic()
        # Calls that run meanwhile are asked again, unless the server says which version sampled which tokens.
        mode = "keep" if server.reports_spans else "abort"
        await self._done(server, f"/pause?mode={mode}")
        try:
            await self._reload_vllm(server, path)
            await self._done(server, "/update_weight_version", {"new_version": str(version)})
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
        results = reply.body.get("results") if isinstance(reply.body, dict) else None
        problems = [result for result in results or () if isinstance(result, str) and result != "None"]
        if problems:
            raise EngineError(f"{server.root} did not load {path}: {problems[0][:500]}")

    async def _load_sglang(self, server: Server, version: int, path: Path) -> float:
        started = time.monotonic()
        body = {"model_path": str(path), "weight_version": str(version), "abort_all_requests": True}
        reply = await self._done(server, "/update_weights_from_disk", body)
        if not isinstance(reply.body, dict) or reply.body.get("success") is not True:
            raise EngineError(f"{server.root} did not load {path}: {reply.message}")
        return time.monotonic() - started

    async def _label(self, server: Server) -> str | None:
        """The version that the server says it has."""
        routes = ("/weight_info",) if self._settings.weight_updates == "vllm" else ("/model_info", "/get_model_info")
        for route in routes:
            reply = await self._asked(server, "GET", route)
            if reply.is_ok and isinstance(reply.body, dict):
                return str(reply.body.get("weight_version"))
        return None

    async def _done(self, server: Server, route: str, body: Any = None) -> Reply:
        reply = await self._asked(server, "POST", route, body)
        if not reply.is_ok:
            raise EngineError(f"{server.root}{route} answered {reply.status}: {reply.message}")
        return reply

    async def _asked(self, server: Server, method: str, route: str, body: Any = None) -> Reply:
        async with asyncio.timeout(self._settings.ready_seconds):
            return await self._client.ask(server, method, route, body)


def _setting(reply: Reply, *names: str) -> Any:
    """A value of vLLM's configuration, as `/server_info` shows it; None if it is not there."""
    found = reply.body.get("vllm_config") if isinstance(reply.body, dict) else None
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found
