"""An evaluation that follows a run: generator and scorer as processes, and a hand that commits weight versions."""

import json
import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from rollstream.environments.sort_digits import SortDigits
from rollstream.local.ports import free_ports
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.topics import EVAL_PROMPTS, LEDGER
from tests.harness.builders import an_entry
from tests.harness.processes import StartedProcess
from tests.harness.running import Run, a_run
from tests.harness.scraping import scraped
from tests.harness.waits import wait_until

pytestmark = pytest.mark.usefixtures("forks")

NUM_PROMPTS = 12
ENGINE_LENGTH = 9
TOO_LONG = sum(
    len(task.messages[0].content) >= ENGINE_LENGTH for task in islice(SortDigits().tasks("evaluate", 0), NUM_PROMPTS)
)
"""Held-out prompts that leave no room for an answer."""


@pytest.fixture
def run(kafka: str, redis_url: str, topic_prefix: str, tmp_path: Path) -> Iterator[Run]:
    with a_run(kafka, topic_prefix, tmp_path, redis_url=redis_url) as run:
        run.tables["producer"] = {"environment": "sort_digits"}
        scripted = {"token_seconds": 0.0, "correct_ratio": 0.3, "correct_ratio_gain": 0.05}
        engine = {"kind": "scripted", "model_path": run.directory, "max_model_len": ENGINE_LENGTH}
        run.tables["generator.engine"] = {**engine, "scripted": scripted}
        yield run


def follower(run: Run, *words: str) -> StartedProcess:
    options = ["--follow", "--every", "2", "--num-prompts", str(NUM_PROMPTS), "--samples", "4"]
    return run.start("evaluate", *options, "--output", str(results_of(run)), *words)


def results_of(run: Run) -> Path:
    return run.directory / "results.jsonl"


def results(run: Run) -> list[dict[str, Any]]:
    path = results_of(run)
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def commit(run: Run, version: int) -> None:
    """What a trainer writes with a version."""
    run.publish_weights(version)
    entry = an_entry(step=version, weight_version=version, parent_version=max(0, version - 1))
    run.publish("ledger", [(run.name, AvroCodec(LEDGER).encode(entry))])


def wait_for(run: Run, *versions: int) -> None:
    """Until exactly these versions have a line."""
    wait_until(
        lambda: [one["weight_version"] for one in results(run)] == [*versions], lambda: f"{versions}; {run.said()}"
    )


def asked(run: Run, version: int) -> bool:
    return sum(prompt.weight_version == version for prompt in run.records(EVAL_PROMPTS)) == NUM_PROMPTS


def test_each_nth_version_gets_one_line_across_kill_9_and_what_failed_is_counted(run: Run) -> None:
    commit(run, 0)
    generator = run.start("generator")
    run.start("scorer")
    [port] = free_ports(1)
    following = follower(run, "--health-port", str(port))
    wait_for(run, 0)
    # What a stranger publishes is not evaluated: its line would be behind all versions to come.
    run.publish_weights(1_000_000, uri="file:///nowhere")
    commit(run, 1)
    commit(run, 2)
    wait_for(run, 0, 2)
    for one in results(run):
        completed = NUM_PROMPTS - TOO_LONG
        assert (one["num_completed"], one["num_failed"], one["num_unresolved"]) == (completed, TOO_LONG, 0)
        assert [(failure["code"], failure["count"]) for failure in one["failures"]] == [
            ("prompt_too_long", 4 * TOO_LONG)
        ]
        # Rewards are 0 or 1, and those without one are in no figure.
        assert one["pass_at_k"]["1"] == pytest.approx(one["mean_reward"])
        assert [*one["pass_at_k"].values()] == sorted(one["pass_at_k"].values())
        assert one["reward_interval"][0] < one["mean_reward"] < one["reward_interval"][1]
        assert (one["num_samples"], one["temperature"], one["num_skipped"]) == (4, 1.0, 0)
    assert scraped(port, "rollstream_evaluate_weight_version") == 2
    assert scraped(port, "rollstream_evaluate_pass_at_k_ratio", k="4") == results(run)[-1]["pass_at_k"]["4"]
    assert scraped(port, "rollstream_evaluate_prompts", status="failed") == TOO_LONG
    wait_until(lambda: f"{TOO_LONG} failed" in run.command("status", "--once"), "status to show it")

    generator.terminate()
    commit(run, 4)
    wait_until(lambda: asked(run, 4), "version 4 to be asked")
    following.kill()
    with results_of(run).open("a") as file:
        file.write('{"run": "half of a li')
    commit(run, 8)
    run.start("generator")
    following = follower(run)
    wait_for(run, 0, 2, 8)
    assert results(run)[-1]["num_skipped"] == 2
    following.signal(signal.SIGINT)
    assert following.wait() == 0

    # What goes on after a line does not evaluate its version again.
    following = follower(run)
    commit(run, 10)
    wait_for(run, 0, 2, 8, 10)
    assert following.terminate() == 0
    assert follower(run, "--num-prompts", "5").wait() == 78
    assert "num_prompts = 12, now it is 5" in run.said()
