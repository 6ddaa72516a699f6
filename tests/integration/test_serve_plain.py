"""The endpoint over an engine without routes of its own, and the layer before the routes, with a stock client."""

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rollstream.engines.scripted import ScriptedEngine
from rollstream.engines.settings import EngineSettings, ScriptedSettings
from tests.harness import serving
from tests.harness.late import Late
from tests.harness.waits import until

openai = Late("openai")

ASKED = [{"role": "user", "content": "52910="}]
SECRET = "of-this-test"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """An endpoint over the scripted engine, in this process."""

    engine: ScriptedEngine
    url: str
    client: Any

    async def ask(self, **changes: Any) -> Any:
        """A stock client's call."""
        return await self.client.chat.completions.create(**{"model": serving.MODEL, "messages": ASKED, **changes})

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """A call without a client: its status and body."""
        headers = {"x-api-key": serving.KEY, **{name.replace("_", "-"): value for name, value in headers.items()}}
        async with aiohttp.ClientSession() as session, session.post(self.url + path, json=body, headers=headers) as got:
            return got.status, await got.json()

    async def records(self) -> list[serving.ServedCall]:
        return list(await serving.recorded(self.engine))


@asynccontextmanager
async def plain(tmp_path: Path, *, token_seconds: float = 0.0, **changes: Any) -> AsyncIterator[Plain]:
    settings = EngineSettings(
        kind="scripted",
        model_path=tmp_path,
        max_num_seqs=2,
        scripted=ScriptedSettings(correct_ratio=1.0, token_seconds=token_seconds),
    )
    engine = ScriptedEngine(settings)
    await engine.start(3)
    url = await serving.serve(engine, settings, {"subject_secret": SECRET, **changes})
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=serving.KEY, max_retries=0)
    try:
        yield Plain(engine=engine, url=url, client=client)
    finally:
        await client.close()
        await serving.close(engine)


def run(scenario: Callable[[Plain], Awaitable[None]], tmp_path: Path, **changes: Any) -> None:
    async def with_endpoint() -> None:
        async with plain(tmp_path, **changes) as endpoint:
            await scenario(endpoint)

    asyncio.run(with_endpoint())


def test_chat_completions_are_answered_and_recorded(tmp_path: Path) -> None:
    async def scenario(endpoint: Plain) -> None:
        answer = await endpoint.ask(n=2, max_tokens=20)
        (call,) = await endpoint.records()
        assert (call.response_id, call.is_plain) == (answer.id, True)
        assert [choice.message.content for choice in answer.choices] == ["01259"] * 2
        assert [choice.text for choice in call.choices] == ["01259"] * 2
        assert call.choices[0].weight_spans[0].weight_version == 3
        assert answer.usage.completion_tokens == sum(len(choice.token_ids) for choice in call.choices)

    run(scenario, tmp_path)


def test_a_streamed_answer_comes_as_one_chunk_a_choice(tmp_path: Path) -> None:
    async def scenario(endpoint: Plain) -> None:
        stream = await endpoint.ask(stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        assert [choice.delta.content for chunk in chunks for choice in chunk.choices] == ["01259"]
        assert chunks[-1].usage.prompt_tokens == 6
        (call,) = await endpoint.records()
        assert {chunk.id for chunk in chunks} == {call.response_id}

    run(scenario, tmp_path)


def test_a_call_says_its_session_and_its_person_in_three_ways(tmp_path: Path) -> None:
    hidden = hmac.new(SECRET.encode(), b"ann", "sha256").hexdigest()
    body = {"model": serving.MODEL, "messages": ASKED}
    told = {**body, "metadata": {"session_id": "of-metadata", "user_id": "ann"}, "user": "bob"}

    async def scenario(endpoint: Plain) -> None:
        await endpoint.post("/v1/chat/completions", told)
        await endpoint.post("/s/of-path/v1/chat/completions", told)
        await endpoint.post("/s/of-path/v1/chat/completions", told, x_session_id="of-header", x_subject="eve")
        await endpoint.post("/v1/chat/completions", {**body, "user": "ann"})
        first, second, third, fourth = (call.caller for call in await endpoint.records())
        assert [one.session for one in (first, second, third, fourth)] == ["of-metadata", "of-path", "of-header", ""]
        assert (first.subject, second.subject, fourth.subject) == (hidden,) * 3
        assert third.subject not in ("eve", hidden)

    run(scenario, tmp_path)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ([1], 400, "must be a JSON object"),
        ({"messages": ASKED, "model": "gpt"}, 400, "'tiny' alone"),
        ({"messages": ASKED, "model": "tiny", "previous_response_id": "a"}, 400, "previous_response_id"),
        ({"messages": ASKED, "model": "tiny", "frequency_penalty": 1}, 400, "frequency_penalty"),
        ({"messages": ASKED, "model": "tiny", "temperature": "hot"}, 400, "temperature"),
        ({"messages": ASKED, "model": "tiny", "n": 0}, 400, "n: "),
        ({"messages": [{"role": "user", "content": "1" * 5000}], "model": "tiny"}, 400, "shorten it"),
        ({"messages": "hello", "model": "tiny"}, 400, "shape"),
        ({"messages": ASKED, "model": "tiny", "metadata": {"session_id": "a" * 257}}, 400, "257 characters"),
        ({"messages": ASKED, "model": "tiny", "metadata": {"session_id": "a\x00"}}, 400, "printable"),
    ],
)
def test_a_call_that_cannot_be_answered_is_refused_with_what_to_change(
    tmp_path: Path, body: Any, status: int, message: str
) -> None:
    async def scenario(endpoint: Plain) -> None:
        found, answer = await endpoint.post("/v1/chat/completions", body)
        assert (found, message in answer["error"]["message"]) == (status, True), answer
        assert await endpoint.records() == []

    run(scenario, tmp_path)


def test_there_are_no_routes_but_the_declared_ones(tmp_path: Path) -> None:
    async def scenario(endpoint: Plain) -> None:
        body = {"model": serving.MODEL, "messages": ASKED}
        for path in ("/v1/embeddings", "/openapi.json", "/v1/chat/completions/batch", "/s/a", "/metrics", "/tokenize"):
            assert (await endpoint.post(path, body))[0] == 404
        assert (await endpoint.post("/v1/models", body))[0] == 405
        assert (await endpoint.post("/v1/messages", {**body, "max_tokens": 3}))[0] == 404
        assert [model.id async for model in endpoint.client.models.list()] == [serving.MODEL]

    run(scenario, tmp_path)


@pytest.mark.parametrize(("begin", "end"), [(True, False), (False, True)])
def test_a_full_spool_answers_503_when_a_call_begins_and_when_it_ends(tmp_path: Path, begin: bool, end: bool) -> None:
    async def scenario(endpoint: Plain) -> None:
        await serving.fill_spool(endpoint.engine, begin, end)
        with pytest.raises(openai.InternalServerError) as refusal:
            await endpoint.ask()
        assert (refusal.value.status_code, refusal.value.response.headers["retry-after"]) == (503, "1")
        assert await endpoint.records() == []
        await serving.fill_spool(endpoint.engine, False, False)
        await endpoint.ask()
        assert len(await endpoint.records()) == 1

    run(scenario, tmp_path)


def test_when_enough_calls_wait_the_next_is_answered_503(tmp_path: Path) -> None:
    async def scenario(endpoint: Plain) -> None:
        running = [asyncio.create_task(endpoint.ask()) for _ in range(3)]
        await until(lambda: endpoint.engine.in_flight == 2, "both places are taken")
        with pytest.raises(openai.InternalServerError, match="too many calls wait"):
            await endpoint.ask()
        answered = await asyncio.gather(*running, return_exceptions=True)
        assert len(await endpoint.records()) == sum(not isinstance(answer, BaseException) for answer in answered)

    run(scenario, tmp_path, token_seconds=0.1, max_waiting=1)


@pytest.mark.parametrize(("when_client_leaves", "num_records"), [("abort", 0), ("finish", 1)])
def test_a_client_that_leaves_ends_its_call_or_not_as_the_settings_say(
    tmp_path: Path, when_client_leaves: str, num_records: int
) -> None:
    async def scenario(endpoint: Plain) -> None:
        leaving = asyncio.create_task(endpoint.ask())
        await until(lambda: endpoint.engine.in_flight == 1, "the engine has the call")
        leaving.cancel()
        await until(lambda: endpoint.engine.in_flight == 0, "the engine is idle")
        assert len(await endpoint.records()) == num_records

    run(scenario, tmp_path, token_seconds=0.05, when_client_leaves=when_client_leaves)


def test_a_call_that_takes_too_long_ends_as_cut_off_or_as_503_if_it_only_waited(tmp_path: Path) -> None:
    async def scenario(endpoint: Plain) -> None:
        long = "1" * 100 + "="
        asked = {"messages": [{"role": "user", "content": long}], "max_tokens": 100}
        answers = await asyncio.gather(*(endpoint.ask(**asked) for _ in range(4)), return_exceptions=True)
        refused = [one for one in answers if isinstance(one, openai.InternalServerError)]
        reasons = [one.choices[0].finish_reason for one in answers if not isinstance(one, BaseException)]
        assert (reasons, [one.status_code for one in refused]) == (["length"] * 2, [503] * 2)
        assert len(await endpoint.records()) == 2

    run(scenario, tmp_path, token_seconds=0.05, answer_seconds=0.5)
