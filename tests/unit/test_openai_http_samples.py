"""Samples that servers answer, as records: text turns, what is refused, what stays unresolved, and no secret."""

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rollstream.agents.samples import SampleBounds, SampleRunner
from rollstream.engines.http.engine import OpenAiHttpEngine
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import EngineDeadError
from rollstream.schemas.prompt import Purpose
from rollstream.schemas.rollout import RolloutGenerated, Status
from rollstream.schemas.topics import ROLLOUTS
from tests.harness.builders import a_generator, a_prompt
from tests.harness.collecting import collected, keys_of, lines_of, settings_for, some_prompts
from tests.harness.fake_openai import FakeOpenAI, Planned, fake_openai
from tests.harness.http_engines import an_engine, on

BOUNDS = SampleBounds(deadline_seconds=30.0, max_tries=2)


def samples(server: FakeOpenAI, *, number: int = 1, **http: Any) -> Sequence[RolloutGenerated]:
    """So many samples of one prompt, by the agent single_turn."""

    async def run(engine: OpenAiHttpEngine) -> list[RolloutGenerated]:
        identity = a_generator(engine=engine.name, engine_version=engine.version, tokenizer_sha256="")
        runner = SampleRunner(engine, identity=identity, bounds=BOUNDS)
        prompt = a_prompt(purpose=Purpose.SERVE, group_size=number)
        return await asyncio.gather(*(runner.run(prompt, index) for index in range(number)))

    return on(an_engine(server.url, **http), run)


def test_a_text_turn_is_completed_and_has_what_the_server_reports() -> None:
    with fake_openai(kind="litellm") as server:
        (found,) = samples(server)
    (turn,) = found.turns
    assert (found.status, turn.text) == (Status.COMPLETED, "yes")
    assert (turn.reported_prompt_tokens, turn.reported_completion_tokens) == (7, 3)
    assert (len(turn.prompt_token_ids), len(turn.token_ids), turn.weight_spans) == (0, 0, ())
    assert found.num_completion_tokens == 3
    assert (found.generator.engine, found.generator.engine_version) == ("openai_http", "litellm 1.80.0")
    assert AvroCodec(ROLLOUTS).decode(AvroCodec(ROLLOUTS).encode(found)) == found


def test_a_wrong_alias_fails_each_sample_with_the_proxys_words_and_no_answer() -> None:
    with fake_openai(kind="litellm") as server:
        found = samples(server, number=3, model="gpt-9")
    assert [one.status for one in found] == [Status.FAILED] * 3
    assert [one.turns for one in found] == [()] * 3
    assert {one.failure.code.value for one in found if one.failure} == {"refused"}
    assert all("The model `gpt-9` does not exist." in str(one.failure) for one in found)
    assert len(server.asked) == 3


def test_a_server_that_always_fails_leaves_a_sample_unresolved() -> None:
    with fake_openai(planned=deque([Planned(status=500, message="out of memory")] * 9)) as server:
        (found,) = samples(server, max_tries=2)
    assert (found.status, found.turns) == (Status.UNRESOLVED, ())
    assert "status 500: out of memory" in str(found.failure)
    assert len(server.asked) == 4  # twice by the engine, at each of two tries of the sample


def test_a_server_that_is_gone_leaves_no_record_at_all() -> None:
    with (
        fake_openai(planned=deque([Planned(drop=True)] * 9)) as server,
        pytest.raises(EngineDeadError, match="no server can be reached"),
    ):
        samples(server, max_tries=2)


def test_a_server_that_asks_to_wait_too_long_leaves_a_sample_past_its_deadline() -> None:
    refused = Planned(status=429, message="slow down", headers={"Retry-After": "86400"})
    with fake_openai(planned=deque([refused] * 2)) as server:
        (found,) = samples(server, request_seconds=0.3)
    assert (found.status, str(found.failure).partition(":")[0]) == (Status.UNRESOLVED, "deadline")
    assert "asks to wait 86400 s, longer than this call has left of its 0.3 s" in str(found.failure)


def test_a_key_that_a_server_repeats_is_masked_in_the_record() -> None:
    refused = Planned(status=400, message="Incorrect API key provided: planted-secret-key")
    with fake_openai(planned=deque([refused])) as server:
        (found,) = samples(server, api_key="planted-secret-key")
    assert "Incorrect API key provided: ***" in str(found.failure)
    assert "planted-secret-key" not in found.model_dump_json()


def test_of_800_samples_each_is_asked_once_and_never_more_than_the_bound_at_a_time(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "out.jsonl", num_samples=8, concurrency=100)
    with fake_openai(latency_seconds=0.05) as server:
        engine = an_engine(server.url, max_connections=100)
        report = collected(some_prompts(tmp_path / "in.jsonl", 100), settings, engine)
    asked = Counter(one.body["messages"][0]["content"] for one in server.asked)
    assert asked == {f"{row:05}=": 8 for row in range(100)}
    assert server.most_in_flight == report.counts.most_in_flight == 100
    rows = lines_of(tmp_path / "out.jsonl")
    assert keys_of(rows) == [(row, sample) for row in range(100) for sample in range(8)]
