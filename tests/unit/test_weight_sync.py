"""Checkpoints loaded into several engines over real HTTP: one that is down, refuses, hangs or talks garbage is told."""

import asyncio
from contextlib import ExitStack

import pytest

from rollstream.schemas.errors import ConfigurationError
from rollstream.training.weight_sync import SGLangEngine, VLLMEngine, step_of, sync_weights_to_engines
from tests.harness.fake_openai import fake_openai
from tests.harness.raw_server import RawReply, as_http, raw_server

KEY = "sk-this-stays-secret"


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "checkpoints" / "step_10"
    path.mkdir(parents=True)
    return path


class OwnEngine:
    """An engine of a user's own, with the one method that it needs. `before`: what it waits for."""

    def __init__(self, answer=None, before=None):
        self.answer, self.before, self.paths = answer or {"success": True}, before, []

    async def update_weights_from_checkpoint(self, checkpoint_path):
        self.paths.append(checkpoint_path)
        if self.before is not None:
            await self.before
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def synced(*engines, path, **options):
    return asyncio.run(sync_weights_to_engines(engines, str(path), **options))


def test_vllm_sglang_and_an_engine_of_ones_own_get_path_and_version(checkpoint):
    with fake_openai(kind="vllm") as vllm, fake_openai(kind="sglang") as sglang:
        engines = [VLLMEngine(vllm.url), SGLangEngine(sglang.url), OwnEngine()]
        answers = synced(*engines, path=checkpoint)
    assert [answer["success"] for answer in answers] == [True] * 3
    assert [answer.get("weight_version") for answer in answers] == [10, 10, None]
    assert vllm.loaded == sglang.loaded == engines[2].paths == [str(checkpoint)]
    assert (vllm.weight_version, sglang.weight_version) == ("10", "10")
    assert [engine.weight_version for engine in engines[:2]] == [10, 10]
    assert vllm.is_open.is_set()
    assert sglang.is_open.is_set()


def test_weights_are_loaded_though_the_server_has_that_label_already(checkpoint):
    """It may be the label of another run."""
    with fake_openai(kind="vllm", weight_version="10") as server:
        assert synced(VLLMEngine(server.url), path=checkpoint)[0]["success"]
    assert server.loaded == [str(checkpoint)]


def test_an_engine_that_is_down_is_told_and_keeps_its_old_version_while_the_others_are_loaded(checkpoint):
    newer = checkpoint.with_name("step_11")
    newer.mkdir()
    with ExitStack() as running, fake_openai(kind="sglang") as other:
        down = running.enter_context(fake_openai(kind="vllm"))
        engines = [VLLMEngine(down.url), SGLangEngine(other.url)]
        synced(*engines, path=checkpoint)
        running.close()
        answers = synced(*engines, path=newer)
    assert [answer["success"] for answer in answers] == [False, True]
    assert down.url in answers[0]["error"]
    assert [engine.weight_version for engine in engines] == [10, 11]


def test_answers_stand_in_the_order_of_the_engines_and_not_in_that_of_their_ends(checkpoint):
    async def sync():
        first, last = asyncio.Event(), asyncio.Event()
        engines = [OwnEngine({"success": True, "name": "a"}, first.wait()), OwnEngine({"success": True, "name": "b"})]
        engines[1].before = _after(last)
        syncing = asyncio.create_task(sync_weights_to_engines(engines, str(checkpoint)))
        await last.wait()  # the second one has ended while the first one waits: they run side by side
        first.set()
        return [answer["name"] for answer in await syncing]

    async def _after(event):
        event.set()

    assert asyncio.run(sync()) == ["a", "b"]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_server_that_refuses_says_why_and_goes_on_generating(kind, checkpoint):
    engine = {"vllm": VLLMEngine, "sglang": SGLangEngine}[kind]
    with fake_openai(kind=kind, load_status=500) as server:
        (answer,) = synced(engine(server.url), path=checkpoint)
    assert (answer["success"], "no such weights" in answer["error"]) == (False, True)
    assert server.is_open.is_set()
    assert server.weight_version == "default"


def test_a_vllm_server_without_its_routes_for_weights_is_told_what_to_set(checkpoint):
    with fake_openai(kind="plain") as server:
        (answer,) = synced(VLLMEngine(server.url), path=checkpoint)
    assert "VLLM_SERVER_DEV_MODE" in answer["error"]


GARBAGE = {
    "no HTTP": RawReply(content=b"\x00\xff garbage"),
    "half a reply": RawReply(content=b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"),
    "no JSON": RawReply(content=as_http(b"\x1b[2J<html>")),
    "another type": RawReply(content=as_http(b"[1, 2]")),
    "an endless reply": RawReply(content=b"HTTP/1.1 200 OK\r\n\r\n", repeated=b" " * 2**16, times=200),
    "no success": RawReply(content=as_http(b'{"success": "yes"}')),
    "a reset": RawReply(resets=True),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("engine", [VLLMEngine, SGLangEngine])
def test_garbage_is_told_and_never_taken_for_success(engine, garbage, checkpoint):
    with raw_server() as server:
        route = "/collective_rpc" if engine is VLLMEngine else "/update_weights_from_disk"
        server.planned[route] = garbage
        (answer,) = synced(engine(server.url), path=checkpoint)
    assert answer["success"] is False
    assert len(answer["error"]) <= 500
    assert answer["error"].isprintable()


def test_a_server_that_hangs_ends_at_the_deadline_and_the_others_are_loaded(checkpoint):
    with raw_server() as hanging, fake_openai(kind="vllm") as server:
        hanging.planned["/collective_rpc"] = RawReply(hangs=True)
        engines = [VLLMEngine(hanging.url, timeout_seconds=1), VLLMEngine(server.url)]
        answers = synced(*engines, path=checkpoint)
    assert [answer["success"] for answer in answers] == [False, True]
    assert "/collective_rpc" in answers[0]["error"]


def test_an_engine_of_ones_own_that_never_answers_ends_at_the_deadline(checkpoint):
    async def sync():
        engines = [OwnEngine(before=asyncio.Event().wait()), OwnEngine()]
        return await sync_weights_to_engines(engines, str(checkpoint), timeout_seconds=0.2)

    answers = asyncio.run(sync())
    assert [answer["success"] for answer in answers] == [False, True]
    assert "0.2 s" in answers[0]["error"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (KeyError("lost"), "KeyError"),
        (TimeoutError("of its own"), "of its own"),
        ({"success": False, "error": "out of memory"}, "out of memory"),
        ({"success": "true"}, "success"),
        (["success"], "list"),
    ],
)
def test_an_engine_of_ones_own_that_raises_or_answers_otherwise_is_told(answer, said, checkpoint):
    first, second = synced(OwnEngine(answer), OwnEngine(), path=checkpoint)
    assert (first["success"], said in first["error"]) == (False, True)
    assert second == {"success": True}


def test_no_answer_repeats_a_key(checkpoint):
    with raw_server() as server:
        server.planned["/update_weights_from_disk"] = RawReply(
            content=as_http(f'{{"error": "Bearer {KEY} is not known"}}'.encode(), "401 Unauthorized"), stays=True
        )
        answers = synced(SGLangEngine(server.url, api_key=KEY), OwnEngine(RuntimeError(f"no {KEY}")), path=checkpoint)
    assert not any(KEY in str(answer) for answer in answers)
    assert "401" in answers[0]["error"]


def test_a_version_of_ones_own_is_given_on(checkpoint):
    with fake_openai(kind="sglang") as server:
        engine = SGLangEngine(server.url)
        synced(engine, path=checkpoint, weight_version=3)
    assert (engine.weight_version, server.weight_version) == (3, "3")


def test_a_checkpoint_that_is_not_there_or_has_no_number_is_named_before_a_server_is_asked(tmp_path, checkpoint):
    (tmp_path / "best").mkdir()
    with fake_openai(kind="sglang") as server:
        for path in (tmp_path / "gone" / "step_1", tmp_path / "best"):
            (answer,) = synced(SGLangEngine(server.url), path=path)
            assert (answer["success"], str(path) in answer["error"]) == (False, True)
    assert server.routes == []


@pytest.mark.parametrize("url", ["ftp://host", "http://me:secret-word@host", "localhost:30000", ""])
def test_an_address_that_is_none_is_refused_without_its_password(url):
    with pytest.raises(ConfigurationError) as refused:
        SGLangEngine(url)
    assert "secret-word" not in str(refused.value)


@pytest.mark.parametrize("name", ["step_", "step_-1", "step_1e3", "step_\u0661", "final", "step_" + "9" * 40])
def test_a_name_without_a_step_is_refused(name, tmp_path):
    with pytest.raises(ConfigurationError, match="step_N"):
        step_of(tmp_path / name)
