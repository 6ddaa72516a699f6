"""Scoring processes: a hang or a crash fails its own sample only, and no process outlives its parent."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rollstream.environments.pool.pool import CHUNK_SAMPLES, PoolBounds, ScoringPool
from rollstream.environments.pool.verdicts import REWARD_AT_TIMEOUT, ScoringSample, Verdict, read_answer
from rollstream.environments.rubric import RewardInput
from rollstream.process.masking import SECRETS
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import BrokenWorldError
from rollstream.schemas.rollout import Status
from rollstream.schemas.scored import TurnScore
from rollstream.schemas.topics import SCORED
from rollstream.scorer.handler import ScorerIdentity, annotated
from tests.harness.builders import NOON, a_generated, a_prompt, a_turn
from tests.harness.processes import start_process
from tests.harness.unruly_environment import NAME, declared
from tests.harness.waits import DEADLINE_SECONDS, wait_until


def ordered(*orders: str, environment: str = NAME) -> list[ScoringSample]:
    return [
        ScoringSample(
            environment=environment, answer=RewardInput(completion="", assistant_messages=(), metadata={"order": order})
        )
        for order in orders
    ]


def a_pool(options: dict[str, dict[str, str]] | None = None, **bounds: float) -> ScoringPool:
    values = {"sample_seconds": 5.0, "load_seconds": 10.0, "batch_seconds": 30.0, **bounds}
    return ScoringPool(PoolBounds(**values), declared(**(options or {})))  # type: ignore[arg-type]


async def fully_scored(pool: ScoringPool, samples: list[ScoringSample]) -> list[Verdict]:
    """The verdicts of as many rounds as it takes; each round must bring one."""
    verdicts: list[Verdict | None] = [None] * len(samples)
    while missing := [position for position, verdict in enumerate(verdicts) if verdict is None]:
        found = await pool.score([samples[position] for position in missing])
        assert any(found)
        for position, verdict in zip(missing, found, strict=True):
            verdicts[position] = verdict
    return [verdict for verdict in verdicts if verdict is not None]


def scored(samples: list[ScoringSample], **bounds: float) -> list[Verdict]:
    async def score() -> list[Verdict]:
        async with a_pool(**bounds) as pool:  # type: ignore[arg-type]
            return await fully_scored(pool, samples)

    return asyncio.run(score())


def test_each_sample_gets_its_own_verdict_in_order_over_several_processes() -> None:
    verdicts = scored(ordered(*(f"give {number}" for number in range(300))), num_processes=2)
    assert [verdict.reward for verdict in verdicts] == [float(number) for number in range(300)]
    assert verdicts[7].components == {"obeyed": 7.0}
    assert {verdict.status for verdict in verdicts} == {Status.COMPLETED}


def test_a_reward_function_that_hangs_exits_crashes_or_raises_costs_only_its_own_sample() -> None:
    orders = ["give 1", "sleep 3600", "give 2", "exit", "give 3", "segfault", "print", "raise", "leave", "give 4"]
    verdicts = scored(ordered(*orders), sample_seconds=1.0)
    assert [verdict.reward for verdict in verdicts] == [1.0, None, 2.0, None, 3.0, None, 1.0, None, None, 4.0]
    unresolved = [verdict for verdict in verdicts if verdict.reward is None]
    assert {verdict.status for verdict in unresolved} == {Status.UNRESOLVED}
    assert [str(verdict.failure) for verdict in unresolved] == [
        "timeout: scoring this sample took longer than 1 s",
        "crash: scoring this sample ended its process with exit code 3",
        "crash: scoring this sample ended its process with exit code -11",
        "bad_reward: reward 'obeyed' raised RuntimeError: as ordered",
        "bad_reward: reward 'obeyed' raised SystemExit: as ordered",
    ]


def test_a_sample_whose_scoring_takes_too_long_gets_the_reward_of_the_settings_and_a_mark() -> None:
    orders = ["give 1", "sleep 3600", "exit", "raise", "segfault", "give 2"]
    bounds = PoolBounds(sample_seconds=1.0, load_seconds=10.0, batch_seconds=30.0, rewards_at_timeout={NAME: -0.5})
    others = ordered("sleep 3600", environment="Generous")

    async def score() -> list[Verdict]:
        async with ScoringPool(bounds, declared()) as pool:
            return await fully_scored(pool, [*ordered(*orders), *others])

    verdicts = asyncio.run(score())
    # A crash, an exception and another environment's are never rewarded.
    assert [verdict.reward for verdict in verdicts[:6]] == [1.0, -0.5, None, None, None, 2.0]
    late = verdicts[1]
    assert (late.status, late.components, late.failure) == (Status.COMPLETED, {REWARD_AT_TIMEOUT: 1.0}, None)
    assert verdicts[0].components == {"obeyed": 1.0}


def test_a_reward_for_samples_that_hang_does_not_put_their_environment_first() -> None:
    # More chunks of one hanging sample each than a batch has time for.
    hanging, others = ordered(*["sleep 3600"] * 16 * CHUNK_SAMPLES), ordered("", environment="Generous")
    bounds = PoolBounds(sample_seconds=1.0, load_seconds=10.0, batch_seconds=6.0, rewards_at_timeout={NAME: 0.0})

    async def score() -> list[Verdict | None]:
        async with ScoringPool(bounds, declared()) as pool:
            await fully_scored(pool, others)
            await pool.score(hanging[:1])
            return await pool.score([*hanging, *others])

    verdicts = asyncio.run(score())
    assert verdicts[-1] is not None
    assert verdicts[-2] is None, "its turn comes in the next round"


def test_an_environment_that_takes_too_long_to_load_leaves_its_samples_unresolved_whatever_its_reward_is() -> None:
    name = "hanging_to_load"
    bounds = PoolBounds(sample_seconds=1.0, load_seconds=1.0, batch_seconds=30.0, rewards_at_timeout={name: 0.0})

    async def score() -> list[Verdict]:
        async with ScoringPool(bounds, declared()) as pool:
            return await fully_scored(pool, ordered("", environment=name))

    (verdict,) = asyncio.run(score())
    assert verdict.status is Status.UNRESOLVED


def test_whatever_a_users_own_rubric_gives_can_be_written_as_a_result() -> None:
    orders = ["nothing", "infinity", "a component of text", "no pair", "a surrogate"]
    verdicts = scored(ordered(*orders, environment="Muddled"))
    assert [str(verdict.failure) for verdict in verdicts] == [
        "bad_reward: the rubric's reward is None (NoneType), not a finite number",
        "bad_reward: the rubric's reward is inf (float), not a finite number",
        "bad_reward: component 'color' is 'blue' (str), not a finite number",
        "bad_reward: the rubric raised TypeError: cannot unpack non-iterable float object",
        "None",
    ]
    assert (verdicts[-1].reward, verdicts[-1].components) == (0.5, {"lone ?": 0.5})
    codec = AvroCodec(SCORED)
    for verdict in verdicts:
        codec.encode(annotated(a_generated(), verdict, ScorerIdentity(scorer_id="one", version="0"), NOON))


def test_samples_of_one_environment_do_not_wait_behind_the_hanging_ones_of_another() -> None:
    hanging, others = ordered(*["sleep 3600"] * 40), ordered("", environment="Generous")

    async def score() -> list[Verdict | None]:
        async with a_pool(sample_seconds=1.0, batch_seconds=8.0) as pool:
            return await pool.score([*hanging, *others])

    began = time.monotonic()
    verdicts = asyncio.run(score())
    assert verdicts[-1] is not None
    assert verdicts[-1].status is Status.COMPLETED
    assert verdicts[0] is not None
    assert str(verdicts[0].failure) == "timeout: scoring this sample took longer than 1 s"
    assert verdicts[-2] is None, "its turn comes in the next round"
    assert time.monotonic() - began < 15


def test_samples_and_environments_that_hang_beyond_the_time_of_a_batch_take_no_good_sample_with_them() -> None:
    hanging = [*ordered("", environment="hanging_to_load"), *ordered(*["sleep 3600"] * 4)]
    good = ordered(*(f"give {number}" for number in range(30)))
    verdicts = scored([*hanging, *good], load_seconds=1.0, sample_seconds=0.5, batch_seconds=4.0)
    assert [verdict.reward for verdict in verdicts] == [None] * 5 + [float(number) for number in range(30)]
    # On a slow machine the first may already take too long to start a process.
    assert {str(verdict.failure).partition(":")[0] for verdict in verdicts[:5]} == {"timeout"}


def test_a_round_in_which_nothing_ends_blames_the_sample_that_was_at_it() -> None:
    verdicts = scored(ordered("sleep 3600", "give 2"), sample_seconds=60.0, batch_seconds=4.0)
    assert [verdict.reward for verdict in verdicts] == [None, 2.0]
    assert "took 4 s" in str(verdicts[0].failure)


def test_an_environment_that_forks_never_gets_a_sample_the_reward_of_another() -> None:
    orders = [order for number in range(10) for order in (f"give {number}", "fork")]
    verdicts = scored([*ordered(*orders), *ordered(*orders, environment="forking")])
    rewards = [reward for number in range(10) for reward in (float(number), 1.0)]
    assert [verdict.reward for verdict in verdicts] == rewards * 2


def test_an_answer_for_another_sample_ends_the_process_and_no_sample_gets_the_reward_of_another() -> None:
    verdicts = scored(ordered("give 1", "give 2", "answer for another", "give 3", "give 4"))
    assert [verdict.reward for verdict in verdicts] == [1.0, 2.0, None, 3.0, 4.0]
    assert str(verdicts[2].failure) == (
        "crash: scoring this sample brought an answer to 0 instead of 4, so its process was killed"
    )


def test_what_a_reward_function_writes_to_the_scorer_never_runs_there_and_costs_only_its_own_sample(
    tmp_path: Path,
) -> None:
    trace = tmp_path / "ran"
    verdicts = scored(ordered(f"write pickle {trace}", "give 1", "write long", "give 2"))
    assert not trace.exists()
    assert [verdict.reward for verdict in verdicts] == [None, 1.0, None, 2.0]
    assert all("brought what no scoring process writes" in str(verdicts[place].failure) for place in (0, 2))


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[" * 100_000,
        b'{"answered_id":2,"verdict":{"status":"completed","reward":NaN}}',
        b'{"answered_id":2,"verdict":{"status":"completed","reward":1e300}}',
        b'{"answered_id":2,"verdict":{"status":"completed"}}',
        b'{"answered_id":2,"verdict":{"status":"completed","reward":1.0,"components":{"a":"b"}}}',
        b'{"answered_id":2,"verdict":{"status":"UNKNOWN","failure":{"code":"crash","message":""}}}',
        b'{"answered_id":2,"verdict":null,"more":1}',
    ],
    ids=["no JSON", "deep", "NaN", "large", "no reward", "no number", "status", "more"],
)
def test_what_is_no_answer_is_not_read_as_one(body: bytes) -> None:
    assert read_answer(body) is None


def test_turns_of_the_types_that_the_rubric_scores_get_their_own_scores_and_one_that_fails_has_none() -> None:
    turns = (
        a_turn(text="0.25"),
        a_turn(text="none", turn_type="summary"),
        a_turn(text="a word"),
        a_turn(text="1"),
    )
    sample = ScoringSample.of(a_generated(turns=turns, prompt=a_prompt(environment="TurnByTurn")))
    [verdict] = scored([sample])
    assert (verdict.reward, verdict.components) == (1.0, {"number": 1.0})
    first, second, last = verdict.turn_scores
    assert (first, last) == (
        TurnScore(turn=0, reward=0.25, components={"number": 0.25}),
        TurnScore(turn=3, reward=1.0, components={"number": 1.0}),
    )
    assert (second.turn, second.reward) == (2, None)
    assert "could not convert string to float" in str(second.failure)
    written = annotated(a_generated(turns=turns), verdict, ScorerIdentity(scorer_id="s", version="1"), NOON)
    assert written.scoring.turn_scores == verdict.turn_scores


def test_components_beyond_the_bound_of_an_answer_leave_the_sample_unresolved_and_say_so() -> None:
    [verdict] = scored(ordered("many components", environment="Muddled"))
    assert str(verdict.failure) == (
        "bad_reward: the rubric's components take 2014110 bytes as JSON, the bound is 1048576: give fewer"
    )


def test_a_scoring_process_gets_no_variable_that_may_be_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROLLSTREAM_KAFKA__SECURITY__SASL.PASSWORD", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, "planted")
    monkeypatch.setenv("https_proxy", "http://me:planted@proxy:3128")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    # An option of an environment counts as a secret; this one stands in PATH too.
    SECRETS.add(["/directory-of-an-option"])
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/directory-of-an-option")
    names = ["ROLLSTREAM_KAFKA__SECURITY__SASL.PASSWORD", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "https_proxy"]
    verdicts = scored(ordered(*(f"variable {name}" for name in [*names, "PATH", "LC_ALL"])))
    assert [verdict.reward for verdict in verdicts] == [0.0, 0.0, 0.0, 0.0, 1.0, 1.0]


IS_DUMPABLE = """
import asyncio, ctypes
from tests.faults.test_reward_pool import a_pool

async def main():
    async with a_pool():
        print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))  # PR_GET_DUMPABLE

asyncio.run(main())
"""


def test_no_reward_function_may_trace_the_process_that_it_scores_for() -> None:
    ended = subprocess.run([sys.executable, "-c", IS_DUMPABLE], stdout=subprocess.PIPE, timeout=120, check=True)
    assert ended.stdout.strip() == b"0"


def test_an_environment_that_cannot_be_loaded_says_why() -> None:
    environments = ("os.abort", "raising_to_load", NAME)
    verdicts = scored([sample for name in environments for sample in ordered("", environment=name)])
    assert [verdict.status for verdict in verdicts] == [Status.FAILED, Status.UNRESOLVED, Status.COMPLETED]
    assert str(verdicts[0].failure).startswith("unknown_environment: 'os.abort' is not one of the environments of")
    assert str(verdicts[1].failure).startswith("broken_environment: ")
    assert "raised RuntimeError while loading: no data set" in str(verdicts[1].failure)


def test_an_environment_that_hangs_while_loading_leaves_its_samples_unresolved() -> None:
    name = "hanging_to_load"
    verdicts = scored([*ordered("", "", environment=name), *ordered("give 2")], load_seconds=1.0)
    assert [verdict.status for verdict in verdicts] == [Status.UNRESOLVED, Status.UNRESOLVED, Status.COMPLETED]
    assert str(verdicts[0].failure) == f"timeout: loading the environment {name!r} took longer than 1 s"


def test_an_environment_scores_with_the_options_that_the_run_gives_it() -> None:
    async def score(options: dict[str, dict[str, str]]) -> list[Verdict]:
        async with a_pool(options) as pool:
            return await fully_scored(pool, ordered("", environment="Generous"))

    assert [verdict.reward for verdict in asyncio.run(score({"Generous": {"gift": "7"}}))] == [7.0]
    assert [verdict.reward for verdict in asyncio.run(score({}))] == [1.0]
    refused = asyncio.run(score({"Generous": {"size": "3"}}))[0]
    assert refused.status is Status.FAILED
    assert "does not take its options size as they are: " in str(refused.failure)


def test_a_process_killed_from_outside_between_batches_accuses_no_sample() -> None:
    async def score() -> list[Verdict]:
        async with a_pool() as pool:
            await pool.score(ordered("give 1"))
            for child in psutil.Process().children(recursive=True):
                if is_scoring_process(child):
                    child.kill()
            return await fully_scored(pool, ordered("give 2"))

    assert [verdict.reward for verdict in asyncio.run(score())] == [2.0]


def is_scoring_process(process: psutil.Process) -> bool:
    try:
        return "rollstream.environments.pool.child" in process.cmdline()
    except psutil.Error:
        return False


async def kill_as_they_start(most: int, spared: int = 0) -> list[psutil.Process]:
    """Kill scoring processes as they appear, `most` of them, but not the first `spared` ones. Returns those."""
    seen: list[psutil.Process] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        while len(seen) < spared + most:
            for child in psutil.Process().children():
                if child not in seen and is_scoring_process(child):
                    seen.append(child)
                    if len(seen) > spared:
                        child.kill()
            await asyncio.sleep(0.005)
    return seen[:spared]


def test_a_process_that_is_killed_while_it_starts_is_started_again() -> None:
    async def score() -> list[Verdict]:
        killing = asyncio.create_task(kill_as_they_start(2))
        async with a_pool() as pool:
            await killing
            return await fully_scored(pool, ordered("give 1"))

    assert [verdict.reward for verdict in asyncio.run(score())] == [1.0]


def test_a_pool_that_cannot_start_all_its_processes_leaves_none_behind() -> None:
    async def start() -> list[psutil.Process]:
        killing = asyncio.create_task(kill_as_they_start(3, spared=1))
        with pytest.raises(BrokenWorldError, match="no scoring process can be started: crash: starting ended"):
            async with a_pool(num_processes=2):
                pytest.fail("it started")
        spared = await killing
        _, alive = psutil.wait_procs(spared, timeout=30)
        return alive

    assert asyncio.run(start()) == []


def test_scoring_processes_die_with_a_parent_that_is_killed_in_mid_sample(tmp_path: Path) -> None:
    scoring = tmp_path / "scoring"
    program = (
        f"from tests.faults import test_reward_pool as t; t.scored(t.ordered('hang noted in {scoring}'),"
        "sample_seconds=60.0, batch_seconds=60.0)"
    )
    parent = start_process([sys.executable, "-c", program])
    try:
        wait_until(scoring.exists, "a sample to be scored")
        children = psutil.Process(parent.pid).children()
    finally:
        parent.kill()
    gone, alive = psutil.wait_procs(children, timeout=30)
    assert gone
    assert not alive
