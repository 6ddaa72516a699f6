"""The servers of `ng_run`: as a process with its children, or one server in the loop of a test."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil

from rollstream.cli.entry import run_gym_command
from rollstream.gym.servers.entry import answer
from rollstream.http.server import Address
from rollstream.local.ports import free_ports
from tests.harness.forking import start_forked
from tests.harness.processes import StartedProcess
from tests.harness.scripted_model import ScriptedModel
from tests.harness.waits import wait_until

MULTI_STEP = "resources_servers/example_multi_step/configs/example_multi_step.yaml"
COUNTER = "resources_servers/example_session_state_mgmt/configs/example_session_state_mgmt.yaml"
OPENAI_MODEL = "responses_api_models/openai_model/configs/openai_model.yaml"
KEY = "planted-key-of-the-model"


def be_gym_command(name: str, words: list[str], folder: Path) -> None:
    """Be `ng_NAME WORDS` in a working directory."""
    os.chdir(folder)
    sys.argv = [f"ng_{name}", *words]
    run_gym_command()


class GymStack:
    """`ng_run` in a folder, as a process. `words` has the head server's port for other commands."""

    def __init__(self, folder: Path, model: ScriptedModel, *files: str) -> None:
        self.folder = folder
        self.port = free_ports(1)[0]
        self.words = [f"+head_server.port={self.port}"]
        policy = f"policy_base_url: {model.url}\npolicy_api_key: {KEY}\npolicy_model_name: tiny\n"
        (folder / "env.yaml").write_text(policy)
        paths = ",".join(files or (OPENAI_MODEL, MULTI_STEP))
        self.process = self.start("run", f"+config_paths=[{paths}]", "+start_seconds=60")

    def start(self, name: str, *words: str) -> StartedProcess:
        """`ng_NAME WORDS`."""
        log = self.folder / f"{name}.log"
        return start_forked(partial(be_gym_command, name, [*words, *self.words], self.folder), log=log)

    def ended(self, name: str, *words: str) -> tuple[int, str]:
        """Exit code and output of `ng_NAME WORDS`."""
        (self.folder / f"{name}.log").unlink(missing_ok=True)
        process = self.start(name, *words)
        return process.wait(60), process.said()

    def wait(self) -> None:
        """Until all servers are ready."""
        wait_until(lambda: self.process.has_ended or "are ready" in self.process.said(), self.process.said)
        assert not self.process.has_ended, self.process.said()

    @property
    def instances(self) -> dict[str, dict[str, Any]]:
        """What the head server says of each server."""
        found = httpx.get(f"http://127.0.0.1:{self.port}/server_instances").json()
        return {one["process_name"]: one for one in found}

    @property
    def processes(self) -> list[psutil.Process]:
        """All that the command has started."""
        return psutil.Process(self.process.pid).children(recursive=True)


@contextmanager
def gym_stack(folder: Path, model: ScriptedModel, *files: str) -> Iterator[GymStack]:
    """The servers, ready, until the block ends."""
    stack = GymStack(folder, model, *files)
    try:
        stack.wait()
        yield stack
    finally:
        stack.process.terminate()


@asynccontextmanager
async def answering(app: Any, routes: tuple[str, ...] = ()) -> AsyncIterator[str]:
    """The address of an application that is served in this loop."""
    end, port = asyncio.Event(), free_ports(1)[0]
    serving = asyncio.create_task(answer(app, Address(host="127.0.0.1", port=port), routes, end.wait()))
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            await _there(client, serving)
        yield f"http://127.0.0.1:{port}"
    finally:
        end.set()
        await serving


async def _there(client: httpx.AsyncClient, serving: "asyncio.Task[None]") -> None:
    async with asyncio.timeout(10):
        while not serving.done():
            try:
                await client.get("/")
            except httpx.TransportError:
                await asyncio.sleep(0.01)
            else:
                return
    serving.result()


def placed(**servers: Mapping[str, str]) -> dict[str, Any]:
    """A configuration with these addresses: `NAME={KIND: url}`."""
    found: dict[str, Any] = {}
    for name, kinds in servers.items():
        ((kind, url),) = kinds.items()
        host, _, port = url.removeprefix("http://").partition(":")
        found[name] = {kind: {"one": {"host": host, "port": int(port)}}}
    return found
