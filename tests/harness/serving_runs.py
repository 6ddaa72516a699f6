"""Generators that answer clients, as processes of a run, and callers that remember what reached them whole."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from rollstream.local.ports import free_ports
from rollstream.schemas.rollout import RolloutGenerated
from rollstream.schemas.topics import SERVE_ROLLOUTS
from tests.harness.processes import StartedProcess
from tests.harness.running import Run, readiness
from tests.harness.waits import wait_until

MODEL: Final = "policy"
_CALL_SECONDS: Final = 60.0
# A caller that is refused or finds nobody tries again, as a stock client does.
_AGAIN_SECONDS: Final = 0.1


@dataclass(kw_only=True)
class ServingGenerator:
    """A generator of `run` that answers at `port`; its health is at `health_port`."""

    run: Run
    port: int
    health_port: int
    is_forked: bool = True
    """Not where vLLM runs in it: no process that was forked here can start vLLM's own."""
    process: StartedProcess | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> StartedProcess:
        self.process = self.run.start("generator") if self.is_forked else self.run.start_as_people_do("generator")
        return self.process

    def until_ready(self, seconds: float = 60.0) -> None:
        """Wait until it says that it can answer."""

        def look() -> bool:
            assert self.process is not None
            assert not self.process.has_ended, self.process.said()[-3000:]
            checks = readiness(self.health_port)
            return bool(checks) and bool(checks.get("serving", {}).get("is_ok"))

        wait_until(look, "the endpoint to be ready", seconds)

    def kill_and_start(self) -> None:
        """kill -9, and a new process that is ready."""
        assert self.process is not None
        self.process.kill()
        self.start()
        self.until_ready(120)

    def ask(self, content: str = "52910=", **fields: Any) -> httpx.Response:
        """One chat completion."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=_CALL_SECONDS)


def a_serving_generator(
    run: Run, *, token_seconds: float = 0.0, engine: Mapping[str, object] | None = None, **serve: object
) -> ServingGenerator:
    """A generator, not started, with the scripted engine or another; `serve` are settings of `[generator.serve]`."""
    port, health_port = free_ports(2)
    run.tables["generator"] = {"health_port": health_port}
    scripted = {"kind": "scripted", "model_path": run.directory, "scripted": {"token_seconds": token_seconds}}
    run.tables["generator.engine"] = engine or scripted
    run.tables["generator.serve"] = {"enabled": True, "port": port, "spool": run.directory / "spool", **serve}
    return ServingGenerator(run=run, port=port, health_port=health_port, is_forked=engine is None)


@dataclass(kw_only=True)
class Callers:
    """Clients that ask one call after another. `whole`: the ids of responses that reached one of them whole."""

    generator: ServingGenerator
    stopping: threading.Event = field(default_factory=threading.Event)
    whole: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def call_until_stopped(self) -> None:
        number = 0
        with httpx.Client(base_url=self.generator.url, timeout=_CALL_SECONDS) as client:
            while not self.stopping.is_set():
                number += 1
                self._call(client, is_stream=number % 2 == 0)

    def _call(self, client: httpx.Client, *, is_stream: bool) -> None:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "52910="}], "max_tokens": 12}
        try:
            answer = client.post("/v1/chat/completions", json={**body, "stream": is_stream})
        except httpx.TransportError:
            self._note("cut")
            self.stopping.wait(_AGAIN_SECONDS)
            return
        found = answer.status_code == httpx.codes.OK and _response_id(answer, is_stream=is_stream)
        if found:
            with self.lock:
                self.whole.append(found)
        else:
            self.stopping.wait(_AGAIN_SECONDS)
        self._note("whole" if found else str(answer.status_code))

    def _note(self, outcome: str) -> None:
        with self.lock:
            self.outcomes[outcome] += 1

    def until_more(self, num: int) -> None:
        """Wait until so many more answers have reached callers."""
        before = len(self.whole)
        wait_until(lambda: len(self.whole) >= before + num, lambda: f"{num} answers; {self.outcomes}")

    def call_for(self, seconds: float) -> None:
        """Let them call for so long."""
        self.stopping.wait(seconds)


def _response_id(answer: httpx.Response, *, is_stream: bool) -> str:
    """The id of an answer that is whole; empty if its end is missing."""
    if not is_stream:
        return str(answer.json()["id"])
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return str(httpx.Response(200, text=events[0]).json()["id"]) if events[-1:] == ["[DONE]"] else ""


@contextmanager
def calling(generator: ServingGenerator, num_callers: int = 4) -> Iterator[Callers]:
    """So many callers during the block."""
    callers = Callers(generator=generator)
    threads = [threading.Thread(target=callers.call_until_stopped, daemon=True) for _ in range(num_callers)]
    for thread in threads:
        thread.start()
    try:
        yield callers
    finally:
        callers.stopping.set()
        for thread in threads:
            thread.join(_CALL_SECONDS)


def served_answers(run: Run) -> dict[str, list[RolloutGenerated]]:
    """What is recorded on `serve-rollouts`, by the id of the response, each rollout once."""
    rollouts = {record.rollout_id: record for record in run.records(SERVE_ROLLOUTS)}
    found: dict[str, list[RolloutGenerated]] = {}
    for record in rollouts.values():
        assert record.served is not None
        found.setdefault(record.served.response_id, []).append(record)
    return found


def until_recorded(
    run: Run, wanted: Callable[[], list[str]], seconds: float = 60.0
) -> dict[str, list[RolloutGenerated]]:
    """Wait until each of these responses is recorded; all that are."""

    def look() -> dict[str, list[RolloutGenerated]] | None:
        found = served_answers(run)
        return found if set(wanted()) <= found.keys() else None

    found = wait_until(look, lambda: f"{len(set(wanted()) - served_answers(run).keys())} answers more", seconds)
    assert found is not None
    return found


def each_is_recorded_once(callers: Callers, seconds: float = 60.0) -> None:
    """Every answer that reached a caller whole is one rollout, with its tokens."""
    found = until_recorded(callers.generator.run, lambda: callers.whole, seconds)
    assert callers.whole
    assert len(set(callers.whole)) == len(callers.whole)
    for response_id in callers.whole:
        (rollout,) = found[response_id]
        assert len(rollout.turns[0].token_ids) > 0
