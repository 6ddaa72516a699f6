"""Several servers, and their weights: least loaded, one that dies, updates by vLLM's and SGLang's routes."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from rollstream.engines.http.engine import OpenAiHttpEngine
from rollstream.generator.settings import GeneratorSettings
from rollstream.process.begun import listening
from rollstream.schemas.errors import ConfigurationError, EngineDeadError, EngineError
from rollstream.schemas.rollout import WeightSpan
from tests.harness.fake_openai import LAST_TOKEN, TOKEN, Planned, fake_openai
from tests.harness.http_engines import a_request, a_token_request, a_version, an_engine, many, on, when_asked
from tests.harness.raw_server import RawReply, raw_server


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer, and a weight version of one tensor, which is all that is read here."""
    path = tmp_path_factory.mktemp("model")
    return a_version(path, 4)


def test_calls_go_to_the_least_loaded_server_and_never_more_than_the_bound() -> None:
    with fake_openai(latency_seconds=0.1) as first, fake_openai(latency_seconds=0.1) as second:
        found = on(an_engine(first.url, second.url, max_connections=10), many(60))
    assert len(found) == 60
    assert (first.most_in_flight, second.most_in_flight) == (5, 5)
    assert min(len(first.asked), len(second.asked)) >= 20


def test_a_slow_server_gets_fewer_calls() -> None:
    with fake_openai(latency_seconds=0.5) as slow, fake_openai(latency_seconds=0.02) as fast:
        on(an_engine(slow.url, fast.url, max_connections=4), many(60))
    assert len(fast.asked) > 2 * len(slow.asked)


def test_one_server_dies_and_the_others_finish_the_job() -> None:
    async def while_one_dies(engine: OpenAiHttpEngine) -> list[str]:
        running = asyncio.create_task(many(40)(engine))
        await when_asked(first, second)
        await asyncio.to_thread(dying.__exit__, None, None, None)
        return [one.text for one in await running]

    dying = fake_openai(latency_seconds=0.2)
    first = dying.__enter__()
    with fake_openai(latency_seconds=0.05) as second:
        found = on(an_engine(first.url, second.url, max_connections=8), while_one_dies)
    assert found == ["yes"] * 40
    assert second.num_model_calls >= 30


def test_a_server_that_comes_back_is_asked_again() -> None:
    async def die_and_return(engine: OpenAiHttpEngine) -> str:
        await engine.generate(a_request())
        await asyncio.to_thread(first_life.__exit__, None, None, None)
        running = asyncio.create_task(engine.generate(a_request(1)))
        while not engine._client.pool.servers[0].failures:
            await asyncio.sleep(0.005)
        with fake_openai(server):
            return (await running).text

    first_life = fake_openai()
    server = first_life.__enter__()
    assert on(an_engine(server.url), die_and_return) == "yes"
    assert len(server.asked) == 2


def test_a_start_goes_on_with_the_servers_that_are_ready(caplog: pytest.LogCaptureFixture) -> None:
    with fake_openai() as gone:
        pass
    with fake_openai() as server:
        found = on(an_engine(gone.url, server.url, ready_seconds=1.0), many(3))
    assert len(found) == 3
    assert f"1 of 2 servers are ready; not ready: {gone.url}" in caplog.text


def test_tokens_go_out_and_come_back_with_logprobs(model: Path) -> None:
    async def generate(engine: OpenAiHttpEngine) -> Any:
        return engine.tokenizer_sha256, a_token_request(engine), await engine.generate(a_token_request(engine, seed=3))

    with fake_openai(kind="vllm") as server:
        sha256, request, found = on(an_engine(server.url, tokenizer_path=model), generate)
    assert len(sha256) == 64
    assert found.token_ids.tolist() == [TOKEN, TOKEN, TOKEN, LAST_TOKEN]
    assert found.behavior_logprobs.tolist() == [-0.25, -0.5, -0.75, -1.0]
    assert found.weight_spans == (WeightSpan(weight_version=0, start=0, end=4),)
    assert server.asked[0].path == "/v1/completions"
    assert server.asked[0].body == {
        "model": "tiny",
        "prompt": request.prompt_token_ids.tolist(),
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_tokens": 16,
        "seed": 3,
        "logprobs": 0,
        "return_token_ids": True,
        "return_weight_versions": True,
    }


def test_a_server_without_token_ids_is_no_server_for_tokens(model: Path) -> None:
    with fake_openai(kind="plain") as server, pytest.raises(EngineError, match="no token_ids: with tokenizer_path"):
        on(an_engine(server.url, tokenizer_path=model), lambda engine: engine.generate(a_token_request(engine)))


def test_vllm_is_paused_loaded_labeled_and_resumed(model: Path) -> None:
    async def load(engine: OpenAiHttpEngine) -> Any:
        report = await engine.load_weights(3, model)
        return report, await engine.generate(a_token_request(engine))

    with fake_openai(kind="vllm") as server:
        report, found = on(an_engine(server.url, tokenizer_path=model, weight_updates="vllm"), load)
    assert server.loaded == [str(model)]
    assert server.routes[-4:] == [
        "POST /pause?mode=keep",
        "POST /collective_rpc",
        "POST /update_weight_version",
        "POST /resume",
    ]
    assert found.weight_spans == (WeightSpan(weight_version=3, start=0, end=4),)
    assert server.asked[0].body["cache_salt"] == "3"
    assert 0 <= report.stall_seconds <= report.load_seconds


def test_sglang_loads_by_one_route(model: Path) -> None:
    async def load(engine: OpenAiHttpEngine) -> None:
        await engine.load_weights(3, model)
        await engine.generate(a_request())

    with fake_openai(kind="sglang") as server:
        on(an_engine(server.url, weight_updates="sglang"), load)
    assert (server.loaded, server.weight_version) == ([str(model)], "3")
    assert "cache_salt" not in server.asked[0].body


def test_a_call_that_an_update_overtakes_goes_on_and_is_of_the_older_version(model: Path) -> None:
    """Where the server does not say which version sampled which tokens. Asked again, long answers would never end."""

    async def overtake(engine: OpenAiHttpEngine) -> Any:
        with listening(told.append):
            running = asyncio.create_task(engine.generate(a_token_request(engine)))
        await when_asked(server)
        for version in (1, 2):
            await engine.load_weights(version, model)
        return await running, await engine.generate(a_token_request(engine))

    told: list[int] = []
    with fake_openai(kind="vllm", latency_seconds=0.3) as server:
        found, next_one = on(an_engine(server.url, tokenizer_path=model, weight_updates="vllm"), overtake)
    assert found.weight_spans == (WeightSpan(weight_version=0, start=0, end=4),)
    assert next_one.weight_spans == (WeightSpan(weight_version=2, start=0, end=4),)
    assert [asked.body["cache_salt"] for asked in server.asked] == ["0", "2"]
    assert told == [0]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_all_answers_come_however_many_versions_do(kind: str, model: Path) -> None:
    """Of 1 to 20 times the time between two versions, as many short ones as long ones."""

    async def all_of(engine: OpenAiHttpEngine) -> list[str]:
        answers = asyncio.gather(*(engine.generate(a_request(number)) for number in range(40)))
        version = 0
        while not answers.done():
            await asyncio.sleep(0.05)
            version += 1
            await engine.load_weights(version, model)
        assert version > 10
        return [one.text for one in await answers]

    with fake_openai(kind=kind, latency_of=lambda number: 0.05 * (1 + number % 20)) as server:
        found = on(an_engine(server.url, weight_updates=kind), all_of)
    assert found == ["yes"] * 40
    assert len(server.asked) == 40


def test_an_older_sglang_ends_running_calls_before_it_loads(model: Path) -> None:
    async def overtake(engine: OpenAiHttpEngine) -> Any:
        running = asyncio.create_task(engine.generate(a_request()))
        await when_asked(server)
        await engine.load_weights(1, model)
        return await running

    with fake_openai(kind="sglang", can_pause=False, latency_seconds=0.1) as server:
        found = on(an_engine(server.url, weight_updates="sglang"), overtake)
    assert (found.text, server.loaded) == ("yes", [str(model)])


def test_a_pause_that_a_killed_process_left_is_ended_at_the_start(model: Path) -> None:
    with fake_openai(kind="vllm") as server:
        server.is_open.clear()
        (found,) = on(an_engine(server.url, weight_updates="vllm"), many(1))
    assert found.text == "yes"


def test_a_failed_load_leaves_no_label_of_weights_that_are_not_there(model: Path) -> None:
    """A server that started anew, and can't load at first, must not answer under the current version's name."""

    async def restart(engine: OpenAiHttpEngine) -> Any:
        await engine.load_weights(5, model)
        server.weight_version, server.load_status = "default", 500
        server.planned.append(Planned(drop=True))
        with pytest.raises(EngineDeadError, match="no such weights"):
            await engine.generate(a_token_request(engine))
        assert server.weight_version == "default"
        server.load_status = 200
        return await engine.generate(a_token_request(engine))

    with fake_openai(kind="vllm") as server:
        settings: dict[str, Any] = {"tokenizer_path": model, "weight_updates": "vllm", "max_tries": 2}
        found = on(an_engine(server.url, **settings), restart)
    assert (found.weight_spans[0].weight_version, server.weight_version) == (5, "5")
    assert len(server.loaded) == 2


def test_a_server_that_reports_spans_goes_on_over_an_update(model: Path) -> None:
    async def overtake(engine: OpenAiHttpEngine) -> Any:
        await engine.generate(a_token_request(engine))  # it reports them: from now on requests are kept
        server.latency_seconds = 0.3
        running = asyncio.create_task(engine.generate(a_token_request(engine)))
        await when_asked(server)
        await engine.load_weights(1, model)
        return await running

    with fake_openai(kind="vllm", reports_spans=True) as server:
        found = on(an_engine(server.url, tokenizer_path=model, weight_updates="vllm"), overtake)
    assert [(span.weight_version, span.start, span.end) for span in found.weight_spans] == [(0, 0, 1), (1, 1, 4)]
    assert len(server.asked) == 2


def test_a_server_that_started_anew_gets_the_current_weights_before_its_next_call(model: Path) -> None:
    async def restart(engine: OpenAiHttpEngine) -> None:
        await engine.load_weights(5, model)
        server.weight_version = "default"
        server.planned.append(Planned(drop=True))
        found = await engine.generate(a_token_request(engine))
        assert found.weight_spans[0].weight_version == 5

    with fake_openai(kind="vllm") as server:
        on(an_engine(server.url, tokenizer_path=model, weight_updates="vllm"), restart)
    assert server.loaded == [str(model)] * 2
    assert server.weight_version == "5"


def test_a_server_that_started_anew_while_nobody_asked_it_gets_the_current_weights_too(model: Path) -> None:
    async def restart(engine: OpenAiHttpEngine) -> list[int]:
        await engine.load_weights(5, model)
        server.weight_version = "default"
        (known,) = engine._client.pool.servers
        known.seen_at = -math.inf
        found = await asyncio.gather(*(engine.generate(a_token_request(engine)) for _ in range(4)))
        return [one.weight_spans[0].weight_version for one in found]

    with fake_openai(kind="vllm") as server:
        assert on(an_engine(server.url, tokenizer_path=model, weight_updates="vllm"), restart) == [5] * 4
    assert (server.loaded, server.weight_version) == ([str(model)] * 2, "5")


def test_a_server_that_does_not_load_is_tried_again_and_the_others_go_on(model: Path) -> None:
    async def load(engine: OpenAiHttpEngine) -> None:
        broken.load_status = 500
        await engine.load_weights(1, model)
        found = await asyncio.gather(*(engine.generate(a_token_request(engine)) for _ in range(8)))
        assert {one.weight_spans[0].weight_version for one in found} == {1}
        assert broken.asked == []
        broken.load_status = 200
        while not broken.asked:
            await engine.generate(a_token_request(engine))

    with fake_openai(kind="vllm") as broken, fake_openai(kind="vllm", latency_seconds=0.02) as server:
        on(an_engine(broken.url, server.url, tokenizer_path=model, weight_updates="vllm"), load)
    assert broken.asked[0].body["cache_salt"] == "1"
    assert broken.loaded == [str(model)]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_an_update_that_no_server_loads_ends_the_engine(kind: str, model: Path) -> None:
    with (
        fake_openai(kind=kind, load_status=500) as server,
        pytest.raises(EngineDeadError, match=r"no server loaded version 1: .*no such weights"),
    ):
        on(an_engine(server.url, weight_updates=kind), lambda engine: engine.load_weights(1, model))
    assert server.is_open.is_set()


def test_a_start_goes_on_without_a_server_that_can_not_be_labeled(model: Path) -> None:
    async def generate(engine: OpenAiHttpEngine) -> list[str]:
        return [(await engine.generate(a_request(number))).text for number in range(3)]

    with raw_server() as broken, fake_openai(kind="vllm") as server:
        broken.planned["/update_weight_version"] = RawReply(content=b"\x00")
        assert on(an_engine(broken.url, server.url, weight_updates="vllm"), generate) == ["yes"] * 3
        with pytest.raises(EngineDeadError, match=r"no server can be updated: .*gave no readable"):
            on(an_engine(broken.url, weight_updates="vllm"), generate)


def test_a_broken_version_is_refused_before_a_server_is_asked(model: Path, tmp_path: Path) -> None:
    other = a_version(tmp_path / "other", 8)

    async def load(engine: OpenAiHttpEngine) -> None:
        with pytest.raises(EngineError, match=r"no \.safetensors file"):
            await engine.load_weights(1, tmp_path)
        await engine.load_weights(1, model)
        with pytest.raises(EngineError, match="does not fit the running model"):
            await engine.load_weights(2, other)

    with fake_openai(kind="vllm") as server:
        on(an_engine(server.url, weight_updates="vllm"), load)
    assert server.loaded == [str(model)]


def test_logprobs_that_ignore_the_temperature_are_refused_for_training(model: Path) -> None:
    async def nothing(engine: OpenAiHttpEngine) -> None: ...

    with fake_openai(kind="vllm", logprobs_mode="raw_logprobs") as server:
        on(an_engine(server.url, weight_updates="vllm"), nothing)
        with pytest.raises(ConfigurationError, match="--logprobs-mode processed_logprobs"):
            on(an_engine(server.url, tokenizer_path=model, weight_updates="vllm"), nothing)


def test_a_server_that_can_not_say_now_how_it_is_set_is_not_taken_for_one_that_is_set_wrongly(model: Path) -> None:
    """An error of the route says nothing of the settings: it is started again, and not given up."""

    async def nothing(engine: OpenAiHttpEngine) -> None: ...

    with fake_openai(kind="vllm", info_status=500) as server, pytest.raises(EngineDeadError, match="answered 500"):
        on(an_engine(server.url, tokenizer_path=model, weight_updates="vllm"), nothing)


def test_a_reload_that_would_be_wrong_in_silence_is_refused(tmp_path: Path) -> None:
    """vLLM's own, of tied embeddings on a CPU."""
    tied = a_version(tmp_path / "tied", 4)
    (tied / "config.json").write_text('{"tie_word_embeddings": true}')
    with (
        fake_openai(kind="vllm", device="cpu") as server,
        pytest.raises(EngineDeadError, match="leaves a tied output head as it was: start it with --worker-extension"),
    ):
        on(an_engine(server.url, weight_updates="vllm"), lambda engine: engine.load_weights(1, tied))
    assert server.loaded == []
    assert server.is_open.is_set()


def test_a_server_without_routes_for_weights_is_refused_at_the_start() -> None:
    with fake_openai() as server, pytest.raises(ConfigurationError, match="VLLM_SERVER_DEV_MODE=1"):
        on(an_engine(server.url, weight_updates="vllm"), many(1))


def test_a_generator_of_a_run_needs_servers_that_follow_the_policy(tmp_path: Path) -> None:
    config = tmp_path / "rollstream.toml"
    engine = 'run = "demo"\n[generator.engine]\nkind = "openai_http"\n[generator.engine.http]\n'
    http = 'urls = ["http://127.0.0.1:8000"]\nmodel = "policy"\n'
    config.write_text(engine + http)
    with pytest.raises(ConfigurationError, match=r"weight_updates 'none': the servers would keep their weights"):
        GeneratorSettings.load(config)
    config.write_text(f'{engine}{http}weight_updates = "vllm"\napi_key = "a-long-secret"\n')
    settings = GeneratorSettings.load(config)
    assert settings.engine.http.urls == ("http://127.0.0.1:8000",)
    assert "a-long-secret" not in settings.model_dump_json()


def test_an_engine_whose_servers_keep_their_weights_loads_none(model: Path) -> None:
    with fake_openai() as server, pytest.raises(EngineError, match="weight_updates is 'none'"):
        on(an_engine(server.url), lambda engine: engine.load_weights(1, model))
