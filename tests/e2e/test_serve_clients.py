"""A generator with vLLM, asked by programs that know nothing of it: each answer is on Kafka once, with its tokens."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollstream.local.tiny_model import write_tiny_model
from rollstream.schemas.rollout import RolloutGenerated
from tests.harness.late import Late
from tests.harness.running import Run, a_run
from tests.harness.serving_runs import MODEL, ServingGenerator, a_serving_generator, until_recorded
from tests.harness.teacher_forcing import forced_logprobs

anthropic = Late("anthropic")
openai = Late("openai")

ASKED = [{"role": "user", "content": "52910="}]
VERSION = 3
_START_SECONDS = 180.0


@pytest.fixture
def serving(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[ServingGenerator]:
    """A generator with a tiny model that answers, and whose version was published."""
    model = tmp_path / "model"
    write_tiny_model(model, seed=1)
    with a_run(kafka, topic_prefix, tmp_path) as run:
        run.publish_weights(VERSION, (model / "model.safetensors").read_bytes())
        engine = {"model_path": model, "max_num_seqs": 16, "enforce_eager": True}
        generator = a_serving_generator(run, engine=engine)
        generator.start()
        generator.until_ready(_START_SECONDS)
        yield generator


def test_what_stock_clients_and_curl_are_answered_is_on_kafka_once_with_its_tokens(serving: ServingGenerator) -> None:
    texts = {**_of_openai(serving.url), **_of_anthropic(serving.url), **_of_curl(serving.url)}
    recorded = until_recorded(serving.run, lambda: list(texts))
    assert recorded.keys() == texts.keys()
    for response_id, text in texts.items():
        (rollout,) = recorded[response_id]
        assert rollout.turns[0].text == text
        _assert_right(serving.run, rollout)
    assert serving.process
    assert serving.process.terminate() == 0


def _of_openai(url: str) -> dict[str, str]:
    """Response id → text, of each route that this client has."""
    asked: Any = {"model": MODEL, "messages": ASKED, "max_tokens": 20}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        chat = client.chat.completions.create(**asked)
        chunks = list(client.chat.completions.create(**asked, stream=True))
        completion = client.completions.create(model=MODEL, prompt="52910=", max_tokens=20)
        response = client.responses.create(model=MODEL, input="52910=", max_output_tokens=20)
    return {
        chat.id: chat.choices[0].message.content or "",
        chunks[0].id: "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
        completion.id: completion.choices[0].text,
        response.id: response.output_text,
    }


def _of_anthropic(url: str) -> dict[str, str]:
    asked: Any = {"model": MODEL, "messages": ASKED, "max_tokens": 20}
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        answer = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
    return {one.id: "".join(getattr(part, "text", "") for part in one.content) for one in (answer, streamed)}


def _of_curl(url: str) -> dict[str, str]:
    """A conversation that curl, which can set a path alone, takes part in."""
    if (curl := shutil.which("curl")) is None:
        return {}
    body = f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "52910="}}], "max_tokens": 20}}'
    command = [curl, "--no-buffer", "--silent", f"{url}/s/of-curl/v1/chat/completions"]
    said = subprocess.run(
        [*command, "-H", "content-type: application/json", "-d", body], capture_output=True, check=True, timeout=60
    )
    answer = openai.types.chat.ChatCompletion.model_validate_json(said.stdout)
    return {answer.id: answer.choices[0].message.content or ""}


def _assert_right(run: Run, rollout: RolloutGenerated) -> None:
    (turn,) = rollout.turns
    assert rollout.weight_versions == (VERSION,)
    assert turn.is_plain
    right = forced_logprobs(run.directory / "model", turn.prompt_token_ids, turn.token_ids, 1.0)
    assert len(turn.token_ids) > 0
    assert np.abs(right - turn.behavior_logprobs).max() <= 1e-4
