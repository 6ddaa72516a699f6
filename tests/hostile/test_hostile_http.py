"""Replies of hostile HTTP servers, over real sockets: each ends one call with an error that says why, and no engine."""

import asyncio
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rollstream.engines.http.engine import OpenAiHttpEngine
from rollstream.engines.protocol import Generation
from rollstream.engines.tokenizer import ChatTokenizer
from rollstream.schemas.errors import (
    ConfigurationError,
    EngineDeadError,
    EngineError,
    FailedSampleError,
    RefusedKeyError,
)
from tests.harness.http_engines import a_request, a_token_request, a_version, an_engine, on
from tests.harness.raw_server import COMPLETIONS, RawServer, raw_server
from tests.hostile.hostile_http import NUM_PROMPT_TOKENS, HostileReply
from tests.hostile.hostile_http_replies import ANSWERS, START_ROUTES, WEIGHT_ROUTES, corpus, routes

MOST_GROWTH_BYTES = 2**27


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tokenizer. Its library is imported here, since memory is measured later."""
    path = a_version(tmp_path_factory.mktemp("model"), 4)
    ChatTokenizer(path)
    return path


def test_the_corpus_has_many_kinds_and_each_has_a_name() -> None:
    kinds = list(corpus())
    assert len(kinds) >= 250
    assert [name for name, count in Counter(map(str, kinds)).items() if count > 1] == []


@pytest.mark.parametrize("family", ANSWERS)
def test_each_answer_of_a_stranger_ends_one_call_and_the_next_is_answered(
    family: Callable[[], Iterator[HostileReply]], model: Path
) -> None:
    kinds = list(family())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with raw_server() as server:
        for in_tokens in (True, False):
            asked = [kind for kind in kinds if (kind.path == COMPLETIONS) == in_tokens]
            if not asked:
                continue
            settings: dict[str, Any] = {"tokenizer_path": model, "weight_updates": "vllm"} if in_tokens else {}
            engine = an_engine(server.url, max_tries=1, request_seconds=1.0, **settings)
            on(engine, lambda engine, asked=asked: through(engine, server, asked))
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown < MOST_GROWTH_BYTES


async def through(engine: OpenAiHttpEngine, server: RawServer, kinds: list[HostileReply]) -> None:
    """Each of the kinds, and at the end of all a good answer."""
    wrong: list[str] = []
    for kind in kinds:
        server.planned = {kind.path: kind.reply}
        ended = await ended_as(engine, server)
        server.planned = {}
        is_told = isinstance(ended, (Generation, EngineError, FailedSampleError)) and len(str(ended)) < 4000
        if isinstance(ended, Generation) != kind.is_good or not is_told:
            wrong.append(f"{kind}: {ended!r}"[:1000])
    assert wrong == []
    assert isinstance(await ended_as(engine, server), Generation)
    assert engine.in_flight == 0


async def ended_as(engine: OpenAiHttpEngine, server: RawServer) -> Generation | Exception:
    """How a call ended that reached the server: one on a connection that it had left says nothing of its replies."""
    (known,) = engine._client.pool.servers
    num_asked = server.num_asked
    while True:
        ended = await once(engine)
        # It may have looked as if it were gone, and may have asked to be left alone.
        known.failures, known.available_at = 0, 0.0
        if server.num_asked > num_asked:
            return ended


async def once(engine: OpenAiHttpEngine) -> Generation | Exception:
    """The answer, or the error if it is one that a call may end with; others are raised."""
    in_tokens = engine.tokenizer_sha256 != ""
    request = a_token_request(engine) if in_tokens else a_request()
    assert len(request.prompt_token_ids) == (NUM_PROMPT_TOKENS if in_tokens else 0)
    try:
        found = await engine.generate(request)
    except RefusedKeyError as error:
        return error
    except EngineDeadError as error:
        return error if "no server can be reached" in str(error) else RuntimeError(str(error))
    except (EngineError, FailedSampleError) as error:
        return error
    assert found.text.encode() == (b"111" if in_tokens else found.text.encode())
    assert [span.weight_version for span in found.weight_spans] == [0] * in_tokens
    return found


def test_no_answer_is_of_weights_that_a_route_did_not_prove_to_be_loaded(model: Path) -> None:
    """Whatever the routes for weights say: either the version is loaded, or the update fails and says why."""

    async def load(engine: OpenAiHttpEngine) -> list[str]:
        wrong: list[str] = []
        for version, kind in enumerate(routes(WEIGHT_ROUTES, "weights"), 1):
            server.planned = {kind.path: kind.reply}
            with suppress(EngineError):
                await engine.load_weights(version, model)
                if kind.path in ("/collective_rpc", "/update_weight_version") and kind.name != "more parts":
                    wrong.append(f"{kind}: it counts as loaded")
            server.planned = {}
            (known,) = engine._client.pool.servers
            known.available_at = 0.0
            answer = await engine.generate(a_token_request(engine))
            if [span.weight_version for span in answer.weight_spans] != [version]:
                wrong.append(f"{kind}: afterwards {answer.weight_spans}")
        return wrong

    with raw_server() as server:
        assert on(an_engine(server.url, tokenizer_path=model, weight_updates="vllm", ready_seconds=5.0), load) == []


@pytest.mark.parametrize("path", START_ROUTES)
def test_a_start_ends_ready_or_says_why_not(path: str, model: Path) -> None:
    async def nothing(engine: OpenAiHttpEngine) -> str:
        assert len(engine.version) < 200
        return engine.version

    with raw_server() as server:
        for kind in routes((path,), "start"):
            server.planned = {kind.path: kind.reply}
            settings: dict[str, Any] = {"tokenizer_path": model, "weight_updates": "vllm", "ready_seconds": 0.2}
            with suppress(ConfigurationError, EngineError):
                assert on(an_engine(server.url, **settings), nothing)


def test_thirty_versions_without_end_leave_thirty_samples_unresolved(model: Path) -> None:
    """They raised OverflowError, which ended a generator after twenty."""
    kinds = [kind for kind in corpus() if "version = " in kind.name and "weight_versions.0.version" in kind.name]

    async def ask(engine: OpenAiHttpEngine) -> list[BaseException | Generation]:
        (infinite,) = [kind for kind in kinds if kind.name.endswith("'1e999'")]
        server.planned = {infinite.path: infinite.reply}
        return await asyncio.gather(
            *(engine.generate(a_token_request(engine)) for _ in range(30)), return_exceptions=True
        )

    with raw_server() as server:
        settings: dict[str, Any] = {"tokenizer_path": model, "weight_updates": "vllm", "request_seconds": 5.0}
        found = on(an_engine(server.url, **settings), ask)
    assert all(isinstance(one, EngineError) and not isinstance(one, EngineDeadError) for one in found)
