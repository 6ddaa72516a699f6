"""The simple agent's server and the model's: the tool loop over HTTP, and what of it the model sees (G7)."""

import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from aiohttp import web

from rollstream.gym.addresses import AGENTS, RESOURCES
from rollstream.gym.servers.chat import response_of_chat
from rollstream.gym.servers.entry import agent_app, model_app
from rollstream.gym.servers.plan import MODELS
from rollstream.gym.servers.settings import AgentSettings, ModelSettings
from rollstream.schemas.errors import EngineError
from tests.harness.gym_stack import answering, placed
from tests.harness.resources_server import Resources, resources
from tests.harness.scripted_model import Item, ScriptedModel, calls, says, scripted_model
from tests.harness.waits import in_a_loop

TOOLS = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("add", "read")]
ROW = {"responses_create_params": {"input": "Add 2.", "tools": TOOLS}, "anything": {"else": [1, None]}}


@asynccontextmanager
async def agent(
    model: ScriptedModel, tools: Resources, chat: bool = False, mode: str = "unknown", **settings: Any
) -> AsyncIterator[str]:
    """The address of an agent's server between these two; `mode`: the `reverify_mode` of the tools."""
    named = {"base_url": model.url, "api_key": "planted-key", "model": "tiny", "entrypoint": "app.py", "max_tries": 2}
    references = {"resources_server": {"type": RESOURCES, "name": "r"}, "model_server": {"type": MODELS, "name": "m"}}
    made = AgentSettings.model_validate({"entrypoint": "app.py", **references, **settings})
    async with (
        model_app(ModelSettings.model_validate(named), speaks_chat=chat) as models,
        answering(models) as model_url,
        agent_app(made, _configured(tools.url, model_url, mode)) as app,
        answering(app) as url,
    ):
        yield url


def _configured(tools_url: str, model_url: str, mode: str) -> dict[str, Any]:
    found = placed(r={RESOURCES: tools_url}, m={MODELS: model_url}, a={AGENTS: model_url})
    found["r"][RESOURCES]["one"]["reverify_mode"] = mode
    return found


async def ran(url: str, row: dict[str, Any] | None = None) -> httpx.Response:
    async with httpx.AsyncClient(timeout=30) as client:
        return await client.post(f"{url}/run", json=row or ROW)


def outputs(answer: httpx.Response) -> list[str]:
    """What the tools said."""
    items = answer.json()["response"]["output"]
    return [item["output"] for item in items if item["type"] == "function_call_output"]


def then_done(*first: Item) -> Any:
    """A model that makes these calls, then answers."""
    return lambda items: list(first) if len(items) == 1 else [says("done")]


@in_a_loop
async def test_a_rollout_is_seeded_run_verified_and_closed_in_one_session_with_the_row_as_it_came() -> None:
    with (
        scripted_model(answer=then_done(calls("add", {"by": 2}), calls("read", {}, "call-2"))) as model,
        resources(knows_ids=False) as tools,
    ):
        async with agent(model, tools) as url:
            answer = await ran(url)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["reward"] == 2.0
    assert [json.loads(text) for text in outputs(answer)] == [{"total": 2}, {"total": 2}]
    assert {name: found[name] for name in ROW} == ROW
    assert found["response"]["usage"]["output_tokens"] == 16
    assert [route for route, _, _ in tools.log] == ["seed_session", "add", "read", "verify", "close_session"]
    # The cookie of the seed is the session of all that follows.
    assert len({session for _, session, _ in tools.log[1:]}) == 1
    assert tools.log[0][2] == ROW
    assert tools.totals == {}


@pytest.mark.parametrize("status", ["500", "404", "422"])
@in_a_loop
async def test_g7_what_a_tool_answers_with_an_error_is_its_output_and_the_reward_is_computed(status: str) -> None:
    with (
        scripted_model(answer=then_done(calls("add", {"by": 2}))) as model,
        resources(faults={"add": [status]}) as tools,
    ):
        async with agent(model, tools) as url:
            answer = await ran(url)
    assert answer.status_code == 200, answer.text
    assert outputs(answer) == [f"as told: {status}"]
    assert answer.json()["reward"] == 0.0
    assert model.asked[-1]["input"][-1]["output"] == f"as told: {status}"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (calls("add", "{broken"), "Invalid tool call arguments: "),
        (calls("add", "[1]"), "Invalid tool call arguments: they must be a JSON object"),
        (calls("verify", {}), "no tool is called 'verify'"),
        (calls("../close_session", {}), "no tool is called"),
        (calls("x" * 10**6, {}), "no tool is called"),
    ],
)
@in_a_loop
async def test_g7_broken_arguments_and_unknown_tools_are_error_items_and_arrive_nowhere(call: Item, said: str) -> None:
    with scripted_model(answer=then_done(call)) as model, resources() as tools:
        async with agent(model, tools) as url:
            answer = await ran(url)
    assert answer.json()["reward"] == 0.0
    assert json.loads(outputs(answer)[0])["error"].startswith(said)
    assert [route for route, _, _ in tools.log] == ["seed_session", "verify", "close_session"]


@pytest.mark.parametrize("fault", ["leave", "huge", "redirect", "zipped", "cookies", "503", "409"])
@in_a_loop
async def test_a_tool_that_says_nothing_of_a_call_leaves_the_rollout_without_a_reward(fault: str) -> None:
    with (
        scripted_model(answer=then_done(calls("add", {"by": 2}))) as model,
        resources(faults={"add": [fault]}) as tools,
    ):
        async with agent(model, tools) as url:
            answer = await ran(url)
    assert answer.status_code == 502
    assert "reward" not in answer.json()
    assert (tools.count("add"), tools.count("verify"), tools.count("close_session")) == (1, 0, 1)


@pytest.mark.parametrize("fault", ["500", "garbage", "list", "leave"])
@in_a_loop
async def test_a_verifier_that_gives_no_verdict_leaves_the_rollout_without_a_reward(fault: str) -> None:
    with scripted_model(answer=lambda items: [says("done")]) as model, resources(faults={"verify": [fault]}) as tools:
        async with agent(model, tools) as url:
            answer = await ran(url)
    assert answer.status_code == 502
    assert tools.count("close_session") == 1


@pytest.mark.parametrize(("mode", "num_asked", "status"), [("unsupported", 1, 502), ("stateless", 2, 200)])
@in_a_loop
async def test_a_verdict_that_broke_off_is_asked_for_again_only_of_a_server_without_sessions(
    mode: str, num_asked: int, status: int
) -> None:
    with (
        scripted_model(answer=lambda items: [says("done")]) as model,
        resources(faults={"verify": ["leave", "ok"]}) as tools,
    ):
        async with agent(model, tools, mode=mode) as url:
            answer = await ran(url)
    assert (tools.count("verify"), answer.status_code) == (num_asked, status)


@in_a_loop
async def test_a_verifier_may_take_longer_than_a_tool_and_ends_at_its_own_deadline() -> None:
    with (
        scripted_model(answer=lambda items: [says("done")]) as model,
        resources(faults={"verify": ["hang"]}) as tools,
    ):
        async with agent(model, tools, tool_seconds=0.1, verify_seconds=0.5) as url:
            late = await ran(url)
    assert (late.status_code, "the verification in tools 'resources' took longer than 0.5 s" in late.text) == (
        502,
        True,
    )


@in_a_loop
async def test_a_tool_that_hangs_ends_at_its_deadline_and_a_model_at_that_of_the_rollout() -> None:
    with (
        scripted_model(answer=then_done(calls("add", {"by": 2}))) as model,
        resources(faults={"add": ["hang"]}) as tools,
    ):
        async with agent(model, tools, tool_seconds=0.3) as url:
            late = await ran(url)
        async with agent(model, tools, run_seconds=0.3) as url:
            later = await ran(url)
    assert (late.status_code, "longer than 0.3 s" in late.text) == (502, True)
    assert (later.status_code, "run_seconds" in later.text) == (502, True)
    assert tools.count("close_session") == 2


@in_a_loop
async def test_a_model_that_calls_for_ever_ends_at_max_steps_and_one_turn_makes_at_most_16_calls() -> None:
    many = [calls("add", {"by": 1}, f"call-{number}") for number in range(20)]
    with scripted_model(answer=lambda items: many) as model, resources() as tools:
        async with agent(model, tools, max_steps=3) as url:
            answer = await ran(url)
    assert (answer.json()["reward"], len(model.asked)) == (48.0, 3)
    assert "at most 16 calls at once" in outputs(answer)[-1]


@in_a_loop
async def test_a_model_without_room_for_another_turn_has_ended_cut_off() -> None:
    full = {"error": {"message": "This model's maximum context length is 10 tokens", "code": "context_length_exceeded"}}

    def answer(items: list[Item]) -> list[Item] | web.Response:
        return [calls("add", {"by": 2})] if len(items) == 1 else web.json_response(full, status=400)

    with scripted_model(answer=answer) as model, resources() as tools:
        async with agent(model, tools) as url:
            found = await ran(url)
    assert found.json()["reward"] == 2.0
    assert found.json()["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (web.json_response({"error": {"message": "no such parameter"}}, status=400), 400),
        (web.json_response({}, status=401), 502),
        (web.json_response({}, status=500), 502),
        (web.json_response({"output": "none"}), 502),
        (web.json_response({"output": [3]}), 502),
        (web.Response(body=b"\xff"), 502),
    ],
)
@in_a_loop
async def test_a_model_that_gives_no_response_is_told_from_a_request_that_it_refuses(
    reply: web.Response, status: int
) -> None:
    with (
        scripted_model(answer=lambda items: web.Response(body=reply.body, status=reply.status)) as model,
        resources() as tools,
    ):
        async with agent(model, tools) as url:
            found = await ran(url)
    assert found.status_code == status, found.text
    assert "planted-key" not in found.text
    assert tools.count("close_session") == 1


@in_a_loop
async def test_vllm_model_makes_chats_of_responses_with_calls_answers_and_thoughts() -> None:
    row = {
        "responses_create_params": {**ROW["responses_create_params"], "max_output_tokens": 50, "instructions": "Be."}
    }
    del row["responses_create_params"]["instructions"]
    with scripted_model() as model, resources() as tools:
        async with agent(model, tools, chat=True) as url:
            found = await ran(url, row)
            strange = await ran(url, {"responses_create_params": {"input": "x", "reasoning": {"effort": "low"}}})
    assert found.status_code == 200, found.text
    assert [item["type"] for item in found.json()["response"]["output"]] == [
        "reasoning", "function_call", "function_call_output", "reasoning", "message",
    ]  # fmt: skip
    first, second = model.asked[:2]
    assert (first["max_completion_tokens"], first["tools"][0]["function"]["name"]) == (50, "add")
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "tool"]
    assert second["messages"][1]["reasoning_content"] == "hm"
    assert second["messages"][1]["tool_calls"][0]["function"] == {"name": "add", "arguments": "{}"}
    assert (strange.status_code, "can't pass on reasoning" in strange.text) == (400, True)


PROMPT = {"prompt_token_ids": [5, 6]}
SAMPLED = {"token_ids": [7, 8], "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -1}]}}


def a_chat(choice: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": "x"}, **choice}], **fields}


def test_g23_the_tokens_of_a_chat_lie_on_its_last_item() -> None:
    response = response_of_chat({}, a_chat(SAMPLED, **PROMPT), has_tokens=True)
    given = {"generation_token_ids": [7, 8], "generation_log_probs": [-0.5, -1.0], **PROMPT}
    assert response["output"][-1] == {**response_of_chat({}, a_chat({}))["output"][-1], **given}


@pytest.mark.parametrize(
    ("choice", "fields"),
    [
        ({}, {}),
        (SAMPLED, {}),
        ({**SAMPLED, "token_ids": [7]}, PROMPT),
        ({**SAMPLED, "token_ids": ["7", "8"]}, PROMPT),
        ({**SAMPLED, "logprobs": None}, PROMPT),
        ({**SAMPLED, "logprobs": {"content": [{}, {}]}}, PROMPT),
        ({**SAMPLED, "logprobs": {"content": [{"logprob": "-1"}, {"logprob": -1}]}}, PROMPT),
        ({**SAMPLED, "logprobs": {"content": [{"logprob": "x"}, {"logprob": -1}]}}, PROMPT),
        ({**SAMPLED, "logprobs": {"content": [{"logprob": math.nan}, {"logprob": -1}]}}, PROMPT),
        ({**SAMPLED, "token_ids": [7, 2**40]}, PROMPT),
    ],
)
def test_g23_a_chat_without_the_tokens_that_were_asked_for_is_no_answer(
    choice: dict[str, Any], fields: dict[str, Any]
) -> None:
    with pytest.raises(EngineError, match="without its message or its tokens"):
        response_of_chat({}, a_chat(choice, **fields), has_tokens=True)


@pytest.mark.parametrize("row", [{}, {"responses_create_params": 3}, {"responses_create_params": {"tools": 3}}])
@in_a_loop
async def test_a_row_without_what_it_needs_is_refused(row: dict[str, Any]) -> None:
    with scripted_model() as model, resources() as tools:
        async with agent(model, tools) as url:
            assert (await ran(url, {"x": 1, **row})).status_code == 400
    assert tools.log == []


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("field", [{"input": 5}, {"input": "hi", "tools": True}])
@in_a_loop
async def test_a_field_that_is_no_list_is_named(field: dict[str, Any], chat: bool) -> None:
    with scripted_model() as model, resources() as tools:
        async with agent(model, tools, chat=chat) as url:
            found = await ran(url, {"responses_create_params": field})
    assert (found.status_code, "it must be a list" in found.text) == (400, True)
    assert model.asked == []
