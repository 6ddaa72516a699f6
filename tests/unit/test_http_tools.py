"""Tools of kind `http`: what a resources server says, what it must not make of us, and who goes on with a session."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from prometheus_client import REGISTRY

from rollstream.process.settings.tools import ToolSettings
from rollstream.schemas.errors import FailedSampleError, ToolError
from rollstream.schemas.prompt import ToolCall
from rollstream.tools.build import tool_sets
from rollstream.tools.protocol import ToolSession, ToolSet
from tests.harness.resources_server import ADD, READ, Resources, resources

TASK = {
    "messages": [{"role": "user", "content": "Add 2."}],
    "tools": [ADD, READ],
    "reference_answer": "2",
    "metadata": {"level": "easy"},
}
ROW = {"responses_create_params": {"input": "Add 2.", "tools": []}, "expected": [2, {"ä": None}]}


@pytest.fixture
def server() -> Iterator[Resources]:
    with resources() as found:
        yield found


def with_tools(server: Resources, use: Callable[[ToolSet], Awaitable[Any]], **settings: Any) -> Any:
    kind = {"kind": "http", "url": server.url, "reopens": True, "call_seconds": 10.0, **settings}

    async def run() -> Any:
        async with tool_sets({"counter": ToolSettings.model_validate(kind)}) as sets:
            return await use(sets["counter"])

    return asyncio.run(run())


def with_session(
    server: Resources, use: Callable[[ToolSession], Awaitable[Any]], task: dict[str, Any] = TASK, **settings: Any
) -> Any:
    async def run(tools: ToolSet) -> Any:
        session = await tools.open("group/0", 0, task)
        try:
            return await use(session)
        finally:
            await session.close()

    return with_tools(server, run, **settings)


def add(by: int = 2) -> ToolCall:
    return ToolCall(call_id="c", name="add", arguments=json.dumps({"by": by}))


def calling(name: str = "add") -> Callable[[ToolSession], Awaitable[tuple[str, str | None]]]:
    async def use(session: ToolSession) -> tuple[str, str | None]:
        answer = await session.call(ToolCall(call_id="c", name=name, arguments='{"by": 2}'))
        return answer.content, answer.error

    return use


def refusal(server: Resources, use: Callable[[ToolSession], Awaitable[Any]], **settings: Any) -> str:
    with pytest.raises(ToolError) as error:
        with_session(server, use, **settings)
    return str(error.value)


def counted(what: str, **labels: str) -> float:
    """A metric of the set."""
    return REGISTRY.get_sample_value(f"rollstream_tools_{what}", {"tools": "counter", **labels}) or 0.0


def test_calls_and_sessions_are_counted_by_how_they_ended(server: Resources) -> None:
    outcomes = [("calls", one) for one in ("answered", "mistake", "failed")]
    outcomes += [("sessions", one) for one in ("closed", "failed", "not_opened")]

    def counts() -> list[float]:
        return [counted(f"{what}_total", outcome=outcome) for what, outcome in outcomes]

    before, timed = counts(), counted("call_seconds_count")

    async def use(session: ToolSession) -> None:
        assert counted("open_sessions") == 1
        await session.call(add())
        await session.call(ToolCall(call_id="c", name="add", arguments="no JSON"))
        server.faults["add"] = ["500"]
        with pytest.raises(ToolError):
            await session.call(add())

    with_session(server, use)
    server.faults["seed_session"] = ["500"]
    refusal(server, calling())
    assert [after - one for after, one in zip(counts(), before, strict=True)] == [1, 1, 1, 1, 0, 1]
    assert counted("call_seconds_count") - timed == 2
    assert counted("open_sessions") == 0


@pytest.mark.parametrize("knows_ids", [True, False])
def test_a_session_is_seeded_called_verified_and_closed(knows_ids: bool) -> None:
    async def use(session: ToolSession) -> Any:
        await session.call(add(2))
        said = (await session.call(add(3))).content
        return said, await session.verify({"messages": []})

    with resources(knows_ids=knows_ids) as server:
        said, verdict = with_session(server, use)
    assert json.loads(said) == {"total": 5}
    assert verdict["reward"] == 5.0
    assert [one[0] for one in server.log] == ["seed_session", "add", "add", "verify", "close_session"]
    assert server.totals == {}


def test_a_whole_row_reaches_the_server_as_it_is_and_the_verifier_with_the_answer() -> None:
    messages = [
        {"role": "user", "content": "Add 2."},
        {"role": "assistant", "content": "", "tool_calls": [{"call_id": "c", "name": "add", "arguments": "{}"}]},
        {"role": "tool", "content": "2", "tool_call_id": "c"},
        {"role": "assistant", "content": "Done.", "tool_calls": []},
    ]
    with resources() as server:
        task = {**TASK, "metadata": {"row": json.dumps(ROW)}}
        with_session(server, lambda session: session.verify({"messages": messages}), task)
    assert server.log[0][2] == ROW
    response = server.log[1][2].pop("response")
    assert server.log[1][2] == ROW
    kinds = [(item["type"], item.get("call_id")) for item in response["output"]]
    assert kinds == [("function_call", "c"), ("function_call_output", "c"), ("message", None)]
    assert response["output"][-1]["content"][0]["text"] == "Done."


def test_a_row_is_made_of_a_prompt_without_one(server: Resources) -> None:
    with_session(server, calling())
    seeded = server.log[0][2]
    assert (seeded["reference_answer"], seeded["level"]) == ("2", "easy")
    assert seeded["responses_create_params"]["input"] == [{"type": "message", "role": "user", "content": "Add 2."}]
    assert seeded["responses_create_params"]["tools"][0] == json.loads(ADD)


@pytest.mark.parametrize("status", ["400", "404", "418", "422"])
def test_a_refusal_of_the_tool_is_an_answer_that_the_model_sees(server: Resources, status: str) -> None:
    server.faults["add"] = [status]
    assert with_session(server, calling()) == (f"as told: {status}", f"status {status}")
    assert server.count("add") == 1


def test_status_500_is_the_tools_own_error_only_where_the_settings_say_so(server: Resources) -> None:
    server.faults["add"] = ["500"]
    assert with_session(server, calling(), answers_500=True) == ("as told: 500", "status 500")
    assert "add failed, status 500: as told: 500; it may have arrived" in refusal(server, calling())


def test_a_tool_that_the_prompt_does_not_name_is_never_asked(server: Resources) -> None:
    content, error = with_session(server, calling("../admin"))
    assert error == "no tool is called '../admin': add, read"
    assert json.loads(content) == {"error": error}
    assert [one[0] for one in server.log] == ["seed_session", "close_session"]


@pytest.mark.parametrize("fault", ["leave", "500", "502", "503", "hang"])
def test_a_call_that_may_have_arrived_is_made_once(server: Resources, fault: str) -> None:
    server.faults["add"] = [fault]
    refusal(server, calling(), call_seconds=1.0)
    assert server.count("add") == 1


@pytest.mark.parametrize("fault", ["leave", "500", "503", "zipped"])
def test_a_call_of_a_replayable_tool_is_made_again_as_often_as_the_settings_say(server: Resources, fault: str) -> None:
    server.faults["read"] = [fault, "ok"]
    content, error = with_session(server, calling("read"), replayable=["read"])
    assert (json.loads(content), error) == ({"total": 0}, None)
    server.faults["read"] = [fault]
    assert "2 tries failed" in refusal(server, calling("read"), replayable=["read"], max_tries=2)
    assert server.count("read") == 4


def test_a_server_that_is_busy_is_asked_again_since_nothing_was_done(server: Resources) -> None:
    server.faults["add"] = ["429", "429", "ok"]
    content, error = with_session(server, calling())
    assert (json.loads(content), error) == ({"total": 2}, None)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("401", "the server refuses the key among the options"),
        ("409", "the session is another process's, or not open any more"),
        ("redirect", "the server redirects, which is not followed"),
        ("huge", "more than the 1048576 bytes"),
        ("zipped", "the reply is compressed"),
        ("cookies", "the server sets 41 cookies"),
        ("hang", "the call of 'add' in tools 'counter' took longer than 1 s"),
    ],
)
def test_what_is_no_answer_of_a_tool_is_none(server: Resources, fault: str, why: str) -> None:
    server.faults["add"] = [fault]
    assert why in refusal(server, calling(), call_seconds=10.0 if fault == "huge" else 1.0)
    assert server.count("elsewhere") == 0
    assert server.totals == {}  # closed all the same


@pytest.mark.parametrize(("fault", "why"), [("garbage", "is no JSON"), ("list", "a list, not an object")])
def test_a_verdict_that_is_none_leaves_the_sample_without_reward(server: Resources, fault: str, why: str) -> None:
    server.faults["verify"] = [fault]
    assert why in refusal(server, lambda session: session.verify({"messages": []}))


@pytest.mark.parametrize("fault", ["leave", "500", "503"])
def test_a_verification_that_may_have_arrived_is_made_again_only_if_it_is_declared_replayable(
    server: Resources, fault: str
) -> None:
    async def verified(session: ToolSession) -> Any:
        return await session.verify({"messages": []})

    server.faults["verify"] = [fault, "ok"]
    assert "it may have arrived, and is not declared replayable" in refusal(server, verified)
    assert server.count("verify") == 1
    server.faults["verify"] = [fault, "ok"]
    assert with_session(server, verified, replayable=("verify",))["reward"] == 0.0
    assert server.count("verify") == 3


def test_a_verification_has_a_deadline_of_its_own(server: Resources) -> None:
    server.faults["verify"] = ["hang"]

    async def verified(session: ToolSession) -> Any:
        return await session.verify({"messages": []})

    assert "verification in tools 'counter' took longer than 0.3 s" in refusal(server, verified, verify_seconds=0.3)
    assert "verification in tools 'counter' took longer than 0.4 s" in refusal(server, verified, call_seconds=0.4)


def test_a_server_that_is_gone_opens_no_session_and_is_tried_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    error = refusal(Resources(url=url), calling(), max_tries=2)
    assert "seed_session: 2 tries failed, the last: no connection" in error


def test_a_task_that_the_server_refuses_fails_its_sample(server: Resources) -> None:
    server.faults["seed_session"] = ["422"]
    with pytest.raises(FailedSampleError, match="the tools' server refuses the task, status 422: as told"):
        with_session(server, calling())


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ('{"name": "verify"}', "['verify'] are routes of the server"),
        ('{"name": "../x"}', "a tool is called '../x'"),
        ("{}", "a tool is called 'None'"),
        ("[", "is no JSON"),
        (json.dumps({"name": "a", "description": "x" * 2**17}), "the bound is 65536"),
    ],
)
def test_tools_of_a_prompt_that_can_be_none_fail_its_sample_unasked(server: Resources, schema: str, why: str) -> None:
    with pytest.raises(FailedSampleError) as error:
        with_session(server, calling(), {**TASK, "tools": [schema]})
    assert why in str(error.value)
    assert server.log == []


def test_a_million_tools_fail_their_sample_unasked(server: Resources) -> None:
    with pytest.raises(FailedSampleError, match="there are 1000000 tools, the bound is 128"):
        with_session(server, calling(), {**TASK, "tools": [ADD] * 1_000_000})


def test_a_server_without_a_route_to_close_is_no_error(server: Resources) -> None:
    server.faults["close_session"] = ["404"]
    with_session(server, calling())


def test_a_session_that_is_left_stays_open_and_can_be_closed_later(server: Resources) -> None:
    async def use(tools: ToolSet) -> dict[str, int]:
        for number in range(2):  # there is one place
            session = await tools.open(f"group/{number}", 0, TASK)
            await session.leave()
        open_then = dict(server.totals)
        await session.close()
        await session.close()
        return open_then

    assert with_tools(server, use, max_sessions=1) == {"group/0": 0, "group/1": 0}
    assert server.totals == {"group/0": 0}


@pytest.mark.parametrize("fault", ["503", "hang"])
def test_a_session_that_can_not_be_closed_is_said_within_a_bound(server: Resources, fault: str) -> None:
    server.faults["close_session"] = [fault]
    assert "clos" in refusal(server, calling(), close_seconds=1.0)


def test_a_higher_attempt_goes_on_with_the_session_and_fences_the_lower_one(server: Resources) -> None:
    async def use(tools: ToolSet) -> tuple[str, list[str]]:
        zombie = await tools.open("group/0", 0, TASK)
        await zombie.call(add(2))
        heir = await tools.open("group/0", 1, TASK)
        refused = []
        for trying in (zombie.call(add(100)), zombie.verify({"messages": []}), zombie.close()):
            with pytest.raises(ToolError) as error:
                await trying
            refused.append(str(error.value))
        said = (await heir.call(add(3))).content
        await heir.close()
        return said, refused

    said, refused = with_tools(server, use)
    assert json.loads(said) == {"total": 5}
    assert all("the session is another process's, or not open any more" in one for one in refused)


def test_a_set_whose_server_keeps_no_sessions_by_id_is_not_reopened(server: Resources) -> None:
    with pytest.raises(ToolError, match="keep no state that another process finds"):
        with_tools(server, lambda tools: tools.open("a", 1, TASK), reopens=False)
    assert server.log == []


def test_odd_ids_of_sessions_reach_the_server_as_harmless_headers(server: Resources) -> None:
    async def use(tools: ToolSet) -> None:
        await (await tools.open("ä\r\nX-Evil: 1/0", 0, TASK)).close()

    with_tools(server, use)
    assert {one[1] for one in server.log} == {"%C3%A4%0D%0AX-Evil%3A%201/0"}


def test_options_are_headers_and_no_error_shows_them(server: Resources) -> None:
    server.faults["add"] = ["401"]
    assert "hunter2" not in refusal(server, calling(), options={"Authorization": "Bearer hunter2-hunter2"})


@pytest.mark.parametrize(("knows_ids", "num_pairs"), [(False, 1000), (True, 100)])
def test_pairs_of_interleaved_sessions_never_mix(knows_ids: bool, num_pairs: int) -> None:
    async def pair(tools: ToolSet, number: int) -> bool:
        one, other = await tools.open(f"{number}", 0, TASK), await tools.open(f"{number}b", 0, TASK)
        said = []
        for session in (one, other, one, other):
            said.append(json.loads((await session.call(add(number if session is one else -number))).content)["total"])
        await asyncio.gather(one.close(), other.close())
        return said == [number, -number, 2 * number, -2 * number]

    async def use(tools: ToolSet) -> list[bool]:
        side_by_side = asyncio.Semaphore(16)

        async def bounded(number: int) -> bool:
            async with side_by_side:
                return await pair(tools, number)

        return list(await asyncio.gather(*map(bounded, range(1, num_pairs + 1))))

    with resources(knows_ids=knows_ids) as server:
        assert all(with_tools(server, use, max_sessions=40))
    assert server.totals == {}
    assert server.most_open <= 40
