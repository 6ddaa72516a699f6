"""A sample goes on where its process was killed: the same turns, no token sampled and no tool called twice."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollstream.agents.journal import SampleJournal, earlier_of
from rollstream.agents.samples import SampleBounds, SampleRunner
from rollstream.engines.protocol import Generation, GenerationRequest
from rollstream.engines.scripted import ScriptedEngine
from rollstream.engines.settings import EngineSettings, ScriptedSettings
from rollstream.schemas.errors import ToolError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.ids import new_attempt_id, rollout_id
from rollstream.schemas.progress import ProgressKind, TurnProgress
from rollstream.schemas.prompt import AgentChoice, Message, PromptSubmitted, Purpose, Sampling, ToolCall
from rollstream.schemas.rollout import FinishReason, RolloutGenerated, Status, ToolAnswer, Turn, WeightSpan
from tests.harness.builders import a_generator, a_prompt

SCHEMA = json.dumps({"type": "function", "function": {"name": "add", "parameters": {}}})
NUM_CALLING = 3
PIECE_TOKENS = 4


class Killed(BaseException):
    """The process is gone."""


class CallingEngine(ScriptedEngine):
    """A real engine whose first answers of a conversation call a tool twice, as a server that parses calls gives them.

    It goes on with an answer that was begun, which follows the last equals sign.
    """

    def __init__(self, directory: Path) -> None:
        scripted = ScriptedSettings(token_seconds=0.0)
        super().__init__(EngineSettings(kind="scripted", model_path=directory, scripted=scripted))
        self.num_tokens = 0

    async def generate(self, request: GenerationRequest) -> Generation:
        begins = int(np.flatnonzero(request.prompt_token_ids == ord("="))[-1]) + 1
        begun = len(request.prompt_token_ids) - begins
        found = await super().generate(
            replace(
                request,
                prompt_token_ids=request.prompt_token_ids[:begins],
                max_tokens=begun + request.max_tokens,
                seed=1,
            )
        )
        token_ids = found.token_ids[begun:]
        self.num_tokens += len(token_ids)
        turn = sum(message.role == "assistant" for message in request.messages)
        calls = (f"{turn}a", f"{turn}b") if turn < NUM_CALLING and found.finish_reason is FinishReason.STOP else ()
        return replace(
            found,
            token_ids=token_ids,
            behavior_logprobs=found.behavior_logprobs[begun:],
            weight_spans=(WeightSpan(weight_version=3, start=0, end=len(token_ids)),),
            tool_calls=tuple(ToolCall(call_id=each, name="add", arguments='{"by": 1}') for each in calls),
        )


@dataclass(eq=False)
class Server:
    """A user's server of tools, which outlives generators: by session, what it answered and its newest attempt."""

    is_replayable: bool = False
    reopens: bool = True
    answers: dict[str, dict[str, str]] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    """Calls that changed something, also of sessions that are closed."""
    attempts: dict[str, int] = field(default_factory=dict)
    num_open: int = 0
    is_cut_off: bool = False
    """Whether the process that asks is dead: nothing that it does any more arrives."""

    async def open(self, session_id: str, attempt: int, task: Mapping[str, Any]) -> "ServerSession":
        if attempt < self.attempts.get(session_id, 0):
            raise ToolError("fenced")
        self.num_open += attempt > self.attempts.get(session_id, -1) and session_id not in self.attempts
        self.attempts[session_id] = attempt
        return ServerSession(self, session_id, attempt)


@dataclass(eq=False)
class ServerSession:
    server: Server
    session_id: str
    attempt: int
    schemas: tuple[str, ...] = (SCHEMA,)

    def is_replayable(self, name: str) -> bool:
        return self.server.is_replayable

    async def call(self, call: ToolCall) -> ToolAnswer:
        if self.attempt < self.server.attempts[self.session_id]:
            raise ToolError("fenced")
        answered = self.server.answers.setdefault(self.session_id, {})
        if not (self.server.is_replayable and call.call_id in answered):
            self.server.made.append(call.call_id)
            answered[call.call_id] = f"{len(answered) + 1}1="
        return ToolAnswer(call_id=call.call_id, content=answered[call.call_id])

    async def verify(self, said: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"reward": float(len(self.server.answers[self.session_id]))}

    async def leave(self) -> None:
        """It is kept."""

    async def close(self) -> None:
        if self.server.is_cut_off:
            return
        self.server.num_open -= self.session_id in self.server.attempts
        self.server.answers.pop(self.session_id, None)
        self.server.attempts.pop(self.session_id, None)


@dataclass(eq=False)
class Attempts:
    """Attempts at one sample: each goes on from what those before it kept."""

    directory: Path
    server: Server = field(default_factory=Server)
    kept: list[TurnProgress] = field(default_factory=list)
    num_tokens: int = 0

    def run(self, prompt: PromptSubmitted, *, killed_after: int | None = None) -> RolloutGenerated | None:
        """One more attempt; None if it was killed, right after so many records were kept by it."""
        journal = SampleJournal(
            rollout_id(prompt.group_id, 0), new_attempt_id(), "generator-1", self._keeper(killed_after),
            earlier_of(self.kept),
        )  # fmt: skip

        self.server.is_cut_off = False

        async def run() -> RolloutGenerated:
            engine = CallingEngine(self.directory)
            await engine.start(weight_version=3)
            bounds = SampleBounds(deadline_seconds=30.0, max_tries=1, piece_tokens=PIECE_TOKENS)
            runner = SampleRunner(engine, identity=a_generator(), bounds=bounds, tools={"counter": self.server})
            try:
                return await runner.run(prompt, 0, None, journal)
            finally:
                self.num_tokens += engine.num_tokens

        try:
            return asyncio.run(run())
        except Killed:
            return None

    def _keeper(self, killed_after: int | None) -> Any:
        kept_before = len(self.kept)

        async def keep(progress: TurnProgress, is_urgent: bool) -> None:
            if killed_after is not None and len(self.kept) - kept_before >= killed_after:
                self.server.is_cut_off = True
                raise Killed
            self.kept.append(progress)

        return keep


def a_calling_prompt(**options: str) -> PromptSubmitted:
    return a_prompt(
        messages=(Message(role="user", content="52910="),),
        agent=AgentChoice(name="tools", options={"tools": "counter", **options}),
        purpose=Purpose.TRAIN,
        sampling=Sampling(max_tokens=12, seed=1),
    )


def same_turns(one: RolloutGenerated, other: RolloutGenerated) -> bool:
    """Whether both have the same turns, but for how long they took."""
    return [_without_times(turn) for turn in one.turns] == [_without_times(turn) for turn in other.turns]


def _without_times(turn: Turn) -> Turn:
    answers = tuple(answer.model_copy(update={"latency_seconds": 0.0}) for answer in turn.tool_answers)
    return turn.model_copy(update={"latency_seconds": 0.0, "tool_answers": answers})


@pytest.mark.parametrize("parallel", ["true", "false"])
def test_a_sample_killed_after_any_record_goes_on_to_the_same_sample_and_calls_nothing_twice(
    tmp_path: Path, parallel: str
) -> None:
    prompt = a_calling_prompt(parallel=parallel)
    whole = Attempts(tmp_path, Server(is_replayable=True))
    expected = whole.run(prompt)
    assert expected is not None
    assert expected.status is Status.COMPLETED, expected.failure
    assert len(expected.turns) == NUM_CALLING + 1
    kinds = Counter(record.kind for record in whole.kept)
    assert kinds[ProgressKind.PIECE] > 0
    assert kinds[ProgressKind.ENDED] == kinds[ProgressKind.SESSION] == 1
    for place in range(len(whole.kept)):
        attempts = Attempts(tmp_path, Server(is_replayable=True))
        assert attempts.run(prompt, killed_after=place) is None
        found = attempts.run(prompt)
        assert found is not None
        assert same_turns(found, expected), f"killed after {place} records"
        assert found.observations == expected.observations
        assert sorted(attempts.server.made) == sorted(whole.server.made)
        assert attempts.server.num_open == 0
        # What was sampled after the last record is sampled again: at most a piece, or a turn that is shorter.
        assert attempts.num_tokens <= whole.num_tokens + PIECE_TOKENS


def test_an_ended_sample_is_given_back_without_a_model_call(tmp_path: Path) -> None:
    prompt, attempts = a_calling_prompt(), Attempts(tmp_path)
    expected = attempts.run(prompt)
    sampled = attempts.num_tokens
    found = attempts.run(prompt)
    assert expected is not None
    assert found is not None
    assert same_turns(found, expected)
    assert (found.status, found.observations) == (Status.COMPLETED, expected.observations)
    assert found.attempt_id != expected.attempt_id
    assert (attempts.num_tokens, attempts.server.num_open) == (sampled, 0)


def test_a_call_that_may_have_arrived_and_must_not_be_made_twice_leaves_the_sample_unresolved(tmp_path: Path) -> None:
    prompt, attempts = a_calling_prompt(), Attempts(tmp_path)
    whole = Attempts(tmp_path)
    whole.run(prompt)
    about_to_call = [place + 1 for place, one in enumerate(whole.kept) if one.kind is ProgressKind.CALLING]
    assert len(about_to_call) == 2 * NUM_CALLING
    for place in about_to_call:
        attempts = Attempts(tmp_path)
        attempts.run(prompt, killed_after=place)
        found = attempts.run(prompt)
        assert found is not None
        assert (found.status, found.failure and found.failure.code) == (Status.UNRESOLVED, FailureCode.TOOL)
        assert "may have arrived" in (found.failure.message if found.failure else "")
        assert len(set(attempts.server.made)) == len(attempts.server.made)


def test_a_sample_whose_prompt_is_rendered_otherwise_begins_anew(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path, Server(is_replayable=True))
    assert attempts.run(a_calling_prompt(), killed_after=8) is None
    assert attempts.server.num_open == 1
    other = a_calling_prompt().model_copy(update={"messages": (Message(role="user", content="5291="),)})
    found = attempts.run(other)
    fresh = Attempts(tmp_path, Server(is_replayable=True)).run(other)
    assert found is not None
    assert fresh is not None
    assert same_turns(found, fresh)
    assert attempts.server.num_open == 0


def test_what_cannot_be_taken_back_is_no_sample_that_begins_anew(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    prompt = a_calling_prompt()
    attempts.run(prompt, killed_after=10)
    assert attempts.server.made
    other = prompt.model_copy(update={"messages": (Message(role="user", content="5291="),)})
    found = attempts.run(other)
    assert found is not None
    assert (found.status, found.failure and found.failure.code) == (Status.UNRESOLVED, FailureCode.DIVERGED)


def test_tools_whose_state_is_lost_with_their_process_begin_anew(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path, Server(reopens=False))
    attempts.run(a_calling_prompt(), killed_after=10)
    attempts.server = Server(reopens=False)
    found = attempts.run(a_calling_prompt())
    assert found is not None
    assert found.status is Status.COMPLETED
    assert len(attempts.server.made) == 2 * NUM_CALLING


def test_records_of_two_attempts_never_mix(tmp_path: Path) -> None:
    prompt = a_calling_prompt()
    one = Attempts(tmp_path, Server(is_replayable=True))
    one.run(prompt)
    other = Attempts(tmp_path, Server(is_replayable=True))
    other.run(prompt.model_copy(update={"sampling": Sampling(max_tokens=12, seed=2)}))
    turns = {record.number: record for record in one.kept if record.kind is ProgressKind.TURN}
    strange = {record.number: record for record in other.kept if record.kind is ProgressKind.TURN}
    # A process that was thought dead wrote turn 1 over that of its successor.
    earlier = earlier_of([strange[0], strange[1], turns[0], turns[2], strange[1]])
    assert {record.attempt_id for record in earlier.turns} == {strange[0].attempt_id}
    assert earlier_of([turns[0], strange[1], turns[2]]).turns == (turns[0],)
    # It began before its successor, and wrote turn 1 when that one had gone on with its own.
    assert earlier_of([strange[0], turns[0], turns[1], strange[1]]).turns == (turns[0], turns[1])


def test_one_short_turn_keeps_nothing(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    prompt = a_prompt(messages=(Message(role="user", content="52910="),), sampling=Sampling(max_tokens=PIECE_TOKENS))
    found = attempts.run(prompt)
    assert found is not None
    assert (found.status, attempts.kept) == (Status.COMPLETED, [])
