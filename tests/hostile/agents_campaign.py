"""A campaign upon agents: of two generators one is killed, or suspended until it is thought dead, again and again."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, Literal

from rollstream.local.ports import free_ports
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.ids import rollout_id
from rollstream.schemas.prompt import AgentChoice, Message, PromptSubmitted, Sampling
from rollstream.schemas.topics import PROGRESS, PROMPTS, ROLLOUTS
from tests.harness.builders import a_prompt
from tests.harness.forking import start_forked
from tests.harness.processes import StartedProcess
from tests.harness.resources_server import ADD
from tests.harness.running import Run
from tests.harness.waits import wait_until
from tests.hostile.agents_account import Account, account_of, sampled_parts
from tests.hostile.counting_generator import AT_ONCE, LONG_TOKENS, REASONING_TOKENS, generate
from tests.hostile.session_server import events, open_sessions, serve

GROUP_SIZE: Final = 2
_MOST_OPEN: Final = 24
"""Prompts. What a dead generator had in hand waits behind all that another has fetched already."""
_ASSIGNED: Final = ": assigned [("
"""What a generator says when it gets partitions."""
_GOES_ON_SECONDS: Final = 5.0
_CLOSED_SECONDS: Final = 60.0
"""After the last fault, no session is open any more that was open then."""
_CYCLES: Final = AgentChoice(name="reasoning_cache", options={"max_reasoning_tokens": str(REASONING_TOKENS)})
_AGENTS: Final = (AgentChoice(), AgentChoice(name="counting"), _CYCLES, AgentChoice(name="counting"))
"""Of prompts one after the other: a single long turn, turns with calls of tools, cycles of reasoning and summary."""

Fault = Literal["kill", "suspend"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How much is asked, how fast it is sampled, and how often a fault comes.

    What a fault costs is at most `progress_tokens` of each sequence that runs in the killed process. So the share that
    is lost depends on how many such pieces a sequence samples between two faults.
    """

    num_faults: int
    between_seconds: float
    token_seconds: float = 0.001
    sequences: int = 4
    progress_tokens: int = 512
    """0: the setting's default."""
    done_seconds: float = 120.0


@dataclass(eq=False)
class Campaign:
    """Two generators on a run, and a server of tools that outlives them."""

    run: Run
    pace: Pace
    prompts: list[PromptSubmitted] = field(default_factory=list)
    generators: list[StartedProcess] = field(default_factory=list)

    @property
    def sampled(self) -> Path:
        """Where the engines note their tokens."""
        return self.run.directory / "sampled"

    @property
    def tools_log(self) -> Path:
        """Where the server of tools notes what it did."""
        return self.run.directory / "tools.jsonl"

    def start(self) -> StartedProcess:
        """One more generator."""
        return self.run.start_forked(partial(generate, self.run.config, self.sampled))

    def feed(self) -> None:
        """Submit what is missing to as many open prompts as credit would allow."""
        rows = range(len(self.prompts), self._num_done() + _MOST_OPEN)
        if more := [_prompt(self.run.name, row) for row in rows]:
            self.run.submit(*more)
            self.prompts += more

    def faults(self, fault: Fault) -> float:
        """Make all faults, one generator after the other; monotonic seconds of the last one."""
        at = time.monotonic()
        for number in range(self.pace.num_faults):
            victim = self.generators[number % 2]
            self._until_at_work(victim, at + self.pace.between_seconds)
            at = time.monotonic()
            if fault == "suspend":
                self._suspend(victim, self.generators[1 - number % 2])
            else:
                victim.kill()
            if victim.has_ended:
                self.generators[number % 2] = self.start()
        return at

    def end(self) -> Account:
        """Wait until everything is done; what became of it."""
        wait_until(lambda: self._num_done() == len(self.prompts), self._said, self.pace.done_seconds, every_seconds=0.5)
        for generator in self.generators:
            assert generator.terminate() == 0
        pairs = ((prompt, index) for prompt in self.prompts for index in range(prompt.group_size))
        agents = {rollout_id(prompt.group_id, index): prompt.agent.name for prompt, index in pairs}
        left, num_late = self._left()
        found = account_of(
            agents, self.run.records(ROLLOUTS), sampled_parts(self.sampled), events(self.tools_log), left
        )
        return replace(found, num_late=num_late)

    def open_after(self, at: float) -> set[str]:
        """Sessions that were open then, and that nobody had closed a minute later."""
        return open_sessions(events(self.tools_log), opened_until=at, closed_until=at + _CLOSED_SECONDS)

    def _num_done(self) -> int:
        return self.run.committed("generators", PROMPTS.name)

    def _until_at_work(self, victim: StartedProcess, at: float) -> None:
        """A process that has nothing in hand loses nothing: its engine must have sampled since the look before."""
        pid, seen = f"{victim.pid} ", 0

        def is_at_work() -> bool:
            nonlocal seen
            assert not victim.has_ended, self._said()
            self.feed()
            sampled = self.sampled.read_text() if self.sampled.exists() else ""
            new, seen = sampled[seen:], len(sampled)
            return time.monotonic() > at and pid in new

        wait_until(is_at_work, self._said, self.pace.between_seconds + 60.0, every_seconds=0.25)

    def _suspend(self, victim: StartedProcess, other: StartedProcess) -> None:
        """Until the other one has its partitions: it wakes as one that was thought dead.

        The other one goes on with its sessions by then, if it had one open.
        """
        before, assigned = self._num_taken_over(), other.said().count(_ASSIGNED)
        victim.signal(signal.SIGSTOP)
        wait_until(lambda: other.said().count(_ASSIGNED) > assigned, self._said, 60.0, every_seconds=0.25)
        late = time.monotonic() + _GOES_ON_SECONDS
        wait_until(
            lambda: self._num_taken_over() > before or time.monotonic() > late, self._said, 60.0, every_seconds=0.25
        )
        victim.signal(signal.SIGCONT)

    def _num_taken_over(self) -> int:
        return sum(event.kind == "taken over" for event in events(self.tools_log))

    def _left(self) -> tuple[list[str], int]:
        """What is kept on `progress` still, and how much of that expires.

        What a client holds when its process is suspended is sent when that goes on: it was noted before its successor
        deleted the key, and lies behind that. Nobody asks for it: its prompt is committed.
        """
        codec = AvroCodec(PROGRESS)
        deleted: dict[bytes | None, int] = {}
        kept: dict[bytes | None, datetime] = {}
        for message in self.run.messages(PROGRESS.name):
            if message.value is None:
                kept.pop(message.key, None)
                deleted[message.key] = message.timestamp_ms
            else:
                kept[message.key] = codec.decode(message.value).noted_at
        late = {key for key, at in kept.items() if key in deleted and at.timestamp() * 1000 < deleted[key]}
        return sorted(str(key) for key in kept.keys() - late), len(late)

    def _said(self) -> str:
        return "\n".join(f"generator:\n{generator.said()[-1500:]}" for generator in self.generators)


@contextmanager
def a_campaign(run: Run, pace: Pace) -> Iterator[Campaign]:
    """The campaign at its start: everything runs, and the first prompts are there."""
    campaign = Campaign(run, pace)
    port = free_ports(1)[0]
    run.tables |= {
        "agents.counting": {"path": "tests.hostile.counting_generator.CountingAgent"},
        "tools.counter": {
            "kind": "http", "url": f"http://127.0.0.1:{port}", "schemas": [ADD], "replayable": ["add"], "reopens": True,
        },
        "generator": {"progress_tokens": pace.progress_tokens} if pace.progress_tokens else {},
        "generator.engine": {
            "kind": "scripted", "model_path": run.directory, "max_model_len": 2 * LONG_TOKENS,
            "max_num_seqs": pace.sequences, "scripted": {"token_seconds": pace.token_seconds},
        },
    }  # fmt: skip
    campaign.tools_log.touch()
    server = start_forked(partial(serve, port, campaign.tools_log), log=run.directory / "server.log")
    try:
        run.publish_weights(0)
        campaign.feed()
        campaign.generators += [campaign.start(), campaign.start()]
        yield campaign
    finally:
        server.kill()


def _prompt(run: str, row: int) -> PromptSubmitted:
    agent = _AGENTS[row % len(_AGENTS)]
    return a_prompt(
        row,
        run=run,
        messages=(Message(role="user", content="Count."),),
        agent=agent,
        sampling=Sampling(max_tokens=LONG_TOKENS if agent.name == "single_turn" else AT_ONCE),
        group_size=GROUP_SIZE,
    )
