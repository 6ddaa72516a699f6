"""Rewards in processes that can be killed: an answer that hangs or crashes costs only its own sample."""

import asyncio
from pathlib import Path

import psutil
import pytest

from rollstream.environments.pool.pool import PoolBounds, ScoringPool
from rollstream.environments.pool.verdicts import Sample, Verdict
from rollstream.environments.rubric import RewardInput, Rubric, WeightedReward
from rollstream.process.declared import Declaration
from rollstream.schemas.rollout import Status
from tests.harness.reward_inputs import an_answer
from tests.harness.unruly_environment import Unruly
from tests.harness.waits import DEADLINE_SECONDS

ENDLESS_POWER = r"\boxed{9^{9^{9^9}}}"
"""No machine has the memory or time for this number."""
ENDLESS_PATTERN = {"type": "string", "pattern": "^(a+)+$"}
"""It looks for the end of the a's in 2^n ways if something else follows."""
# Making an environment imports sympy, which can take long on a busy machine.
BOUNDS = PoolBounds(sample_seconds=5.0, load_seconds=120.0, batch_seconds=250.0)


def scored(environment: str, *answers: RewardInput, bounds: PoolBounds = BOUNDS) -> list[Verdict]:
    async def score() -> list[Verdict | None]:
        async with ScoringPool(bounds, {"polite": Declaration(path=f"{__name__}.Polite")}) as pool:
            return await pool.score([Sample(environment=environment, answer=answer) for answer in answers])

    verdicts = asyncio.run(score())
    assert None not in verdicts
    return [verdict for verdict in verdicts if verdict is not None]


def told(verdicts: list[Verdict]) -> list[str]:
    return [str(verdict.reward) if verdict.failure is None else str(verdict.failure) for verdict in verdicts]


def test_an_expression_without_end_costs_the_environment_math_only_its_own_sample() -> None:
    right, wrong = an_answer(r"\boxed{1/2}", "0.5"), an_answer(r"\boxed{1/3}", "0.5")
    verdicts = scored("math", right, an_answer(ENDLESS_POWER, "5"), wrong, an_answer("5", None), right)
    assert told(verdicts) == [
        "1.0",
        "timeout: scoring this sample took longer than 5 s",
        "0.0",
        "bad_reward: reward 'correct' raised RewardError: the row has no reference answer, so nothing can be compared: "
        "add one, or name another reward",
        "1.0",
    ]
    assert [verdict.status for verdict in verdicts[1:4]] == [Status.UNRESOLVED, Status.COMPLETED, Status.UNRESOLVED]


def test_a_pattern_without_end_and_an_unknown_source_cost_by_source_only_their_own_samples() -> None:
    fine = an_answer("#### 72", "72", data_source="openai/gsm8k")
    endless = an_answer(f'"{"a" * 50}b"', data_source="structured_output", json_schema=ENDLESS_PATTERN)
    power = an_answer(ENDLESS_POWER, "5", data_source="numina_olympiads")
    unknown = an_answer("#### 72", "72", data_source="gsm8k")
    verdicts = scored("by_source", fine, endless, unknown, power, an_answer("", "5", data_source="aime24"), fine)
    assert [verdict.reward for verdict in verdicts] == [1.0, None, None, None, -1.0, 1.0]
    late = "timeout: scoring this sample took longer than 5 s"
    assert [told(verdicts)[1], told(verdicts)[3]] == [late, late]
    assert told(verdicts)[2].startswith(
        "bad_reward: reward 'score' raised RewardError: data source 'gsm8k' has no reward; those that have one: openai/"
    )


@pytest.mark.parametrize(
    ("environment", "crashing", "fine"),
    [
        ("math", an_answer(ENDLESS_POWER, "5"), an_answer("5", "5")),
        (
            "by_source",
            an_answer(f'"{"a" * 50}b"', data_source="structured_output", json_schema=ENDLESS_PATTERN),
            an_answer("#### 5", "5", data_source="openai/gsm8k"),
        ),
    ],
)
def test_a_process_that_dies_over_a_sample_costs_only_this_sample(
    environment: str, crashing: RewardInput, fine: RewardInput
) -> None:
    """As when the kernel kills it for its memory: it is killed while it is at the sample."""
    bounds = PoolBounds(sample_seconds=60.0, load_seconds=120.0, batch_seconds=250.0)

    async def score() -> list[Verdict | None]:
        async with ScoringPool(bounds) as pool:
            # When this has its verdict, the environment is loaded.
            await pool.score([Sample(environment=environment, answer=fine)])
            killing = asyncio.create_task(kill_when_busy())
            samples = [Sample(environment=environment, answer=answer) for answer in (fine, crashing, fine)]
            verdicts = await pool.score(samples)
            await killing
            return verdicts

    verdicts = [verdict for verdict in asyncio.run(score()) if verdict is not None]
    assert told(verdicts) == ["1.0", "crash: scoring this sample ended its process with exit code -9", "1.0"]


async def kill_when_busy() -> None:
    """Kill the scoring process once it has computed for a second: no other sample here takes so long."""
    [process] = [
        child for child in psutil.Process().children() if "rollstream.environments.pool.child" in child.cmdline()
    ]
    start = process.cpu_times().user
    async with asyncio.timeout(DEADLINE_SECONDS):
        while process.cpu_times().user < start + 1.0:
            await asyncio.sleep(0.05)
    process.kill()


class Polite(Unruly):
    """An environment of a user's own, by its dotted path."""

    name = "polite"
    rubric = Rubric(WeightedReward("please", lambda sample: float("please" in sample.completion)))


def test_a_users_own_reward_by_dotted_path_scores_too() -> None:
    assert told(scored("polite", an_answer("yes please"), an_answer("yes"))) == ["1.0", "0.0"]


def test_model_written_code_in_an_answer_to_a_procedural_task_never_runs(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    code = f"<answer>open('{trace}', 'w')</answer>"
    answer = an_answer(code, "0 1", dataset="spiral_matrix", question="", entry_metadata={})
    declared = {"reasoning_gym": Declaration(options={"dataset": "spiral_matrix"})}

    async def score() -> list[Verdict | None]:
        async with ScoringPool(BOUNDS, declared) as pool:
            return await pool.score([Sample(environment="reasoning_gym", answer=answer)])

    [verdict] = asyncio.run(score())
    assert verdict is not None
    assert verdict.reward == 0.0
    assert not trace.exists()
