"""The agent `tools`: what the model calls is answered, counted and closed, and a broken tool is never an answer."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from rollstream.agents.journal import SampleJournal
from rollstream.agents.samples import SampleBounds, SampleRunner
from rollstream.engines.protocol import Generation, GenerationRequest
from rollstream.engines.scripted import ScriptedEngine
from rollstream.engines.settings import EngineSettings, ScriptedSettings
from rollstream.schemas.bounds import MAX_TOOL_ANSWER_BYTES, MAX_TOOL_CALLS
from rollstream.schemas.errors import FencedToolError, ToolError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.ids import new_attempt_id, rollout_id
from rollstream.schemas.progress import TurnProgress
from rollstream.schemas.prompt import AgentChoice, Message, PromptSubmitted, Purpose, Sampling, ToolCall
from rollstream.schemas.rollout import FinishReason, RolloutGenerated, Status, ToolAnswer
from tests.harness.builders import a_generator, a_prompt
from tests.harness.waits import until

SCHEMA = json.dumps({"type": "function", "function": {"name": "add", "parameters": {}}})


class CallingEngine(ScriptedEngine):
    """A real engine whose first `num_calling` answers call tools, as a server that parses calls gives them."""

    def __init__(self, directory: Path, *calls: ToolCall, num_calling: int = 1, seconds: float = 0.0) -> None:
        scripted = ScriptedSettings(token_seconds=seconds)
        super().__init__(EngineSettings(kind="scripted", model_path=directory, scripted=scripted))
        self.requests: list[GenerationRequest] = []
        self._calls = calls
        self._num_calling = num_calling

    async def generate(self, request: GenerationRequest) -> Generation:
        self.requests.append(request)
        found = await super().generate(request)
        return replace(found, tool_calls=self._calls) if len(self.requests) <= self._num_calling else found


@dataclass(eq=False)
class Counter:
    """Tools of a user's own, which are also their session: they add up what they are told."""

    answers: Mapping[str, str] = field(default_factory=dict)
    broken: str = ""
    slow: float = 0.0
    total: int = 0
    log: list[str] = field(default_factory=list)
    schemas: tuple[str, ...] = (SCHEMA,)
    reopens: bool = False
    replayable: bool = False

    async def open(self, session_id: str, attempt: int, task: Mapping[str, Any]) -> "Counter":
        self.log.append(f"open {attempt} {task['reference_answer']}")
        return self

    def is_replayable(self, name: str) -> bool:
        return self.replayable

    async def call(self, call: ToolCall) -> ToolAnswer:
        await asyncio.sleep(self.slow)
        if self.broken == "fenced":
            raise FencedToolError("another process goes on")
        if self.broken == "call":
            raise ToolError("the server is gone, key hunter2")
        self.total += int(json.loads(call.arguments)["by"])
        self.log.append(call.call_id)
        return ToolAnswer(call_id=call.call_id, content=self.answers.get(call.call_id, f"{self.total}="))

    async def verify(self, said: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.broken == "verify":
            raise ToolError("the server is gone")
        roles = [message["role"] for message in said["messages"]]
        return {"reward": float(self.total), "roles": roles}

    async def leave(self) -> None:
        self.log.append("leave")

    async def close(self) -> None:
        self.log.append("close")
        if self.broken == "close":
            raise ToolError("the server is gone")


def a_calling_prompt(**options: str) -> PromptSubmitted:
    """A prompt for the agent `tools`."""
    choice = AgentChoice(name="tools", options={"tools": "counter", **options})
    return a_prompt(
        messages=(Message(role="user", content="52910="),), agent=choice, purpose=Purpose.TRAIN,
        sampling=Sampling(max_tokens=12, seed=1),
    )  # fmt: skip


def runner_on(engine: CallingEngine, tools: Counter, seconds: float) -> SampleRunner:
    """Runs samples on these tools, each for so long."""
    bounds = SampleBounds(deadline_seconds=seconds, max_tries=2, grace_seconds=0.0)
    return SampleRunner(engine, identity=a_generator(), bounds=bounds, tools={"counter": tools})


def ended(engine: CallingEngine, tools: Counter, /, *, seconds: float = 30.0, **options: str) -> RolloutGenerated:
    """The sample of the agent `tools` on these tools."""

    async def run() -> RolloutGenerated:
        await engine.start(weight_version=3)
        return await runner_on(engine, tools, seconds).run(a_calling_prompt(**options), 0)

    return asyncio.run(run())


def add(call_id: str, by: int) -> ToolCall:
    return ToolCall(call_id=call_id, name="add", arguments=json.dumps({"by": by}))


@pytest.mark.parametrize(
    ("is_cancelled", "reopens", "end"), [(True, True, "leave"), (True, False, "close"), (False, True, "close")]
)
def test_only_a_sample_that_another_process_goes_on_with_leaves_its_session_open(
    tmp_path: Path, is_cancelled: bool, reopens: bool, end: str
) -> None:
    tools, prompt = Counter(reopens=reopens, slow=3600.0), a_calling_prompt()

    async def keep(progress: TurnProgress, is_urgent: bool) -> None:
        tools.log.append(progress.kind.value)

    async def run() -> None:
        engine = CallingEngine(tmp_path, add("a", 1))
        await engine.start(weight_version=3)
        journal = SampleJournal(rollout_id(prompt.group_id, 0), new_attempt_id(), "generator-1", keep)
        runner = runner_on(engine, tools, 3600.0 if is_cancelled else 0.05)
        sample = asyncio.create_task(runner.run(prompt, 0, None, journal))
        if is_cancelled:
            await until(lambda: "calling" in tools.log, "the call")
            sample.cancel()
            await asyncio.gather(sample, return_exceptions=True)
            assert (journal.left is not None) == (end == "leave")
        else:
            assert (await sample).status is Status.UNRESOLVED

    asyncio.run(run())
    assert tools.log[-1] == end
    assert {"leave", "close"} & {*tools.log} == {end}


@pytest.mark.parametrize("replayable", [True, False])
def test_no_tool_is_called_before_the_turn_that_calls_it_is_safe(tmp_path: Path, replayable: bool) -> None:
    tools, prompt = Counter(reopens=True, replayable=replayable), a_calling_prompt()

    async def keep(progress: TurnProgress, is_urgent: bool) -> None:
        tools.log.append("safe" if is_urgent else "sent")

    async def run() -> RolloutGenerated:
        engine = CallingEngine(tmp_path, add("a", 1), add("b", 1), num_calling=2)
        await engine.start(weight_version=3)
        journal = SampleJournal(rollout_id(prompt.group_id, 0), new_attempt_id(), "generator-1", keep)
        return await runner_on(engine, tools, 30.0).run(prompt, 0, None, journal)

    assert asyncio.run(run()).status is Status.COMPLETED
    before_calls = [before for before, one in zip(tools.log, tools.log[1:], strict=False) if one in ("a", "b")]
    assert before_calls == ["safe"] * 4


def test_a_sample_that_another_process_goes_on_with_has_no_outcome_here(tmp_path: Path) -> None:
    tools, prompt = Counter(broken="fenced", reopens=True), a_calling_prompt()

    async def keep(progress: TurnProgress, is_urgent: bool) -> None:
        pass

    async def run() -> None:
        engine = CallingEngine(tmp_path, add("a", 1), num_calling=2)
        await engine.start(weight_version=3)
        journal = SampleJournal(rollout_id(prompt.group_id, 0), new_attempt_id(), "generator-1", keep)
        runner = runner_on(engine, tools, 30.0)
        sample = asyncio.create_task(runner.run(prompt, 0, None, journal))
        await until(lambda: "close" in tools.log, "the refusal")
        done, _ = await asyncio.wait([sample], timeout=0.2)
        assert not done
        sample.cancel()
        await asyncio.gather(sample, return_exceptions=True)
        # Where nobody can go on, it says so at once.
        assert (await runner.run(prompt, 0)).status is Status.UNRESOLVED

    asyncio.run(run())


def test_the_model_sees_what_its_calls_were_answered_and_the_tools_judge_the_whole(tmp_path: Path) -> None:
    engine, tools = CallingEngine(tmp_path, add("a", 1), add("b", 2)), Counter()
    found = ended(engine, tools)
    first, second = found.turns
    assert found.status is Status.COMPLETED
    assert [(answer.call_id, answer.content) for answer in first.tool_answers] == [("a", "1="), ("b", "3=")]
    assert all(answer.latency_seconds >= 0 for answer in first.tool_answers)
    assert engine.detokenize(second.prompt_token_ids) == "1=3="
    assert second.prefix_turn == 0
    assert tools.log == ["open 0 01259", "a", "b", "close"]
    assert [request.tools for request in engine.requests] == [(SCHEMA,)] * 2
    verdict = json.loads(found.observations["verify"])
    assert verdict == {"reward": 3.0, "roles": ["user", "assistant", "tool", "tool", "assistant"]}


def test_calls_of_a_turn_run_side_by_side_where_the_options_say_so(tmp_path: Path) -> None:
    tools = Counter(slow=0.2)
    found = ended(CallingEngine(tmp_path, *(add(f"{one}", 1) for one in range(8))), tools, parallel="true", seconds=1.2)
    assert (found.status, tools.total) == (Status.COMPLETED, 8)


def test_calls_beyond_the_bound_are_not_made_and_the_model_is_told(tmp_path: Path) -> None:
    tools = Counter()
    found = ended(CallingEngine(tmp_path, *(add(f"{one}", 1) for one in range(MAX_TOOL_CALLS + 2))), tools)
    answers = found.turns[0].tool_answers
    assert (tools.total, len(answers)) == (MAX_TOOL_CALLS, MAX_TOOL_CALLS + 2)
    assert {answer.error for answer in answers[-2:]} == {f"not made: a turn may have {MAX_TOOL_CALLS} calls"}


def test_a_long_answer_is_cut_and_says_so(tmp_path: Path) -> None:
    found = ended(CallingEngine(tmp_path, add("a", 1)), Counter({"a": "ä" * MAX_TOOL_ANSWER_BYTES}))
    content = found.turns[0].tool_answers[0].content
    assert len(content.encode()) <= MAX_TOOL_ANSWER_BYTES
    assert content.endswith("ä\n[cut: the answer was longer]")


@pytest.mark.parametrize(("broken", "num_turns"), [("call", 1), ("verify", 2)])
def test_a_tool_that_does_not_answer_leaves_the_sample_unresolved_with_its_turns(
    tmp_path: Path, broken: str, num_turns: int
) -> None:
    tools = Counter(broken=broken)
    found = ended(CallingEngine(tmp_path, add("a", 1)), tools)
    assert found.failure
    assert (found.status, found.failure.code, len(found.turns)) == (Status.UNRESOLVED, FailureCode.TOOL, num_turns)
    assert tools.log[-1] == "close"


def test_a_session_that_is_not_closed_changes_no_sample(tmp_path: Path) -> None:
    found = ended(CallingEngine(tmp_path, add("a", 1)), Counter(broken="close"))
    assert (found.status, len(found.turns)) == (Status.COMPLETED, 2)


def test_a_sample_past_its_deadline_closes_its_session(tmp_path: Path) -> None:
    tools = Counter(slow=60.0)
    found = ended(CallingEngine(tmp_path, add("a", 1)), tools, seconds=0.3)
    assert found.failure
    assert (found.status, found.failure.code, len(found.turns)) == (Status.UNRESOLVED, FailureCode.DEADLINE, 1)
    assert tools.log[-1] == "close"


def test_a_conversation_beyond_its_bound_calls_no_tool_any_more(tmp_path: Path) -> None:
    tools = Counter()
    found = ended(CallingEngine(tmp_path, add("a", 1), num_calling=9), tools, max_context="14")
    assert (found.status, len(found.turns), tools.total) == (Status.COMPLETED, 2, 1)
    assert found.turns[-1].is_truncated
    last = found.turns[-1]
    assert last.prefix_tokens + len(last.prompt_token_ids) + len(last.token_ids) > 14


def test_a_sample_whose_last_turn_calls_again_is_completed_and_cut_off(tmp_path: Path) -> None:
    found = ended(CallingEngine(tmp_path, add("a", 1), num_calling=9), Counter(), max_steps="3")
    assert (found.status, len(found.turns)) == (Status.COMPLETED, 3)
    assert found.turns[-1].finish_reason is FinishReason.LENGTH
    assert found.turns[-1].tool_answers == ()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"tools": "http://evil"}, "tools 'http://evil' are none of this run: counter; declare them under"),
        ({"max_steps": "129"}, "max_steps '129' must be from 1 to 128"),
        ({"max_context": "1e9"}, "max_context '1e9' must be from 1 to 2147483648"),
        ({"max_steps": "-1"}, "max_steps '-1' must be from 1 to 128"),
        ({"parallel": "yes"}, "parallel 'yes' must be true or false"),
    ],
)
def test_options_that_the_agent_does_not_take_fail_the_sample(
    tmp_path: Path, options: dict[str, str], why: str
) -> None:
    tools = Counter()
    found = ended(CallingEngine(tmp_path), tools, **options)
    assert found.failure
    assert (found.status, found.failure.code) == (Status.FAILED, FailureCode.BAD_AGENT_OPTIONS)
    assert why in found.failure.message
    assert tools.log == []
