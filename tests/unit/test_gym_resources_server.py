"""A resources server over HTTP: sessions never mix, end, and stay closed; what strangers send is bounded."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from rollstream.gym.servers.entry import resources_app
from rollstream.gym.servers.settings import ResourcesSettings
from rollstream.process.settings.tools import ToolSettings
from rollstream.schemas.errors import ToolError
from rollstream.schemas.prompt import ToolCall
from rollstream.tools.build import tool_sets
from tests.harness.gym_stack import answering
from tests.harness.waits import in_a_loop

COUNTER = "rollstream.gym.servers.examples.counter.SessionCounter"
MULTI_STEP = "rollstream.gym.servers.examples.multi_step.MultiStep"
OWN = "tests.harness.own_tools.Box"
RESPONSE: dict[str, Any] = {"output": []}


@asynccontextmanager
async def server(path: str = COUNTER, **settings: Any) -> AsyncIterator[str]:
    """The address of a server of this class."""
    async with (
        resources_app(ResourcesSettings(entrypoint=path, **settings)) as app,
        answering(app) as url,
    ):
        yield url


class Client:
    """One session, by its cookie, or by its id and attempt."""

    def __init__(self, url: str, session: str = "", attempt: int = 0) -> None:
        headers = {"Rollstream-Session": session, "Rollstream-Attempt": str(attempt)} if session else {}
        self.http = httpx.AsyncClient(base_url=url, headers=headers, timeout=30)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.http.aclose()

    async def post(self, route: str, **fields: Any) -> httpx.Response:
        return await self.http.post(f"/{route}", json=fields)

    async def count(self) -> int:
        found = (await self.post("get_counter_value")).json()["count"]
        assert isinstance(found, int)
        return found


async def mixed(url: str, number: int) -> None:
    """Two sessions, whose calls alternate; one begins where the other does not."""
    async with Client(url) as one, Client(url, f"session/{number}") as other:
        await one.post("seed_session", initial_count=number)
        await other.post("seed_session", initial_count=1000 + number)
        for step in range(1, 3):
            await one.post("increment_counter", count=step)
            await other.post("increment_counter", count=10 * step)
            assert await one.count() == number + sum(range(1, step + 1))
        verdicts = [
            (await client.post("verify", response=RESPONSE, expected_count=expected)).json()["reward"]
            for client, expected in ((one, number + 3), (other, 1000 + number + 30), (one, 1000 + number + 30))
        ]
        assert verdicts == [1.0, 1.0, 0.0]
        for client in (one, other):
            assert (await client.post("close_session")).json() == {"closed": True}


async def mixed_pairs(num_pairs: int) -> None:
    async with server() as url:
        places = asyncio.Semaphore(8)

        async def bounded(number: int) -> None:
            async with places:
                await mixed(url, number)

        await asyncio.gather(*map(bounded, range(num_pairs)))


@in_a_loop
async def test_g6_two_interleaved_sessions_never_mix() -> None:
    await mixed_pairs(50)


@pytest.mark.slow
@pytest.mark.timeout(900)  # 2,000 processes, on a machine that may be busy
@in_a_loop
async def test_g6_a_thousand_pairs_of_sessions_never_mix() -> None:
    await mixed_pairs(1000)


@in_a_loop
async def test_the_kind_http_of_tools_calls_verifies_and_closes_sessions_of_this_server() -> None:
    """Our own client of Gym's servers: a higher attempt goes on with the state, a lower one is refused."""
    task = {"tools": [json.dumps({"name": name}) for name in ("increment_counter", "get_counter_value")]}
    row = {"metadata": {"row": json.dumps({"initial_count": 5, "expected_count": 7})}}
    add = ToolCall(call_id="1", name="increment_counter", arguments='{"count": 1}')
    async with server() as url:
        settings = ToolSettings(kind="http", url=url, reopens=True)
        async with tool_sets({"counter": settings}) as sets:
            first = await sets["counter"].open("sample-1", 0, {**task, **row})
            assert (await first.call(add)).error is None
            second = await sets["counter"].open("sample-1", 1, {**task, **row})
            assert (await second.call(add)).error is None
            with pytest.raises(ToolError, match="another process's"):
                await first.call(add)
            verdict = await second.verify({"response": RESPONSE})
            assert verdict == {"initial_count": 5, "expected_count": 7, "response": RESPONSE, "reward": 1.0}
            await second.close()
            with pytest.raises(ToolError, match="not open any more"):
                await second.call(add)
            with pytest.raises(ToolError, match="attempt 1 has this session"):
                await sets["counter"].open("sample-1", 0, {**task, **row})


@in_a_loop
async def test_arguments_that_do_not_fit_and_a_tools_own_error_are_status_400_with_the_reason() -> None:
    async with server(OWN) as url, Client(url) as client:
        await client.post("seed_session")
        wrong = await client.post("add", by="much")
        unknown = await client.post("no_such_tool")
        garbage = await client.http.post("/add", content=b"{not json")
    assert (wrong.status_code, "Invalid tool call arguments" in wrong.json()["error"]) == (400, True)
    assert (unknown.status_code, "no tool is called" in unknown.json()["error"]) == (400, True)
    assert garbage.status_code == 400


@in_a_loop
async def test_sessions_are_bounded_in_number_and_those_that_nobody_uses_are_closed() -> None:
    async with (
        server(max_sessions=2, session_seconds=0.4) as url,
        Client(url) as one,
        Client(url) as two,
        Client(url) as three,
    ):
        assert [(await client.post("seed_session")).status_code for client in (one, two, three)] == [200, 200, 503]
        async with asyncio.timeout(20):
            while (await three.post("seed_session")).status_code == 503:
                await asyncio.sleep(0.05)
        assert (await one.post("get_counter_value")).status_code == 409


@in_a_loop
async def test_a_verdict_needs_a_session_unless_the_server_says_that_it_needs_none() -> None:
    items = [{"type": "function_call", "name": "extract_synonym_values", "arguments": '{"synonym_values": [3, 2]}'}]
    row = {"response": {"output": items}, "expected_synonym_values": [2, 3], "minefield_label_value": 3}
    async with server() as url, Client(url) as client:
        assert (await client.http.get("/reverify_mode")).json() == "unknown"
        assert (await client.post("verify", **row)).status_code == 400
    async with server(MULTI_STEP, reverify_mode="stateless") as url, Client(url) as client:
        assert (await client.http.get("/reverify_mode")).json() == "stateless"
        found = (await client.post("verify", **row)).json()
    assert {name: found[name] for name in found if name not in row} == {
        "reward": 0.0,
        "parsed_synonym_values": [3, 2],
        "accuracy": False,
        "set_overlap": 1.0,
        "original_term_minefield_hit": True,
        "order_instruction_following_failure": True,
    }


@pytest.mark.parametrize(
    ("options", "why"), [({"broken": "verify"}, "not an object"), ({"key": "planted"}, "finite number")]
)
@in_a_loop
async def test_no_verdict_is_a_fault_of_the_server_and_no_reward_of_0(options: dict[str, str], why: str) -> None:
    async with server(OWN, options=options) as url, Client(url) as client:
        await client.post("seed_session")
        await client.post("add", by=10**30)
        found = await client.post("verify", response=RESPONSE)
    assert found.status_code == 502
    assert why in found.json()["error"]["message"] or "beyond" in found.json()["error"]["message"]


@pytest.mark.parametrize(
    ("route", "headers", "content", "status"),
    [
        ("verify", {}, b"[]", 400),
        ("verify", {}, b'{"response": {"output": 3}}', 400),
        ("seed_session", {}, b"[" * 100_000, 400),
        ("seed_session", {}, b'{"a": 1, "a": 2}', 400),
        ("seed_session", {"Rollstream-Session": "x" * 1001}, b"{}", 400),
        ("seed_session", {"Rollstream-Session": "x", "Rollstream-Attempt": "-1"}, b"{}", 400),
        ("seed_session", {"Rollstream-Session": "x", "Rollstream-Attempt": "9" * 4000}, b"{}", 400),
        ("get_counter_value", {"Cookie": "rollstream_session=" + "x" * 1001}, b"{}", 400),
        ("get_counter_value", {"Cookie": "rollstream_session=unknown"}, b"{}", 409),
        ("a/b/../c", {}, b"{}", 404),
        ("aggregate_metrics", {}, b'{"verify_responses": [{"_ng_task_index": -1}]}', 400),
        ("aggregate_metrics", {}, b'{"verify_responses": 3}', 400),
    ],
)
@in_a_loop
async def test_what_strangers_send_is_refused_and_the_server_goes_on(
    route: str, headers: dict[str, str], content: bytes, status: int
) -> None:
    async with server() as url, Client(url) as client:
        found = await client.http.post(f"/{route}", content=content, headers=headers)
        assert found.status_code == status, found.text
        assert (await client.post("seed_session")).status_code == 200


@in_a_loop
async def test_metrics_of_rollouts_that_are_sent_are_those_of_files() -> None:
    rewards = [(0, 1.0), (0, 0.0), (1, 1.0)]
    rows = [{"_ng_task_index": task, "reward": reward} for task, reward in rewards]
    async with server() as url, Client(url) as client:
        found = (await client.post("aggregate_metrics", verify_responses=rows)).json()
    assert found["key_metrics"] == {"mean/reward": 2 / 3}
    assert [task["mean/reward"] for task in found["group_level_metrics"]] == [0.5, 1.0]
