"""`ng_collect_rollouts` as a process: killed at crash points and at random, it loses and doubles nothing."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from rollstream.cli.entry import run_gym_command
from rollstream.process.crash_points import CRASH_AT
from tests.harness.collecting import noted_samples
from tests.harness.forking import start_forked
from tests.harness.gym_runs import GymRun, a_gym_row, indices, read
from tests.harness.gym_server import gym_server
from tests.harness.processes import StartedProcess
from tests.harness.waits import wait_until

NUM_ROWS = 200
PROGRESS = "_progress.sqlite"


def collect(words: list[str]) -> None:
    """Be `ng_collect_rollouts WORDS` in this process."""
    sys.argv = ["ng_collect_rollouts", *words]
    run_gym_command()


def started(run: GymRun, env: dict[str, str] | None = None) -> StartedProcess:
    words = [*run.words, "+num_repeats=2", "+num_samples_in_parallel=4"]
    return start_forked(partial(collect, words), log=run.output.with_name("log"), env=env)


def check(run: GymRun) -> None:
    """Each rollout is there once."""
    assert indices(run.rollouts) == [(task, rollout) for task in range(NUM_ROWS) for rollout in range(2)]
    assert indices(read(run.beside("_materialized_inputs.jsonl"))) == indices(run.rollouts)
    assert noted_samples(run.beside(PROGRESS)) == []


@pytest.mark.parametrize(
    "point", ["progress_committed", "progress_committed:3", "output_written", "collection_finished"]
)
def test_g13_a_killed_collection_goes_on_and_asks_no_finished_rollout_again(tmp_path: Path, point: str) -> None:
    with gym_server() as server:
        run = GymRun(tmp_path, server, [a_gym_row(n) for n in range(NUM_ROWS)])
        assert started(run, {CRASH_AT: point}).wait(60) == -signal.SIGKILL
        known, num_asked = len(noted_samples(run.beside(PROGRESS))), len(server.asked)
        for _ in range(2):
            again = started(run)
            assert again.wait(60) == 0, again.said()
        # With the output written, all was asked; a batch that was not committed yet is asked again.
        is_written = point in ("output_written", "collection_finished")
        assert len(server.asked) == num_asked + (0 if is_written else 2 * NUM_ROWS - known)
    check(run)


def test_g13_a_kill_at_a_random_moment_loses_and_doubles_nothing(tmp_path: Path) -> None:
    chance = random.Random(7)
    with gym_server(seconds=0.005) as server:
        run = GymRun(tmp_path, server, [a_gym_row(n) for n in range(NUM_ROWS)])
        for _ in range(3):
            process, before = started(run), len(server.asked)
            goal = before + chance.randrange(1, 120)
            wait_until(lambda: process.has_ended or len(server.asked) >= goal, "rollouts are asked")  # noqa: B023
            process.kill()
        last = started(run)
        assert last.wait(60) == 0, last.said()
    check(run)
    assert max(server.most_in_flight, 4) == 4


def test_ctrl_c_ends_a_collection_which_then_goes_on(tmp_path: Path) -> None:
    with gym_server(seconds=0.02) as server:
        run = GymRun(tmp_path, server, [a_gym_row(n) for n in range(NUM_ROWS)])
        process = started(run)
        wait_until(lambda: len(server.asked) > 20, "some rollouts are asked")
        process.signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert "the same command goes on" in process.said()
        again = started(run)
        assert again.wait(60) == 0, again.said()
    check(run)


@pytest.mark.parametrize("script", ["ng_collect_rollouts", "ng_reward_profile", "ng_aggregate_rollouts"])
def test_each_script_is_there_and_names_what_it_lacks(tmp_path: Path, script: str) -> None:
    place = Path(sys.executable).with_name(script)
    ended = subprocess.run([place], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 78
    assert "it is required: write +KEY=VALUE" in ended.stderr


def test_the_documents_command_runs_as_it_is_typed_in_it(tmp_path: Path) -> None:
    """From the shell, with `$(date)` in a path, `limit=null`, and paths from the working directory."""
    rows = [a_gym_row(n) for n in range(3)]
    with gym_server() as server:
        GymRun(tmp_path, server, rows)
        command = f"""ng_collect_rollouts +agent_name=counter_simple_agent \\
            +input_jsonl_fpath=tasks.jsonl \\
            +output_jsonl_fpath=data/rollouts_v2.0_$(date +%Y%m%d).jsonl \\
            +limit=null \\
            +num_repeats=1 \\
            +num_samples_in_parallel=10 \\
            +responses_create_params.max_output_tokens=8192 +head_server.port={server.port}"""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        ended = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    [output] = (tmp_path / "data").glob("rollouts_v2.0_????????.jsonl")
    assert len(read(output)) == 3
    assert {row["responses_create_params"]["max_output_tokens"] for row in server.rows} == {8192}
    figures = json.loads(ended.stdout[ended.stdout.index("{\n") :])
    assert (figures["avg_reward"], figures["success_rate"], figures["avg_tool_calls"]) == (1.0, 1.0, 1.0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_rows_are_each_there_once_after_ten_kills_and_memory_stays_flat(tmp_path: Path) -> None:
    """It prints rows a second of the last process, and the most memory that 10,000 and 100,000 rows took."""
    num_rows, chance = 100_000, random.Random(11)
    goals = sorted(chance.randrange(1000, num_rows - 10_000) for _ in range(10))
    (tmp_path / "few").mkdir()
    with gym_server() as server:
        few = GymRun(tmp_path / "few", server, (a_gym_row(n) for n in range(num_rows // 10)))
        most_of_few = most_bytes(start_forked(partial(collect, few.words), log=tmp_path / "log"))
    with gym_server() as server:
        run = GymRun(tmp_path, server, (a_gym_row(n) for n in range(num_rows)))
        for goal in goals:
            process = start_forked(partial(collect, run.words), log=tmp_path / "log")
            wait_until(lambda: process.has_ended or len(server.asked) >= goal, "rollouts", seconds=600)  # noqa: B023
            process.kill()
        process = start_forked(partial(collect, run.words), log=tmp_path / "log")
        since, most = time.monotonic(), most_bytes(process)
    assert indices(run.rollouts) == [(task, 0) for task in range(num_rows)]
    assert server.most_in_flight == 64
    rate = [line for line in process.said().splitlines() if " in flight" in line]
    print(rate, most_of_few // 2**20, most // 2**20, round(time.monotonic() - since, 1), len(server.asked))  # noqa: T201
    assert most - most_of_few < 64 * 2**20


def most_bytes(process: StartedProcess) -> int:
    """The most memory that it has before its end, which is a good one."""
    most = 0
    while not process.has_ended:
        with suppress(psutil.Error):
            most = max(most, psutil.Process(process.pid).memory_info().rss)
        time.sleep(0.1)
    assert process.exit_code() == 0, process.said()
    return most
