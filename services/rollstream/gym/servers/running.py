"""`ng_run`: starts the servers of a configuration as processes, with a head server in this one, and ends them with it.

All is checked before the first process starts. A server that dies is started again, and `ng_status` says so. The
kernel kills what is left when this process dies.
"""

import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rollstream.gym.options import HeadServer
from rollstream.gym.servers.calls import JsonCalls
from rollstream.gym.servers.config import merged
from rollstream.gym.servers.entry import CONFIG_VARIABLE, NAME_VARIABLE, answer
from rollstream.gym.servers.head import ROUTES, head_app
from rollstream.gym.servers.options import RunOptions, run_options
from rollstream.gym.servers.plan import GymServerPlan, planned
from rollstream.http.server import Address
from rollstream.local.keep_alive import StageState
from rollstream.local.ports import free_ports, require_free
from rollstream.local.processes import failed_start
from rollstream.local.supervisor import StageProcess, Supervisor
from rollstream.process.stop import Stop, first_to_end
from rollstream.process.terminal import Say
from rollstream.schemas.errors import ConfigurationError, EngineError

_LOOK_SECONDS: Final = 0.2
_PING_SECONDS: Final = 2.0
# The kernel takes 128 KiB as one variable.
_MAX_CONFIG_BYTES: Final = 120_000
_GRACE_SECONDS: Final = 10.0

Config = dict[str, Any]


def run_servers(words: Sequence[str], stop: Stop, say: Say) -> None:
    """Run until `stop`. Raises `ConfigurationError` before anything runs, `StartFailedError` for one that ended."""
    config = merged(words)
    plans = planned(config)
    options = run_options(config)
    placed = _placed(config, plans, options.head_server)
    asyncio.run(_Run(placed, planned(placed), options, say).run(stop))
    say("all servers have ended")


def _placed(config: Config, plans: Sequence[GymServerPlan], head: HeadServer) -> Config:
    """The configuration with the address of each server."""
    require_free(head.port, "the head server")
    free = iter(free_ports(sum(plan.settings.port is None for plan in plans)))
    placed = {**config, "head_server": head.model_dump()}
    for plan in plans:
        if plan.settings.port is not None:
            require_free(plan.settings.port, plan.name)
        given = config[plan.name][plan.kind][plan.implementation]
        here = {**given, "host": plan.settings.host, "port": plan.settings.port or next(free)}
        placed[plan.name] = {plan.kind: {plan.implementation: here}}
    ports = [head.port, *(place["port"] for plan in plans for place in placed[plan.name][plan.kind].values())]
    if len(set(ports)) < len(ports):
        raise ConfigurationError(f"two servers have the same port, of {sorted(ports)}: leave ports out, or change one")
    return placed


class _Run:
    """One run of the servers `plans` of `config`."""

    def __init__(self, config: Config, plans: Sequence[GymServerPlan], options: RunOptions, say: Say) -> None:
        self._config = config
        self._plans = plans
        self._options = options
        self._say = say
        self._supervisor = Supervisor(options.run_dir)
        self._pings = JsonCalls(seconds=_PING_SECONDS, max_tries=1)

    async def run(self, stop: Stop) -> None:
        """The head server first, whose port may be taken; then all others."""
        head, ending = self._options.head_server, asyncio.Event()
        commands = [_process(plan, self._config) for plan in self._plans]
        answering = answer(
            head_app(self._config, self._instances), Address(host=head.host, port=head.port), ROUTES, ending.wait()
        )
        await self._pings.start()
        try:
            with self._supervisor:
                await first_to_end(answering, self._keep(commands, stop))
                self._say("ending the servers")
                self._supervisor.stop(grace_seconds=_GRACE_SECONDS)
        finally:
            await self._pings.close()

    async def _keep(self, commands: Sequence[StageProcess], stop: Stop) -> None:
        """Start them, and start again what dies, until `stop`."""
        for command in commands:
            self._supervisor.start(command)
        await first_to_end(self._wait(), stop.asked())
        if not stop.is_asked:
            head = self._options.head_server
            self._say(f"{len(self._plans)} servers are ready, and the head server at {head.host}:{head.port}:")
            for one in self._instances():
                self._say(f"  {one['process_name']} ({one['server_type']}/{one['name']}) at {one['url']}")
        while not stop.is_asked:
            await asyncio.sleep(_LOOK_SECONDS)
            self._supervisor.tick()

    async def _wait(self) -> None:
        """Until all answer. Raises `StartFailedError` for one that ended, or does not answer in time."""
        give_up_at = time.monotonic() + self._options.start_seconds
        left = {one["process_name"]: one["url"] for one in self._instances()}
        while left:
            self._supervisor.tick()
            for status in self._supervisor.statuses():
                if status.state is not StageState.RUNNING:
                    raise failed_start(f"{status.name} ended with exit code {status.exit_code}", status.log)
            for name, url in list(left.items()):
                if await is_answering(self._pings, url):
                    del left[name]
            if left and time.monotonic() > give_up_at:
                name = next(iter(left))
                why = f"{name} does not answer within start_seconds, {self._options.start_seconds:g} s"
                raise failed_start(why, self._supervisor.status(name).log)
            await asyncio.sleep(_LOOK_SECONDS)

    def _instances(self) -> list[dict[str, Any]]:
        """What `ng_status` is told, in Gym's words and ours."""
        statuses = {status.name: status for status in self._supervisor.statuses()}
        return [
            {
                "process_name": plan.name,
                "server_type": plan.kind,
                "name": plan.implementation,
                "entrypoint": plan.settings.entrypoint,
                "host": plan.settings.host,
                "port": plan.settings.port,
                "url": f"http://{plan.settings.host}:{plan.settings.port}",
                "pid": statuses[plan.name].pid,
                "state": statuses[plan.name].state.value,
                "restarts": statuses[plan.name].restarts,
                "log": str(statuses[plan.name].log),
            }
            for plan in self._plans
            if plan.name in statuses
        ]


async def is_answering(pings: JsonCalls, url: str) -> bool:
    """Whether anybody answers there, whatever it says: programs of others may have no `GET /`."""
    try:
        await pings.get(f"{url}/")
    except EngineError:
        return False
    return True


def _process(plan: GymServerPlan, config: Mapping[str, Any]) -> StageProcess:
    import yaml

    text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
    if (size := len(text.encode())) > _MAX_CONFIG_BYTES:
        raise ConfigurationError(f"the configuration has {size} bytes, at most {_MAX_CONFIG_BYTES}: leave some out")
    env = {CONFIG_VARIABLE: text, NAME_VARIABLE: plan.name}
    if plan.program is None:
        return StageProcess(
            name=plan.name, command=(sys.executable, "-m", "rollstream.gym.servers.entry", plan.name), env=env
        )
    path = os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH"))))
    return StageProcess(name=plan.name, command=(sys.executable, str(plan.program)), env={**env, "PYTHONPATH": path})
