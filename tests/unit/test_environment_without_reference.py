"""A row without a reference answer is unscored and says so: nothing is right or wrong there, so it gets no 0."""

import asyncio

import pytest

from rollstream.environments.pool.pool import PoolBounds, ScoringPool
from rollstream.environments.pool.verdicts import ScoringSample, Verdict
from rollstream.environments.rewards.registry import SOURCES, score_by_source
from rollstream.environments.rewards.sandbox import Sandbox
from rollstream.environments.rubric import RewardInput
from rollstream.environments.word_count import WordCount
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.errors import RewardError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.rollout import Status

ABSENT = [None, "", "  "]
COMPLETIONS = ["", "0", "None", "<answer></answer>", "<word_count>0</word_count>"]
ENVIRONMENTS = ["sort_digits", "word_count", "multiple_choice", "structured_output", "ifeval", "reasoning_gym"]


def an_answer(completion: str, reference: str | None, **metadata: str) -> RewardInput:
    return RewardInput(
        completion=completion, assistant_messages=(completion,), reference_answer=reference, metadata=metadata
    )


def verdicts_of(samples: list[ScoringSample]) -> list[Verdict | None]:
    async def scored() -> list[Verdict | None]:
        declared = {"reasoning_gym": Declaration(options={"dataset": "chain_sum"})}
        async with ScoringPool(PoolBounds(num_processes=1), declared) as pool:
            return await pool.score(samples)

    return asyncio.run(scored())


def test_no_environment_gives_a_reward_to_a_row_without_a_reference_in_the_pool_of_the_scorer_and_of_collect() -> None:
    samples = [
        ScoringSample(environment=name, answer=an_answer(completion, reference))
        for name in ENVIRONMENTS
        for reference in ABSENT
        for completion in COMPLETIONS
    ]
    verdicts = verdicts_of([*samples, ScoringSample(environment="sort_digits", answer=an_answer("7", "13"))])
    assert verdicts[-1] == Verdict(status=Status.COMPLETED, reward=0.0, components={"exact_match": 0.0})
    for sample, verdict in zip(samples, verdicts, strict=False):
        assert verdict is not None
        assert verdict.failure is not None, sample
        assert (verdict.status, verdict.reward, verdict.components) == (Status.UNRESOLVED, None, {}), sample
        assert verdict.failure.code == FailureCode.BAD_REWARD
        assert "RewardError: the row" in verdict.failure.message


@pytest.mark.parametrize("name", [source.name.replace("*", "2024") for source in SOURCES])
@pytest.mark.parametrize("reference", ABSENT)
def test_no_data_source_gives_a_reward_to_a_row_without_a_reference(name: str, reference: str | None) -> None:
    # Nobody listens there: a row without tests must not get as far as a program.
    sandbox = Sandbox(url="http://127.0.0.1:9", run_seconds=1.0)
    for completion in COMPLETIONS:
        with pytest.raises(RewardError, match="the row"):
            score_by_source(an_answer(completion, reference, data_source=name), sandbox)


@pytest.mark.parametrize("reference", ['[""]', '{"target": ""}', '{"target": [" ", ""]}'])
def test_a_question_whose_answers_are_all_blank_is_unscored(reference: str) -> None:
    for completion in COMPLETIONS:
        with pytest.raises(RewardError, match="holds no answer: add one"):
            score_by_source(an_answer(completion, reference, data_source="searchR1_nq"), None)


def test_a_blank_answer_beside_others_makes_no_empty_answer_right() -> None:
    def reward(completion: str) -> float:
        return score_by_source(an_answer(completion, '["", "Rome"]', data_source="searchR1_nq"), None)

    assert (reward("<answer> </answer>"), reward("<answer>rome</answer>")) == (0.0, 1.0)


@pytest.mark.parametrize("reference", ["many", "45.0", "-3", "4" * 5000])
def test_a_reference_that_is_no_number_of_words_is_unscored(reference: str) -> None:
    for completion in ("", "<word_count>45</word_count>"):
        with pytest.raises(RewardError, match="is no number of words: correct the row"):
            WordCount.rubric.score(an_answer(completion, reference))
