"""Tools of kind `python`: each session has a process of its own, which is gone whatever becomes of the session."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rollstream.process.settings.tools import ToolSettings
from rollstream.schemas.errors import ConfigurationError, ToolError
from rollstream.schemas.prompt import ToolCall
from rollstream.schemas.rollout import ToolAnswer
from rollstream.tools.build import tool_sets
from rollstream.tools.protocol import ToolSession, ToolSet
from tests.harness.waits import wait_until

OWN = "tests.harness.own_tools"


def box(**settings: Any) -> ToolSettings:
    return ToolSettings.model_validate({"kind": "python", "path": f"{OWN}.Box", **settings})


def with_tools(settings: ToolSettings, use: Callable[[ToolSet], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with tool_sets({"box": settings}) as sets:
            return await use(sets["box"])

    return asyncio.run(run())


def with_session(settings: ToolSettings, use: Callable[[ToolSession], Awaitable[Any]]) -> Any:
    async def run(tools: ToolSet) -> Any:
        session = await tools.open("group/0", 0, {"reference_answer": "7"})
        try:
            return await use(session)
        finally:
            await session.close()

    return with_tools(settings, run)


def a_call(name: str, arguments: str = "{}") -> ToolCall:
    return ToolCall(call_id="c", name=name, arguments=arguments)


def answered(name: str, arguments: str = "{}", **settings: Any) -> tuple[str, str | None]:
    async def use(session: ToolSession) -> tuple[str, str | None]:
        answer = await session.call(a_call(name, arguments))
        return answer.content, answer.error

    found: tuple[str, str | None] = with_session(box(**settings), use)
    return found


def not_answered(name: str, arguments: str = "{}", **settings: Any) -> str:
    with pytest.raises(ToolError) as error:
        answered(name, arguments, **settings)
    return str(error.value)


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_public_methods_are_the_tools_and_their_signatures_the_schemas() -> None:
    async def use(session: ToolSession) -> tuple[str, ...]:
        return session.schemas

    schemas = {one["function"]["name"]: one["function"] for one in map(json.loads, with_session(box(), use))}
    assert {"begin", "verify", "close"}.isdisjoint(schemas)
    assert schemas["add"]["description"] == "Add to the number."
    assert schemas["add"]["parameters"]["required"] == ["by"]
    assert schemas["add"]["parameters"]["properties"]["how"]["enum"] == ["up", "down"]


def test_a_session_keeps_its_state_and_judges_the_sample() -> None:
    async def use(session: ToolSession) -> Any:
        said = [(await session.call(a_call("add", '{"by": 2}'))).content for _ in range(3)]
        return said, await session.verify({"text": "6"})

    said, verdict = with_session(box(), use)
    assert said == ["2", "4", "6"]
    assert verdict == {"reward": 6.0, "task": {"reference_answer": "7"}, "said": {"text": "6"}}


def test_arguments_become_what_the_signature_says() -> None:
    assert answered("put", '{"at": {"row": 3}}') == ('{"row": 3}', None)


WRONG = (
    ("subtract", "{}", "no tool is called 'subtract': add, "),
    ("__init__", "{}", "no tool is called '__init__'"),
    ("verify", "{}", "no tool is called 'verify'"),
    ("add", "{by: 2}", "Invalid tool call arguments: key must be a string"),
    ("add", "[2]", "Invalid tool call arguments: they must be a JSON object"),
    ("add", '{"by": NaN}', "Invalid tool call arguments: "),
    ("add", "[" * 10_000, "Invalid tool call arguments: recursion limit"),
    ("add", '{"by": "two"}', "Invalid tool call arguments: by: Input should be a valid integer"),
    ("add", "{}", "Invalid tool call arguments: by: Field required"),
    ("add", '{"by": 2, "of": 3}', "Invalid tool call arguments: of: Extra inputs are not permitted"),
    ("fail", "{}", "ValueError: the key *** does not open it"),
    ("odd", "{}", "TypeError: Object of type object is not JSON serializable"),
    ("fill", '{"num_bytes": 1000000000000}', "MemoryError"),
)
"""Calls, and how their answers begin."""


def test_what_the_model_or_the_tool_did_wrong_is_an_answer_that_the_model_sees_and_the_session_goes_on() -> None:
    async def use(session: ToolSession) -> list[ToolAnswer]:
        calls = [a_call(name, arguments) for name, arguments, _ in WRONG]
        return [await session.call(one) for one in (*calls, a_call("add", '{"by": 2}'))]

    *answers, last = with_session(box(options={"key": "hunter2-hunter2"}), use)
    for answer, (_, _, why) in zip(answers, WRONG, strict=True):
        assert answer.error is not None
        assert answer.error.startswith(why)
        assert json.loads(answer.content)["error"] == answer.error
        assert "hunter2" not in answer.content
    assert (last.content, last.error) == ("2", None)


def test_half_of_a_surrogate_pair_is_replaced() -> None:
    assert answered("half") == ("?", None)


@pytest.mark.parametrize(
    ("name", "arguments", "seconds", "why"),
    [
        ("exit", "{}", 60.0, "the session's process ended"),
        ("hang", "{}", 1.0, "the call of 'hang' in tools 'box' took longer than 1 s"),
        ("give", '{"num_bytes": 100000000}', 60.0, "bytes, the bound max_answer_bytes is 1048576"),
    ],
)
def test_a_call_without_an_answer_is_no_answer(name: str, arguments: str, seconds: float, why: str) -> None:
    assert why in not_answered(name, arguments, call_seconds=seconds)


def test_after_a_call_without_an_answer_the_session_takes_no_other_and_others_go_on() -> None:
    async def use(tools: ToolSet) -> tuple[str, str]:
        broken, other = await tools.open("a", 0, {}), await tools.open("b", 0, {})
        hanging = asyncio.create_task(broken.call(a_call("hang")))
        said = (await other.call(a_call("add", '{"by": 1}'))).content
        with pytest.raises(ToolError):
            await hanging
        with pytest.raises(ToolError) as error:
            await broken.call(a_call("add", '{"by": 1}'))
        await broken.close()
        await other.close()
        return said, str(error.value)

    said, error = with_tools(box(call_seconds=0.5), use)
    assert said == "1"
    assert "it did not answer an earlier one" in error


def test_no_process_is_left_of_a_session_that_hangs_and_what_it_started_neither() -> None:
    async def use(tools: ToolSet) -> int:
        session = await tools.open("a", 0, {})
        pid = int((await session.call(a_call("pid"))).content)
        with pytest.raises(ToolError):
            await session.call(a_call("hang"))
        await session.close()
        wait_until(lambda: not is_running(pid) and not group_of(pid), "the session's processes to end", 10.0)
        return pid

    with_tools(box(call_seconds=0.5), use)


def group_of(leader: int) -> list[str]:
    """The processes of its group, as far as they still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue  # it has just ended
        if int(group) == leader and state != "Z":
            found.append(path.parent.name)
    return found


def test_a_close_that_hangs_is_bounded() -> None:
    async def use(tools: ToolSet) -> str:
        session = await tools.open("a", 0, {})
        pid = int((await session.call(a_call("pid"))).content)
        with pytest.raises(ToolError) as error:
            await session.close()
        await session.close()  # does nothing more
        wait_until(lambda: not is_running(pid), "the process to end", 10.0)
        return str(error.value)

    assert "closing a session of tools 'box' took longer than 0.5 s" in with_tools(
        box(close_seconds=0.5, options={"broken": "close"}), use
    )


def test_sessions_never_mix() -> None:
    async def pair(tools: ToolSet, number: int) -> tuple[str, str]:
        one, other = await tools.open(f"{number}", 0, {}), await tools.open(f"{number}b", 0, {})
        for by in (1, 2, 3):
            first = await one.call(a_call("add", json.dumps({"by": by * number})))
            second = await other.call(a_call("add", json.dumps({"by": -by * number})))
        await one.close()
        await other.close()
        return first.content, second.content

    async def use(tools: ToolSet) -> list[tuple[str, str]]:
        # Each pair waits for two places: more pairs than half of them could hold one each for ever.
        side_by_side = asyncio.Semaphore(8)

        async def one(number: int) -> tuple[str, str]:
            async with side_by_side:
                return await pair(tools, number)

        return list(await asyncio.gather(*map(one, range(1, 101))))

    assert with_tools(box(max_sessions=16), use) == [(f"{6 * one}", f"{-6 * one}") for one in range(1, 101)]


def test_more_sessions_than_the_bound_wait_and_not_for_ever() -> None:
    async def use(tools: ToolSet) -> str:
        first = await tools.open("a", 0, {})
        with pytest.raises(ToolError) as error:
            await tools.open("b", 0, {})
        await first.close()
        await (await tools.open("b", 0, {})).close()
        return str(error.value)

    assert "opening a session of tools 'box' took longer than 1 s" in with_tools(
        box(max_sessions=1, open_seconds=1.0), use
    )


def test_a_set_whose_process_was_killed_starts_it_again() -> None:
    async def use(tools: ToolSet) -> str:
        session = await tools.open("a", 0, {})
        pid = int((await session.call(a_call("pid"))).content)
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        process = await asyncio.create_subprocess_exec("kill", "-9", parent)
        await process.wait()
        wait_until(lambda: not is_running(pid), "the session to end with it", 10.0)
        with pytest.raises(ToolError):
            await session.call(a_call("add", '{"by": 1}'))
        await session.close()
        again = await tools.open("b", 0, {})
        said = (await again.call(a_call("add", '{"by": 1}'))).content
        await again.close()
        return said

    assert with_tools(box(), use) == "1"


@pytest.mark.parametrize(
    ("broken", "why"), [("made", "begin of the tools' class raised ValueError: no box for ***"), ("verify", "a str")]
)
def test_a_class_that_raises_outside_of_a_tool_is_no_answer(broken: str, why: str) -> None:
    with pytest.raises(ToolError, match=why.replace("*", r"\*").replace(".", r"\.")):
        with_session(box(options={"broken": broken, "key": "hunter2-hunter2"}), lambda session: session.verify({}))


def test_state_that_went_with_its_process_is_not_reopened() -> None:
    with pytest.raises(ToolError, match="keep no state that another process finds"):
        with_tools(box(), lambda tools: tools.open("a", 1, {}))


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("no_such_package.Box", "No module named 'no_such_package'"),
        (f"{OWN}.Nothing", "is no class with public methods"),
        (f"{OWN}.Many", "numbers: int can't be filled by name"),
        ("os.path.join", "is no class with public methods"),
    ],
)
def test_a_class_that_can_be_no_set_of_tools_is_refused_before_anything_is_asked(path: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        with_tools(box(path=path), lambda tools: tools.open("a", 0, {}))
    assert why in str(error.value)
    assert f"[tools.box] path = {path!r}" in str(error.value)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"kind": "python"}, "kind python needs its `path`"),
        ({"kind": "http"}, "kind http needs its `url`"),
        ({"kind": "mcp"}, "either a `url` or a `command`"),
        ({"kind": "mcp", "url": "http://a", "command": ["a"]}, "either a `url` or a `command`"),
        ({"kind": "http", "url": "http://a", "path": "a.B"}, "path: not of kind http"),
        ({"kind": "http", "url": "http://me:secret@a"}, "without user, password or query"),
        ({"kind": "http", "url": "file:///etc/passwd"}, "must begin with http"),
        ({"kind": "python", "path": "rm -rf /"}, "should match pattern"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError) as error:
        ToolSettings.model_validate(settings)
    assert why in str(error.value)
    assert "secret" not in str(error.value)
