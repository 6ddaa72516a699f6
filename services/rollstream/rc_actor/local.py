"""`rollstream rc-actor-local`: starts vLLM servers on this machine, runs the actor against them, and ends them all.

No child is left: they end at Ctrl-C and after a failure, and the kernel kills them when this process is killed.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rollstream.local.ports import HOST, require_free
from rollstream.local.processes import ChildProcess, failed_start, stop_all
from rollstream.process.ending import INTERRUPTED
from rollstream.process.stop import Stop, first_to_end
from rollstream.process.terminal import Say
from rollstream.rc_actor.reading import read_settings
from rollstream.rc_actor.ready import wait_for_services
from rollstream.rc_actor.settings import RCSettings
from rollstream.schemas.errors import ConfigurationError

_LOOK_SECONDS: Final = 0.2
_GRACE_SECONDS: Final = 20.0
_ADDRESSES: Final = "me.llm_urls"
_SERVER: Final = ("-m", "vllm.entrypoints.openai.api_server")
"""`vllm serve` does not run with the wheel for CPUs; this module is what it starts."""
_ACTOR: Final = ("-m", "rollstream.rc_actor")
# The distribution that tokens are drawn from, as in training; and nothing is reported to anybody.
_OPTIONS: Final = {"logprobs-mode": "processed_logprobs"}
_ENVIRONMENT: Final = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def run_locally(config_name: str, words: Sequence[str], stop: Stop, say: Say) -> int:
    """The exit code of the actor, 130 if `stop` ended it.

    Raises `ConfigurationError` before anything starts, `PortTakenError`, and `StartFailedError` for a server that ends
    or is not ready in time.
    """
    if any(word.lstrip("+~").partition("=")[0] == _ADDRESSES for word in words):
        raise ConfigurationError(f"{_ADDRESSES} is set by rc-actor-local, to servers that it starts: leave it out")
    world = read_settings(config_name, words).world
    ports = range(world.first_port, world.first_port + world.replicas)
    urls = "+".join(f"http://{HOST}:{port}/v1" for port in ports)
    words = [*words, f"++{_ADDRESSES}={urls}"]
    settings = read_settings(config_name, words)
    for port in ports:
        require_free(port, "a vLLM server")
    run = _LocalRun(settings, say)
    try:
        return asyncio.run(run.run(ports, [*_ACTOR, "--config-name", config_name, *words], stop))
    finally:
        run.end()


def server_words(settings: RCSettings, port: int) -> list[str]:
    """The options of one server. Those of `vllm_config.vllm_kwargs` come last, so they count."""
    words = ["--model", settings.model_path, "--served-model-name", settings.model_path]
    words += ["--host", HOST, "--port", str(port)]
    given = {name.replace("_", "-"): value for name, value in settings.vllm_config.vllm_kwargs.items()}
    for name, value in {**_OPTIONS, **given}.items():
        if value is False:
            words.append(f"--no-{name}")
        else:
            words += [f"--{name}"] if value is None or value is True else [f"--{name}", str(value)]
    return words


class _LocalRun:
    """The children of one call, servers first."""

    def __init__(self, settings: RCSettings, say: Say) -> None:
        self._settings = settings
        self._say = say
        self._logs = settings.output_dir.resolve() / "logs"
        self._servers: dict[Path, ChildProcess] = {}
        self._actor: ChildProcess | None = None
        self._exit_code = INTERRUPTED

    async def run(self, ports: Sequence[int], actor: Sequence[str], stop: Stop) -> int:
        for port in ports:
            log = self._logs / f"vllm-{port}.log"
            self._servers[log] = _started([*_SERVER, *server_words(self._settings, port)], log)
            self._say(f"vLLM starts on port {port}, its log is {log}")
        await first_to_end(wait_for_services(self._settings), self._watched(), stop.asked())
        if stop.is_asked:
            return self._exit_code
        self._say("the servers are ready, and the actor starts")
        await first_to_end(self._acted(actor), self._watched(), stop.asked())
        return self._exit_code

    def end(self) -> None:
        """End what runs: the actor first, so that it keeps what it has."""
        if self._actor is not None:
            stop_all([self._actor], _GRACE_SECONDS)
        stop_all(list(self._servers.values()), _GRACE_SECONDS)
        self._say("all servers have ended")

    async def _watched(self) -> None:
        """Raise `StartFailedError` when a server ends."""
        while True:
            for log, server in self._servers.items():
                if (code := server.exit_code()) is not None:
                    raise failed_start(f"a vLLM server ended with exit code {code}", log)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _acted(self, words: Sequence[str]) -> None:
        """Run the actor, and say what it says."""
        log = self._logs / "rc-actor.log"
        self._logs.mkdir(parents=True, exist_ok=True)
        position = log.stat().st_size if log.exists() else 0
        self._actor = _started(words, log)
        code = None
        while code is None:
            code = self._actor.exit_code()
            position = self._told(log, position)
            await asyncio.sleep(_LOOK_SECONDS)
        self._exit_code = code if code >= 0 else 128 - code

    def _told(self, log: Path, position: int) -> int:
        """Say the whole lines from `position` on; the position after them."""
        with log.open("rb") as stream:
            stream.seek(position)
            new = stream.read()
        end = new.rfind(b"\n") + 1
        for line in new[:end].decode(errors="replace").splitlines():
            self._say(line)
        return position + end


def _started(words: Sequence[str], log: Path) -> ChildProcess:
    return ChildProcess.start([sys.executable, *words], log, env={**os.environ, **_ENVIRONMENT})
