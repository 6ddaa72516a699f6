"""Tools of kind `mcp`: real servers, over pipes and over HTTP, which are killed, hang, and answer what is no answer."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollstream.process.settings.tools import ToolSettings
from rollstream.schemas.errors import ToolError
from rollstream.schemas.prompt import ToolCall
from rollstream.tools.build import tool_sets
from rollstream.tools.protocol import ToolSession, ToolSet
from tests.harness.processes import start_process
from tests.harness.raw_server import RawReply, as_http, raw_server
from tests.harness.waits import wait_until

COMMAND = [sys.executable, "-m", "tests.harness.mcp_server"]


def over_pipes(*given: str, **settings: Any) -> ToolSettings:
    return ToolSettings.model_validate({"kind": "mcp", "command": [*COMMAND, *given], "max_tries": 1, **settings})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server over HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("mcp") / "log"
    server = start_process([*COMMAND, str(port)], log=log)
    try:
        wait_until(lambda: server.has_ended or listens(port), lambda: f"a server; {server.said()}", 60.0)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.kill()


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


def with_session(settings: ToolSettings, use: Callable[[ToolSession], Awaitable[Any]]) -> Any:
    async def opened(tools: ToolSet) -> Any:
        session = await tools.open("group/0", 0, {})
        try:
            return await use(session)
        finally:
            await session.close()

    return with_tools(settings, opened)


def with_tools(settings: ToolSettings, use: Callable[[ToolSet], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with tool_sets({"counter": settings}) as sets:
            return await use(sets["counter"])

    return asyncio.run(run())


async def asked(session: ToolSession, name: str, **arguments: Any) -> tuple[str, str | None]:
    answer = await session.call(ToolCall(call_id="c", name=name, arguments=json.dumps(arguments)))
    return answer.content, answer.error


async def refused(session: ToolSession, name: str, **arguments: Any) -> str:
    with pytest.raises(ToolError) as error:
        await asked(session, name, **arguments)
    return str(error.value)


async def whole_session(session: ToolSession) -> Any:
    names = [json.loads(schema)["function"]["name"] for schema in session.schemas]
    first, second = await asked(session, "add", by=2), await asked(session, "add", by=3)
    shut, wrong = await asked(session, "fail"), await asked(session, "add", by="two")
    return names, int(second[0]) - int(first[0]), shut, wrong[1], await session.verify({})


@pytest.mark.parametrize("way", ["pipes", "http"])
def test_a_session_lists_and_calls_and_the_tools_own_errors_are_answers(way: str, url: str) -> None:
    settings = over_pipes() if way == "pipes" else ToolSettings.model_validate({"kind": "mcp", "url": url})
    names, added, shut, wrong, verdict = with_session(settings, whole_session)
    assert names == ["add", "fail", "exit_now", "hang", "give", "pid"]
    assert added == 3
    assert "the box is shut" in shut[1]
    assert shut[0] == shut[1]
    assert "by" in wrong
    assert verdict is None


def test_sessions_over_pipes_have_a_server_each_and_it_ends_with_them() -> None:
    async def use(tools: ToolSet) -> list[int]:
        one, other = await asyncio.gather(tools.open("a", 0, {}), tools.open("b", 0, {}))
        said = [await asked(session, "add", by=by) for session, by in ((one, 1), (other, 10), (one, 1), (other, 10))]
        assert [content for content, _ in said] == ["1", "10", "2", "20"]
        pids = [int((await asked(session, "pid"))[0]) for session in (one, other)]
        await asyncio.gather(one.close(), other.close())
        return pids

    for pid in with_tools(over_pipes(), use):
        assert not Path(f"/proc/{pid}").exists()


def test_a_server_that_is_killed_or_ends_in_a_call_gives_no_answer() -> None:
    async def ends(session: ToolSession) -> tuple[str, str]:
        return await refused(session, "exit_now"), await refused(session, "add", by=1)

    first, second = with_session(over_pipes(), ends)
    assert "exit_now failed: the server ended, or closed its output" in first
    assert "the server ended, or closed its output" in second

    async def is_killed(session: ToolSession) -> str:
        os.kill(int((await asked(session, "pid"))[0]), signal.SIGKILL)
        return await refused(session, "add", by=1)

    assert "add failed: " in with_session(over_pipes(), is_killed)


def test_a_server_that_hangs_is_killed_with_what_it_started() -> None:
    async def use(session: ToolSession) -> int:
        pid = int((await asked(session, "pid"))[0])
        assert "took longer than 1 s" in await refused(session, "hang")
        return pid

    leader = with_session(over_pipes(call_seconds=1.0), use)
    wait_until(lambda: not group_of(leader), "its processes to end", 10.0)


def group_of(leader: int) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            state, _, group = path.read_text().rpartition(")")[2].split()[:3]
            if int(group) == leader and state != "Z":
                found.append(path.parent.name)
    return found


def test_an_answer_of_100_mb_over_pipes_is_none() -> None:
    async def use(session: ToolSession) -> str:
        return await refused(session, "give", num_bytes=100_000_000)

    assert "a line that is too long or no message" in with_session(over_pipes(), use)


def test_an_answer_of_100_mb_over_http_is_none_and_other_sessions_go_on(url: str) -> None:
    async def use(tools: ToolSet) -> tuple[str, str | None]:
        broken, other = await tools.open("a", 0, {}), await tools.open("b", 0, {})
        refusal = await refused(broken, "give", num_bytes=100_000_000)
        said = await asked(other, "add", by=1)
        for session in (broken, other):
            await session.close()
        return refusal, said[1]

    refusal, error = with_tools(ToolSettings.model_validate({"kind": "mcp", "url": url}), use)
    assert "give " in refusal
    assert error is None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("garbage", "logs belong to standard error"),
        ("huge", "a line that is too long or no message"),
        ("silent", "opening a session of tools 'counter' took longer than 3 s"),
    ],
)
def test_a_program_that_is_no_server_opens_no_session(given: str, why: str) -> None:
    with pytest.raises(ToolError) as error:
        with_session(over_pipes(given, open_seconds=3.0 if given == "silent" else 60.0), whole_session)
    assert why in str(error.value)


def test_a_program_that_does_not_exist_opens_no_session() -> None:
    settings = ToolSettings.model_validate({"kind": "mcp", "command": ["no-such-program"], "max_tries": 2})
    with pytest.raises(ToolError, match="no session could be opened: the server ended"):
        with_session(settings, whole_session)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (RawReply(content=as_http(b"{not json")), "no session could be opened"),
        (RawReply(content=as_http(b"x", Content_Encoding="gzip")), "a reply is compressed"),
        (RawReply(content=as_http(b"", "503 Busy")), "status 503"),
        (RawReply(content=as_http(b"", "302 Found", Location="http://127.0.0.1:1/")), "no session could be opened"),
        (RawReply(content=as_http(b"", Content_Length="100000000"), repeated=b"x" * 2**16, times=1600), "max_answer"),
        (RawReply(hangs=True), "took longer than 2 s"),
        (RawReply(resets=True), "no session could be opened"),
    ],
)
def test_a_stranger_at_the_url_opens_no_session(reply: RawReply, why: str) -> None:
    with raw_server() as server:
        server.planned["/mcp"] = reply
        settings = {"kind": "mcp", "url": f"{server.url}/mcp", "open_seconds": 2.0, "max_tries": 1}
        with pytest.raises(ToolError) as error:
            with_session(ToolSettings.model_validate(settings), whole_session)
    assert why in str(error.value)


def test_a_url_where_nobody_listens_is_tried_as_often_as_the_settings_say() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"kind": "mcp", "url": f"http://127.0.0.1:{port}/mcp", "max_tries": 2}
    with pytest.raises(ToolError, match="no session could be opened: ConnectError"):
        with_session(ToolSettings.model_validate(settings), whole_session)


def test_options_are_variables_of_the_program_alone() -> None:
    script = "import os, sys; print(os.environ['BOX_KEY'], file=sys.stderr); print(os.environ['BOX_KEY'])"
    settings = {"kind": "mcp", "command": [sys.executable, "-c", script], "max_tries": 1}
    with pytest.raises(ToolError, match="too long or no message"):
        with_session(ToolSettings.model_validate({**settings, "options": {"BOX_KEY": "0"}}), whole_session)
    assert "BOX_KEY" not in os.environ
