"""The engine `openai_http` against a fake server: what it asks, what it takes, and every way to fail."""

import asyncio
import time
from collections import deque
from typing import Any

import pytest

from rollstream.engines.http.engine import OpenAiHttpEngine
from rollstream.engines.protocol import Generation, GenerationRequest
from rollstream.engines.settings import EngineSettings
from rollstream.schemas.errors import (
    ConfigurationError,
    EngineDeadError,
    EngineError,
    EngineLateError,
    FailedSampleError,
    RefusedKeyError,
)
from rollstream.schemas.prompt import Message, Sampling, ToolCall
from rollstream.schemas.rollout import FinishReason
from tests.harness.fake_openai import WITHOUT_DATABASE, FakeOpenAI, Planned, fake_openai
from tests.harness.http_engines import ASKED, a_request, an_engine, many, on

TOOL = '{"name": "add", "parameters": {"type": "object"}}'


def answer(server: FakeOpenAI, request: GenerationRequest | None = None, **http: Any) -> Generation:
    """The answer of a fresh engine to one request."""
    return on(an_engine(server.url, **http), lambda engine: engine.generate(request or a_request()))


def test_a_chat_keeps_roles_and_its_answer_is_text_with_the_reported_usage() -> None:
    with fake_openai() as server:
        found = answer(server, a_request(seed=5))
    assert (found.text, found.finish_reason) == ("yes", FinishReason.STOP)
    assert (found.reported_prompt_tokens, found.reported_completion_tokens) == (7, 3)
    assert (len(found.token_ids), len(found.behavior_logprobs), found.weight_spans) == (0, 0, ())
    (asked,) = server.asked
    assert (asked.path, asked.authorization) == ("/v1/chat/completions", "")
    assert asked.body == {
        "model": "tiny",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2="}],
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 16,
        "seed": 5,
    }


def test_a_completion_is_one_message_as_plain_text() -> None:
    question = Message(role="user", content="2+2=")
    with fake_openai() as server:
        found = answer(server, a_request(messages=(question,)), api="completions")
        engine = an_engine(server.url, api="completions")
    assert found.text == "yes"
    assert server.asked[0].path == "/v1/completions"
    assert server.asked[0].body["prompt"] == "2+2="
    assert engine.tokenize((question,), ()) is None
    for messages, tools in ((ASKED, ()), ((question,), (TOOL,))):
        with pytest.raises(ValueError, match="takes one message as plain text"):
            engine.tokenize(messages, tools)


def test_an_opened_answer_is_the_beginning_of_the_models_message_and_plain_text_needs_no_setting() -> None:
    question = Message(role="user", content="2+2=")
    with fake_openai() as server:
        answer(server, a_request(messages=(question,), opening="<think>"))
        answer(server, a_request(messages=(question,), opening="<think>", is_text=True))
    chat, text = server.asked
    assert chat.body["messages"][-1] == {"role": "assistant", "content": "<think>"}
    assert (chat.body["continue_final_message"], chat.body["add_generation_prompt"]) == (True, False)
    assert (text.path, text.body["prompt"]) == ("/v1/completions", "2+2=<think>")


def test_stop_texts_and_top_k_are_sent_where_they_are_asked_for() -> None:
    with fake_openai() as server:
        answer(server, a_request(sampling=Sampling(top_k=20, stop=("\n",))))
    assert server.asked[0].body["top_k"] == 20
    assert server.asked[0].body["stop"] == ["\n"]


def test_tools_are_sent_in_openais_form_and_their_calls_come_back() -> None:
    called = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [called]}
    earlier = (
        *ASKED,
        Message(role="assistant", content="", tool_calls=(ToolCall(call_id="c", name="add", arguments="{}"),)),
        Message(role="tool", content="4", tool_call_id="c"),
    )
    with fake_openai(choice={"message": message, "finish_reason": "tool_calls"}) as server:
        found = answer(server, a_request(messages=earlier, tools=(TOOL,)))
    assert found.tool_calls == (ToolCall(call_id="call-1", name="add", arguments='{"a": 2}'),)
    assert (found.text, found.finish_reason) == ("", FinishReason.TOOL_CALLS)
    assert server.asked[0].body["tools"] == [
        {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    ]
    assert server.asked[0].body["messages"][2]["tool_calls"][0]["function"] == {"name": "add", "arguments": "{}"}
    assert server.asked[0].body["messages"][3]["tool_call_id"] == "c"


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_a_base_url_works_with_and_without_v1_and_with_any_key(ending: str) -> None:
    with fake_openai(kind="litellm") as server:
        found = on(an_engine(f"{server.url}{ending}", api_key="dummy"), lambda engine: engine.generate(a_request()))
    assert found.text == "yes"
    assert (server.asked[0].path, server.asked[0].authorization) == ("/v1/chat/completions", "Bearer dummy")


@pytest.mark.parametrize("kind", ["vllm", "sglang", "litellm", "plain"])
def test_readiness_calls_no_model(kind: str) -> None:
    async def nothing(engine: OpenAiHttpEngine) -> tuple[str, int]:
        return engine.version, engine.max_model_len

    with fake_openai(kind=kind) as server:
        version, max_model_len = on(an_engine(server.url), nothing)
    assert server.num_model_calls == 0
    assert server.asked == []
    expected = {"vllm": "vllm 0.32.0", "sglang": "sglang", "litellm": "litellm 1.80.0", "plain": "unknown"}
    assert version == expected[kind]
    assert max_model_len == (4096 if kind in ("vllm", "sglang") else 2**20)
    assert ("GET /health" in server.routes) == (kind == "vllm")


def test_a_server_that_is_still_loading_is_waited_for() -> None:
    async def while_it_loads(server: FakeOpenAI) -> int:
        engine = an_engine(server.url, ready_seconds=20.0)
        starting = asyncio.create_task(engine.start(0))
        while len(server.routes) < 4:
            await asyncio.sleep(0.01)
        assert not starting.done()
        server.is_ready = True
        await starting
        await engine.close()
        return len(server.asked)

    with fake_openai(kind="vllm", is_ready=False) as server:
        assert asyncio.run(while_it_loads(server)) == 0


def test_a_start_without_any_server_says_where_it_looked() -> None:
    with fake_openai() as server:
        gone = server.url
    with pytest.raises(EngineDeadError, match=rf"no server was ready within 0.5 s: {gone}: .*start one"):
        on(an_engine(gone, ready_seconds=0.5), many(1))


def test_a_refused_key_ends_the_start_and_is_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    from rollstream.process.masking import SECRETS

    with fake_openai(api_key="right") as server, pytest.raises(ConfigurationError) as refused:
        answer(server, api_key="wrong-and-secret")
    assert "refuses the key" in str(refused.value)
    assert "wrong-and-secret" not in SECRETS.masked(str(refused.value))
    assert "wrong-and-secret" not in caplog.text


def test_a_wrong_model_gives_the_servers_own_words_and_is_asked_once() -> None:
    with fake_openai() as server, pytest.raises(FailedSampleError) as failed:
        answer(server, model="gpt-9")
    assert failed.value.code == "refused"
    assert "The model `gpt-9` does not exist." in str(failed.value)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("planned", "code", "words"),
    [
        (Planned(status=400, message="This maximum context length is 512 tokens."), "prompt_too_long", "512 tokens"),
        (Planned(status=400, message="Invalid model name passed in model=tiny"), "refused", "Invalid model name"),
        (Planned(status=404, body=b"<html>nowhere</html>"), "refused", "<html>nowhere</html>"),
        (Planned(status=422, body=b'{"detail": [{"msg": "bad top_p"}]}'), "refused", "bad top_p"),
        (Planned(status=307, headers={"Location": "/elsewhere"}), "refused", "planned"),
    ],
)
def test_what_a_server_refuses_is_not_asked_again(planned: Planned, code: str, words: str) -> None:
    with fake_openai(planned=deque_of(planned)) as server, pytest.raises(FailedSampleError) as failed:
        answer(server)
    assert failed.value.code == code
    assert str(planned.status) in str(failed.value)
    assert words in str(failed.value)
    assert len(server.asked) == 1


@pytest.mark.parametrize("planned", [Planned(status=401), Planned(status=403), WITHOUT_DATABASE])
def test_a_key_that_is_refused_ends_the_engine_since_each_call_would_be(planned: Planned) -> None:
    with (
        fake_openai(planned=deque_of(planned)) as server,
        pytest.raises(
            RefusedKeyError, match=rf"refuses the key \(status {planned.status}\): planned; give another"
        ) as refused,
    ):
        answer(server)
    assert (refused.value.exit_code, len(server.asked)) == (78, 1)


@pytest.mark.parametrize("status", [408, 500, 502, 503, 504, 529])
def test_what_a_server_could_not_do_is_asked_again(status: int) -> None:
    with fake_openai(planned=deque_of(Planned(status=status), Planned(status=status))) as server:
        assert answer(server).text == "yes"
    assert len(server.asked) == 3


def test_tries_are_bounded_and_the_last_problem_is_told() -> None:
    with (
        fake_openai(planned=deque_of(*[Planned(status=500, message="out of memory")] * 9)) as server,
        pytest.raises(EngineError, match=r"2 tries failed; .*: status 500: out of memory") as failed,
    ):
        answer(server, max_tries=2)
    assert not isinstance(failed.value, EngineDeadError)
    assert len(server.asked) == 2


def test_a_dropped_connection_is_asked_again() -> None:
    with fake_openai(planned=deque_of(Planned(drop=True))) as server:
        assert answer(server).text == "yes"
    assert len(server.asked) == 2


def test_a_server_that_stays_away_ends_the_engine() -> None:
    """Else every prompt of a run, or row of a file, would end as unresolved."""

    async def after_it_died(engine: OpenAiHttpEngine) -> None:
        server.planned.extend([Planned(drop=True)] * 9)
        await engine.generate(a_request())

    with fake_openai() as server, pytest.raises(EngineDeadError, match="no server can be reached: 2 tries failed"):
        on(an_engine(server.url, max_tries=2), after_it_died)


def test_a_request_at_which_a_server_breaks_off_each_time_ends_itself_and_not_the_engine() -> None:
    """As long as others are answered. Else one prompt would end a generator, at each of its starts."""
    unlucky = Message(role="user", content="unlucky")

    async def ask(engine: OpenAiHttpEngine) -> list[Any]:
        asked = [a_request(messages=(unlucky,)), a_request()]
        return await asyncio.gather(*map(engine.generate, asked), return_exceptions=True)

    def is_unlucky(body: dict[str, Any]) -> bool:
        return bool(body["messages"][0]["content"] == unlucky.content)

    with fake_openai(drops=is_unlucky, latency_seconds=0.3) as server:
        broken, found = on(an_engine(server.url, max_tries=2), ask)
    assert (type(broken), found.text) == (EngineError, "yes")
    assert "2 tries failed" in str(broken)
    assert len(server.asked) == 3


def test_429_is_waited_for_and_not_counted_as_a_try() -> None:
    refused = [Planned(status=429, headers={"Retry-After": "0.1"}) for _ in range(6)]
    with fake_openai(planned=deque_of(*refused), latency_seconds=0.02) as server:
        found = on(an_engine(server.url, max_connections=2, max_tries=1), many(20))
    assert [one.text for one in found] == ["yes"] * 20
    assert server.num_model_calls == 20
    assert server.most_in_flight <= 2


def test_a_server_is_left_alone_for_as_long_as_it_asks() -> None:
    with fake_openai(planned=deque_of(Planned(status=429, headers={"Retry-After": "0.7"}))) as server:
        started = time.monotonic()
        answer(server)
    assert time.monotonic() - started >= 0.7


def test_a_call_ends_at_its_deadline_as_unresolved() -> None:
    with fake_openai(latency_seconds=30.0) as server, pytest.raises(EngineError, match=r"no answer within 0\.2 s"):
        answer(server, request_seconds=0.2)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("asked", ["86400", "9" * 400, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_server_that_asks_to_wait_beyond_the_deadline_is_told_at_once(status: int, asked: str) -> None:
    refused = Planned(status=status, message="slow down", headers={"Retry-After": asked})
    with (
        fake_openai(planned=deque_of(refused)) as server,
        pytest.raises(EngineLateError, match=rf"asks to wait .* s, longer than .* 20 s.*: status {status}: slow down"),
    ):
        answer(server)


def test_another_server_is_asked_while_one_wants_to_be_left_alone() -> None:
    refused = Planned(status=429, headers={"Retry-After": "86400"})
    with fake_openai(planned=deque_of(*[refused] * 3)) as busy, fake_openai() as server:
        assert [one.text for one in on(an_engine(busy.url, server.url), many(6))] == ["yes"] * 6
    assert (len(busy.asked), len(server.asked)) == (3, 6)


@pytest.mark.parametrize(
    "asked", ["Mon, 01 Jan 99999999999999999999 00:00:00 GMT", "nan", "-5", "soon", "Mon, 99 Jan 2026 00:00:00 GMT"]
)
def test_a_time_to_wait_that_nobody_can_read_is_none(asked: str) -> None:
    with fake_openai(planned=deque_of(Planned(status=429, headers={"Retry-After": asked}))) as server:
        assert answer(server).text == "yes"


def test_a_caller_that_leaves_frees_its_place() -> None:
    async def leave(engine: OpenAiHttpEngine) -> int:
        running = asyncio.create_task(engine.generate(a_request()))
        while not server.in_flight:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])
        server.latency_seconds = 0.0
        assert (await engine.generate(a_request(1))).text == "yes"
        return engine.in_flight

    with fake_openai(latency_seconds=30.0) as server:
        assert on(an_engine(server.url, max_connections=1), leave) == 0


def test_a_closed_engine_ends_its_requests() -> None:
    async def close(engine: OpenAiHttpEngine) -> list[Any]:
        running = [asyncio.create_task(engine.generate(a_request(index))) for index in range(4)]
        while server.in_flight < 2:
            await asyncio.sleep(0.01)
        await engine.close()
        return await asyncio.gather(*running, engine.generate(a_request()), return_exceptions=True)

    with fake_openai(latency_seconds=30.0) as server:
        ended = on(an_engine(server.url, max_connections=2), close)
    assert [type(one) for one in ended] == [EngineDeadError] * 5


def test_settings_that_name_no_server_or_no_model_are_refused() -> None:
    for http in ({}, {"urls": ["http://127.0.0.1:1"]}, {"model": "tiny"}):
        with pytest.raises(ValueError, match=r"needs http\.urls, at least one, and http\.model"):
            EngineSettings.model_validate({"kind": "openai_http", "http": http})
    with pytest.raises(ValueError, match="model_path"):
        EngineSettings.model_validate({"kind": "vllm"})


@pytest.mark.parametrize(
    ("urls", "said"),
    [
        (["ftp://host"], "must begin with http:// or https://"),
        (["http://user:secret-password@host"], "without user, password or query"),
        (["http://host?key=secret-password"], "without user, password or query"),
        (["http://host:8000", "http://host:8000/v1/"], "names a server twice"),
        ([f"http://host:{port}" for port in range(1, 66)], "at most 64"),
    ],
)
def test_urls_that_can_not_be_meant_are_refused_without_being_shown(urls: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        EngineSettings.model_validate({"kind": "openai_http", "http": {"urls": urls, "model": "tiny"}})
    assert "secret-password" not in str(refused.value)


def deque_of(*planned: Planned) -> deque[Planned]:
    """What happens to the first requests."""
    return deque(planned)
