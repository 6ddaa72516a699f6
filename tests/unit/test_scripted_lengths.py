"""How long the scripted engine's answers are, and which version its spans name while several tokens come at once."""

import asyncio
import math
from pathlib import Path

import numpy as np
import pytest

from rollstream.engines.protocol import Generation, GenerationRequest
from rollstream.engines.scripted import ScriptedEngine, answer_tokens
from rollstream.engines.settings import EngineSettings, ScriptedSettings
from rollstream.schemas.prompt import Sampling
from rollstream.schemas.rollout import FinishReason

SPREAD = ScriptedSettings(
    answer_tokens_median=300, answer_tokens_sigma_of_prompts=0.6, answer_tokens_sigma_of_samples=0.8
)


def engine(tmp_path: Path, scripted: ScriptedSettings, max_num_seqs: int = 256) -> ScriptedEngine:
    return ScriptedEngine(
        EngineSettings(kind="scripted", model_path=tmp_path, scripted=scripted, max_num_seqs=max_num_seqs)
    )


def request(scripted: ScriptedEngine, prompt: str, seed: int, max_tokens: int = 4000) -> GenerationRequest:
    return GenerationRequest(
        request_id=f"{prompt}-{seed}",
        prompt_token_ids=np.array(list(prompt.encode()), dtype=np.int32),
        sampling=Sampling(temperature=1.0, max_tokens=max_tokens),
        max_tokens=max_tokens,
        seed=seed,
    )


def answered(scripted: ScriptedEngine, *requests: GenerationRequest) -> list[Generation]:
    async def run() -> list[Generation]:
        await scripted.start(weight_version=0)
        return await asyncio.gather(*(scripted.generate(one) for one in requests))

    return asyncio.run(run())


def test_by_default_answers_have_the_length_of_what_they_say(tmp_path: Path) -> None:
    assert answer_tokens(ScriptedSettings(), prompt="31=", sample="1") is None
    plain = engine(tmp_path, ScriptedSettings(correct_ratio=1.0))
    (answer,) = answered(plain, request(plain, "31=", seed=1))
    assert answer.text == "13"
    assert len(answer.token_ids) == 3


def test_without_spread_every_length_is_the_median() -> None:
    flat = ScriptedSettings(answer_tokens_median=40)
    assert {answer_tokens(flat, prompt=str(n), sample=str(n)) for n in range(20)} == {40}


def test_logarithms_of_the_lengths_have_the_spreads_between_and_within_prompts() -> None:
    logs = np.array(
        [
            [math.log(answer_tokens(SPREAD, prompt=f"{n}=", sample=f"{seed}/{n}=") or 0) for seed in range(16)]
            for n in range(2000)
        ]
    )
    assert logs.mean() == pytest.approx(math.log(300), abs=0.05)
    assert logs.std(axis=1, ddof=1).mean() == pytest.approx(0.8, rel=0.04)
    # A mean of 16 samples still has a sixteenth of their variance.
    assert logs.mean(axis=1).std() == pytest.approx(math.sqrt(0.6**2 + 0.8**2 / 16), rel=0.04)


def test_the_same_seed_gives_the_same_length_and_long_answers_are_right_or_wrong(tmp_path: Path) -> None:
    first, second = engine(tmp_path, SPREAD), engine(tmp_path, SPREAD)
    asked = [request(first, "52910=", seed) for seed in range(40)]
    answers, again = answered(first, *asked), answered(second, *asked)
    assert [answer.text for answer in answers] == [answer.text for answer in again]
    assert {answer.text.strip(" ") for answer in answers} == {"01259", "0125"}
    assert len({len(answer.token_ids) for answer in answers}) > 20
    assert all(answer.finish_reason is FinishReason.STOP for answer in answers)


def test_an_answer_longer_than_the_limit_is_cut_there(tmp_path: Path) -> None:
    scripted = engine(tmp_path, ScriptedSettings(answer_tokens_median=50))
    within, cut = answered(scripted, *(request(scripted, "31=", 1, max_tokens=limit) for limit in (50, 49)))
    assert (len(within.token_ids), within.finish_reason) == (50, FinishReason.STOP)
    assert (len(cut.token_ids), cut.finish_reason) == (49, FinishReason.LENGTH)


def test_tokens_that_come_at_once_have_the_version_of_their_moment(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    slow = engine(tmp_path, ScriptedSettings(answer_tokens_median=10, token_seconds=0.05, tokens_at_once=4))

    async def load_meanwhile() -> Generation:
        await slow.start(weight_version=0)
        running = asyncio.create_task(slow.generate(request(slow, "31=", seed=1)))
        # The tokens come after 0.2, 0.4 and 0.5 s.
        await asyncio.sleep(0.3)
        await slow.load_weights(1, tmp_path)
        return await running

    answer = asyncio.run(load_meanwhile())
    assert [(span.weight_version, span.start, span.end) for span in answer.weight_spans] == [(0, 0, 4), (1, 4, 10)]


def test_no_more_requests_run_side_by_side_than_the_settings_say(tmp_path: Path) -> None:
    narrow = engine(tmp_path, ScriptedSettings(token_seconds=0.05), max_num_seqs=2)
    (tmp_path / "model.safetensors").write_bytes(b"")

    async def load_after_the_first_two() -> list[Generation]:
        await narrow.start(weight_version=0)
        running = [asyncio.create_task(narrow.generate(request(narrow, "31=", seed))) for seed in range(4)]
        await asyncio.wait(running[:2])
        await narrow.load_weights(1, tmp_path)
        return [await task for task in running]

    *first, third, fourth = asyncio.run(load_after_the_first_two())
    assert {span.weight_version for answer in first for span in answer.weight_spans} == {0}
    assert all(answer.weight_spans[-1].weight_version == 1 for answer in (third, fourth))
