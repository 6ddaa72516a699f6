"""Rewards in processes that can be killed: an answer that hangs or crashes costs only its own sample."""

import asyncio

import psutil
import pytest

from rollstream.environments.pool.pool import PoolBounds, ScoringPool
from rollstream.environments.pool.verdicts import ScoringSample, Verdict
from rollstream.environments.rubric import RewardInput
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.rollout import Status
from tests.harness.reward_inputs import an_answer
from tests.harness.waits import DEADLINE_SECONDS

POWER = r"\boxed{9^{9^{9^9}}}"
"""No machine has the memory or time for this number."""
ENDLESS_PATTERN = {"type": "string", "pattern": "^(a+)+$"}
"""It looks for the end of the a's in 2^n ways if something else follows."""
# Making an environment imports sympy, which can take long on a busy machine, and each process that is killed does it
# again: so what kills one is together in few tests.
BOUNDS = PoolBounds(sample_seconds=2.0, load_seconds=120.0, batch_seconds=250.0)
LATE = "timeout: scoring this sample took longer than 2 s"
CRASHED = "crash: scoring this sample ended its process with exit code -9"


def scored(environment: str, *answers: RewardInput, **options: str) -> list[Verdict]:
    return scored_twice([ScoringSample(environment=environment, answer=answer) for answer in answers], [], options)[0]


def scored_twice(
    first: list[ScoringSample], killed: list[ScoringSample], options: dict[str, str] | None = None
) -> tuple[list[Verdict], list[Verdict]]:
    """The verdicts on both, in one pool of one process, which somebody kills when it is busy with a `killed` sample.

    `options`: of `by_source`.
    """
    declared = {"by_source": Declaration(options=options or {})}

    async def score() -> tuple[list[Verdict | None], list[Verdict | None]]:
        async with ScoringPool(BOUNDS, declared) as pool:
            verdicts = await pool.score(first)
            if not killed:
                return verdicts, []
            # When this has its verdict, the environment is loaded.
            await pool.score(killed[:1])
            killing = asyncio.create_task(kill_when_busy())
            after = await pool.score(killed)
            await killing
            return verdicts, after

    before, after = asyncio.run(score())
    assert None not in (*before, *after)
    return [one for one in before if one is not None], [one for one in after if one is not None]


async def kill_when_busy() -> None:
    """Kill the scoring process once it has computed for 0.3 s: only a sample without end takes so long."""
    [process] = [
        child for child in psutil.Process().children() if "rollstream.environments.pool.child" in child.cmdline()
    ]
    start = process.cpu_times().user
    async with asyncio.timeout(DEADLINE_SECONDS):
        while process.cpu_times().user < start + 0.3:
            await asyncio.sleep(0.02)
    process.kill()


def told(verdicts: list[Verdict]) -> list[str]:
    return [str(verdict.reward) if verdict.failure is None else str(verdict.failure) for verdict in verdicts]


def test_an_expression_without_end_or_a_kill_costs_the_environment_math_only_its_own_sample() -> None:
    """Killed as the kernel does it for the memory: while the process is at the sample."""
    right, wrong, endless = an_answer(r"\boxed{1/2}", "0.5"), an_answer(r"\boxed{1/3}", "0.5"), an_answer(POWER, "5")
    asked = [
        ScoringSample(environment="math", answer=one) for one in (right, endless, wrong, an_answer("5", None), right)
    ]
    verdicts, after = scored_twice(asked, [asked[0], asked[1], asked[0]])
    assert told(verdicts) == [
        "1.0",
        LATE,
        "0.0",
        "bad_reward: reward 'correct' raised RewardError: the row has no reference answer, so nothing can be compared: "
        "add one, or name another reward",
        "1.0",
    ]
    assert [verdict.status for verdict in verdicts[1:4]] == [Status.UNRESOLVED, Status.COMPLETED, Status.UNRESOLVED]
    assert told(after) == ["1.0", CRASHED, "1.0"]


def test_a_pattern_without_end_a_kill_and_an_unknown_source_cost_by_source_only_their_own_samples() -> None:
    fine = an_answer("#### 72", "72", data_source="openai/gsm8k")
    endless = an_answer(f'"{"a" * 50}b"', data_source="structured_output", json_schema=ENDLESS_PATTERN)
    power = an_answer(POWER, "5", data_source="numina_olympiads")
    unknown = an_answer("#### 72", "72", data_source="gsm8k")
    missed = an_answer("", "5", data_source="aime24")

    def samples(*answers: RewardInput) -> list[ScoringSample]:
        return [ScoringSample(environment="by_source", answer=answer) for answer in answers]

    verdicts, after = scored_twice(samples(fine, endless, unknown, missed, fine), samples(fine, endless, fine, power))
    assert [verdict.reward for verdict in verdicts] == [1.0, None, None, -1.0, 1.0]
    assert told(verdicts)[1] == LATE
    assert told(verdicts)[2].startswith(
        "bad_reward: reward 'score' raised RewardError: data source 'gsm8k' has no reward; those that have one: openai/"
    )
    assert told(after) == ["1.0", CRASHED, "1.0", LATE]


SPACES = " " * 100_000


@pytest.mark.parametrize(
    ("environment", "answer"),
    [
        ("word_count", an_answer(f"<word_count>{SPACES}", "5")),
        ("word_count", an_answer("<word_count>\n" * 8000, "5")),
        ("multiple_choice", an_answer(f"Answer:{SPACES}b", "B")),
    ],
    ids=["spaces after a tag", "many tags", "spaces after a colon"],
)
def test_a_long_answer_in_no_form_is_wrong_and_takes_no_longer_than_its_length(
    environment: str, answer: RewardInput
) -> None:
    """It is the model's own, so it must not end as unresolved, as with patterns that try many ways to divide it."""
    assert told(scored(environment, answer)) == ["0.0"]


def test_a_program_in_a_long_line_is_found_at_once_and_given_to_the_sandbox() -> None:
    tests = '{"inputs": ["1"], "outputs": ["1"]}'
    [verdict] = scored(
        "by_source",
        an_answer("```" + "a" * 200_000, tests, data_source="taco"),
        # Nobody listens there.
        sandbox_url="http://127.0.0.1:1/run_code",
    )
    assert "the sandbox service did not answer: ConnectionRefusedError" in str(verdict.failure)
