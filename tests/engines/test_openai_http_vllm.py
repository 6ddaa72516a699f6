"""The engine `openai_http` on vLLM's own server on the CPU: text, tokens with logprobs, and updates while it runs."""

import asyncio
import json
import re
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollstream.engines.http.engine import OpenAiHttpEngine
from rollstream.engines.protocol import Generation
from rollstream.schemas.errors import FailedSampleError
from rollstream.schemas.prompt import Message
from rollstream.schemas.rollout import FinishReason, WeightSpan
from rollstream.training.weight_sync import VLLMEngine, sync_weights_to_engines
from tests.harness import engine_scenarios as scenario
from tests.harness.engine_fixtures import MAX_MODEL_LEN, EngineHosts, Models
from tests.harness.http_engines import a_request, an_engine, on
from tests.harness.teacher_forcing import forced_logprobs
from tests.harness.vllm_server import a_vllm_server
from tests.harness.waits import until

EOS = 1


@pytest.fixture(scope="module")
def server(models: Models, engine_hosts: EngineHosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server's URL. Its embeddings are untied: vLLM's plain reload of tied ones is wrong on a CPU."""
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with a_vllm_server(engine_hosts.nursery, models.untied.old, log) as url:
        yield url


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_text_comes_with_the_usage_that_the_server_reports(server: str, api: str) -> None:
    question = (Message(role="user", content="52910="),)
    asked = a_request(messages=question, max_tokens=8, seed=1)
    found = on(an_engine(f"{server}/v1", api=api), lambda engine: engine.generate(asked))
    assert found.text
    assert found.reported_prompt_tokens == 6
    assert found.reported_completion_tokens == 8 or found.finish_reason is FinishReason.STOP
    assert len(found.token_ids) == 0


def test_the_server_tells_its_version_and_length_and_what_it_refuses(server: str, models: Models) -> None:
    async def look(engine: OpenAiHttpEngine) -> tuple[str, int]:
        long = (Message(role="user", content="5" * (MAX_MODEL_LEN + 1)),)
        with pytest.raises(FailedSampleError, match="maximum context length is 320") as too_long:
            await engine.generate(a_request(messages=long))
        assert too_long.value.code == "prompt_too_long"
        return engine.version, engine.max_model_len

    version, max_model_len = on(an_engine(server), look)
    assert version.startswith("vllm 0.")
    assert max_model_len == MAX_MODEL_LEN
    with pytest.raises(FailedSampleError, match="The model `other` does not exist") as failed:
        on(an_engine(server, model="other"), lambda engine: engine.generate(a_request()))
    assert failed.value.code == "refused"


def test_logprobs_are_those_of_the_weights_and_no_token_is_of_an_older_version_than_its_span(
    server: str, models: Models
) -> None:
    """Before an update, over it, and after it. Calls that it overtakes go on, first by the older weights."""
    versions, temperatures = models.untied, (1.0, 0.7) * 4
    asked = [{"seed": seed, "max_tokens": 60, "temperature": each} for seed, each in enumerate(temperatures)]

    async def update(engine: OpenAiHttpEngine) -> list[list[Generation]]:
        await engine.load_weights(1, versions.old)
        before = await scenario.generate(engine, asked)
        num_before = num_tokens(server)
        running = [asyncio.create_task(scenario.generate(engine, [{**one, "max_tokens": 200}])) for one in asked]
        # Before its first token a call may wait for the update, and be of the newer weights alone.
        await until(lambda: num_tokens(server) > num_before, "the server to have sampled for the calls")
        report = await engine.load_weights(2, versions.new)
        assert 0 < report.stall_seconds <= report.load_seconds
        over = [answer for answers in await asyncio.gather(*running) for answer in answers]
        return [before, over, await scenario.generate(engine, asked)]

    before, over, after = on(an_engine(server, tokenizer_path=versions.old, weight_updates="vllm"), update)
    prompt = _prompt(models)

    def off(answer: Generation, temperature: float, path: Path) -> Any:
        return np.abs(answer.behavior_logprobs - forced_logprobs(path, prompt, answer.token_ids, temperature))

    for answers, right, wrong, version in (
        (before, versions.old, versions.new, 1),
        (after, versions.new, versions.old, 2),
    ):
        for answer, temperature in zip(answers, temperatures, strict=True):
            assert answer.weight_spans == (WeightSpan(weight_version=version, start=0, end=len(answer.token_ids)),)
            assert EOS not in answer.token_ids[:-1]
            assert (answer.token_ids[-1] == EOS) == (answer.finish_reason is FinishReason.STOP)
            assert off(answer, temperature, right).max() < 1e-3
            assert off(answer, temperature, wrong).mean() > 0.05
    mixed = 0
    for answer, temperature in zip(over, temperatures, strict=True):
        older, newer = (off(answer, temperature, path) < 1e-3 for path in (versions.old, versions.new))
        (span,) = answer.weight_spans
        # All before some token is of the older weights, all from there on of the newer ones.
        first_newer = int(np.argmin(older)) if not older.all() else len(older)
        assert newer[first_newer:].all()
        assert span.weight_version == 1 or first_newer == 0
        mixed += 0 < first_newer < len(older)
    assert mixed
    assert len({tuple(answer.token_ids.tolist()) for answer in over}) > 1


def num_tokens(server: str) -> float:
    """How many tokens the server has sampled."""
    with urllib.request.urlopen(f"{server}/metrics", timeout=30) as answer:
        found = re.search(r"^vllm:generation_tokens_total\{.*\} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return float(found[1])


def _prompt(models: Models) -> Any:
    from rollstream.engines.tokenizer import ChatTokenizer

    tokenizer = ChatTokenizer(models.untied.old)
    return tokenizer.tokenize((Message(role="user", content=scenario.QUESTION),), ())


def test_top_k_that_is_asked_for_reaches_the_server(server: str, models: Models) -> None:
    """With top_k 1 every sample is the greedy one."""

    async def generate(engine: OpenAiHttpEngine) -> list[Generation]:
        return await scenario.generate(engine, [{"seed": seed, "max_tokens": 20, "top_k": 1} for seed in range(3)])

    found = on(an_engine(server, tokenizer_path=models.untied.old), generate)
    assert len({tuple(answer.token_ids.tolist()) for answer in found}) == 1


def test_a_checkpoint_of_the_training_library_is_loaded_and_labeled_by_its_step(
    server: str, models: Models, tmp_path: Path
) -> None:
    """Beside the weights lies what only training reads, which the server must pass over."""
    checkpoint = shutil.copytree(models.untied.new, tmp_path / "step_7")
    for name in ("pytorch_model.bin", "optimizer.bin"):
        (checkpoint / name).write_bytes(b"of no use to a server")
    [answer] = asyncio.run(sync_weights_to_engines([VLLMEngine(server)], str(checkpoint)))
    assert (answer["success"], answer.get("weight_version")) == (True, 7)
    with urllib.request.urlopen(f"{server}/weight_info", timeout=30) as found:
        assert json.loads(found.read())["weight_version"] == "7"
    asked = [{"seed": 1, "max_tokens": 20}]
    engine = an_engine(server, tokenizer_path=models.untied.old)
    [generation] = on(engine, lambda started: scenario.generate(started, asked))
    forced = forced_logprobs(models.untied.new, _prompt(models), generation.token_ids, 1.0)
    assert np.abs(generation.behavior_logprobs - forced).max() < 1e-3
