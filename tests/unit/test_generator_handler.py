"""One prompt in, group_size samples out: the generator's handler without Kafka, with the scripted engine."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from rollstream.agents.samples import SampleBounds, sample_seed
from rollstream.engines.protocol import Generation, GenerationRequest
from rollstream.engines.scripted import ScriptedEngine
from rollstream.engines.settings import EngineSettings, ScriptedSettings
from rollstream.generator.current_version import CurrentVersion
from rollstream.generator.handler import GeneratorHandler, without_tokens
from rollstream.schemas.errors import EngineDeadError, EngineError, RecordTooLargeError
from rollstream.schemas.prompt import PromptSubmitted, Purpose, Sampling
from rollstream.schemas.rollout import FinishReason, RolloutGenerated, Status
from tests.harness.builders import a_generated, a_generator, a_prompt


class FailingEngine(ScriptedEngine):
    """A real engine whose first calls fail as an overloaded one's do."""

    def __init__(self, settings: EngineSettings, *, failures: int, error: Callable[[str], EngineError]) -> None:
        super().__init__(settings)
        self._failures = failures
        self._error = error

    async def generate(self, request: GenerationRequest) -> Generation:
        if self._failures > 0:
            self._failures -= 1
            raise self._error("out of memory")
        return await super().generate(request)


def settings(tmp_path: Path, token_seconds: float = 0.0) -> EngineSettings:
    return EngineSettings(kind="scripted", model_path=tmp_path, scripted=ScriptedSettings(token_seconds=token_seconds))


def handled(
    engine: ScriptedEngine, prompt: PromptSubmitted, *, deadline_seconds: float = 5.0, max_tries: int = 2
) -> list[RolloutGenerated]:
    async def run() -> list[RolloutGenerated]:
        await engine.start(weight_version=0)
        current = CurrentVersion()
        async with current.changing(0, 1.0):
            pass
        bounds = SampleBounds(deadline_seconds=deadline_seconds, max_tries=max_tries)
        handler = GeneratorHandler(engine, identity=a_generator(), bounds=bounds, current=current)
        return [sample async for sample in handler.handle(prompt)]

    return asyncio.run(run())


def test_every_sample_of_the_group_ends_once_with_an_attempt_of_its_own(tmp_path: Path) -> None:
    samples = handled(ScriptedEngine(settings(tmp_path)), a_prompt(group_size=4))
    assert sorted(sample.sample_index for sample in samples) == [0, 1, 2, 3]
    assert len({sample.attempt_id for sample in samples}) == 4
    assert all(sample.status is Status.COMPLETED and sample.turns for sample in samples)


def test_max_tokens_are_clamped_to_what_fits_and_the_finish_reason_says_length(tmp_path: Path) -> None:
    engine = ScriptedEngine(settings(tmp_path).model_copy(update={"max_model_len": 8}))
    (sample,) = handled(engine, a_prompt(group_size=1, sampling=Sampling(max_tokens=100)))
    assert len(sample.turns[0].token_ids) == 2
    assert sample.turns[0].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), Sampling(top_p=0.9), Sampling(top_k=5)])
def test_a_distribution_that_is_not_the_policys_never_trains_but_may_serve(tmp_path: Path, sampling: Sampling) -> None:
    engine = ScriptedEngine(settings(tmp_path))
    (trained,) = handled(engine, a_prompt(group_size=1, sampling=sampling))
    (served,) = handled(engine, a_prompt(group_size=1, sampling=sampling, purpose=Purpose.SERVE))
    assert trained.status is Status.FAILED
    assert str(trained.failure).startswith("unsupported_sampling: ")
    assert served.status is Status.COMPLETED


def test_a_sample_past_its_deadline_is_unresolved(tmp_path: Path) -> None:
    (sample,) = handled(ScriptedEngine(settings(tmp_path, 10.0)), a_prompt(group_size=1), deadline_seconds=0.01)
    assert sample.status is Status.UNRESOLVED
    assert str(sample.failure).startswith("deadline: ")


@pytest.mark.parametrize(("failures", "status"), [(1, Status.COMPLETED), (2, Status.UNRESOLVED)])
def test_an_engine_error_is_counted_and_tried_again_within_the_bound(
    tmp_path: Path, failures: int, status: Status
) -> None:
    def counted() -> float:
        return REGISTRY.get_sample_value("rollstream_generator_engine_errors_total") or 0.0

    before = counted()
    engine = FailingEngine(settings(tmp_path), failures=failures, error=EngineError)
    (sample,) = handled(engine, a_prompt(group_size=1))
    assert (sample.status, counted() - before) == (status, failures)


def test_a_dead_engine_is_no_sample_but_a_broken_world(tmp_path: Path) -> None:
    engine = FailingEngine(settings(tmp_path), failures=1, error=EngineDeadError)
    with pytest.raises(EngineDeadError):
        handled(engine, a_prompt(group_size=1))


def idle_handler(tmp_path: Path) -> GeneratorHandler:
    bounds = SampleBounds(deadline_seconds=1.0, max_tries=1)
    engine = ScriptedEngine(settings(tmp_path))
    return GeneratorHandler(engine, identity=a_generator(), bounds=bounds, current=CurrentVersion())


def test_a_prompt_that_is_given_up_ends_as_unresolved_samples(tmp_path: Path) -> None:
    samples = list(idle_handler(tmp_path).give_up(a_prompt(group_size=3), RuntimeError("died 5 times")))
    ends = [(sample.status, str(sample.failure)) for sample in samples]
    assert ends == [(Status.UNRESOLVED, "given_up: died 5 times")] * 3


@pytest.mark.parametrize(
    ("sampling", "why"),
    [
        (Sampling(max_tokens=2**62), "bad_prompt: max_tokens 4611686018427387904 is above 1048576"),
        (Sampling(temperature=1e-300), "unsupported_sampling: temperature 1e-300 is neither 0 nor in [0.01, 100]"),
    ],
)
@pytest.mark.parametrize("purpose", [Purpose.TRAIN, Purpose.SERVE])
def test_a_number_out_of_bounds_fails_every_sample_and_names_the_bound(
    tmp_path: Path, sampling: Sampling, why: str, purpose: Purpose
) -> None:
    samples = handled(ScriptedEngine(settings(tmp_path)), a_prompt(group_size=2, sampling=sampling, purpose=purpose))
    assert [sample.status for sample in samples] == [Status.FAILED] * 2
    assert all(str(sample.failure).startswith(why) for sample in samples)


@pytest.mark.parametrize(
    ("group_size", "answer", "why"),
    [(10**12, "", "group_size 1000000000000 is above 1024"), (1024, "x" * 5_900_000, "group_size 1024 x 59")],
    ids=["number", "bytes"],
)
def test_a_group_beyond_its_bound_is_answered_by_one_sample_that_says_so(
    tmp_path: Path, group_size: int, answer: str, why: str
) -> None:
    prompt = a_prompt(group_size=group_size, reference_answer=answer)
    (sample,) = handled(ScriptedEngine(settings(tmp_path)), prompt)
    assert (sample.status, sample.group_size) == (Status.FAILED, group_size)
    assert str(sample.failure).startswith(f"bad_prompt: {why}")
    assert len(list(idle_handler(tmp_path).give_up(prompt, RuntimeError("died")))) == 1


def test_a_sample_over_the_size_limit_fails_without_its_tokens() -> None:
    sample = without_tokens(a_generated(), RecordTooLargeError("8 MB"))
    assert (sample.status, sample.turns, str(sample.failure)) == (Status.FAILED, (), "too_large: 8 MB")


def test_each_sample_has_a_seed_of_its_own_and_the_same_one_again() -> None:
    seeds = [sample_seed(Sampling(seed=7), index) for index in range(8)]
    assert len(set(seeds)) == 8
    assert seeds == [sample_seed(Sampling(seed=7), index) for index in range(8)]
    assert all(seed is not None and 0 <= seed < 2**63 for seed in seeds)
    assert sample_seed(Sampling(), 0) is None
