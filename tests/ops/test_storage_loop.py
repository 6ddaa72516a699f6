"""Trainer and generator as processes, with weights and checkpoints in a real S3 server."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rollstream.schemas.topics import WEIGHTS, WEIGHTS_APPLIED
from rollstream.schemas.weights import ApplyOutcome
from tests.harness.running import Run
from tests.harness.s3_fixtures import BUCKET, KEY, SECRET, S3Server, an_s3_server
from tests.harness.trainer_runs import (
    GROUPS_PER_STEP,
    Start,
    a_trainer_run,
    check_nothing_lost_or_twice,
    configure,
    scored,
    submitted,
    survivors,
    trainers,
    write_model,
)
from tests.harness.waits import wait_until

# As a secret of a cluster hands them over; what is no secret stands in the file.
KEYS = {"AWS_ACCESS_KEY_ID": KEY, "ROLLSTREAM_STORAGE__OPTIONS__SECRET_ACCESS_KEY": SECRET}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    (tmp_path / "s3").mkdir()
    with an_s3_server(tmp_path / "s3") as server:
        yield server


@pytest.fixture
def run(kafka: str, topic_prefix: str, tmp_path: Path, server: S3Server) -> Iterator[Run]:
    model = write_model(tmp_path / "model")
    with a_trainer_run(kafka, topic_prefix, tmp_path, model) as fresh:
        fresh.shared["weight_store"] = f"s3://{BUCKET}/{topic_prefix}/weights"
        fresh.tables["storage"] = {"allow_http": True, "cache": tmp_path / "cache", "outage_seconds": 30}
        fresh.tables["storage.options"] = {"endpoint": server.endpoint, "region": "us-east-1"}
        fresh.tables["generator.engine"] = {"kind": "scripted", "model_path": model}
        configure(fresh, checkpoints=f"s3://{BUCKET}/{topic_prefix}/checkpoints", checkpoint_every=1)
        yield fresh


@pytest.fixture
def start(run: Run) -> Iterator[Start]:
    with trainers(run) as start_one:
        yield partial(start_one, **KEYS)


def applied(run: Run) -> set[int]:
    """Versions that a generator runs on, or ran on."""
    return {record.weight_version for record in run.records(WEIGHTS_APPLIED) if record.outcome is ApplyOutcome.APPLIED}


def test_a_generator_follows_a_trainer_through_s3_across_an_outage_and_kills(
    run: Run, start: Start, server: S3Server
) -> None:
    prompts = submitted(run, 8 * GROUPS_PER_STEP)
    generator = run.start("generator", **KEYS)
    trainer = start()
    scored(run, prompts[: 2 * GROUPS_PER_STEP])
    wait_until(lambda: 2 in applied(run), "version 2 to generate")
    server.kill()
    scored(run, prompts[2 * GROUPS_PER_STEP : 4 * GROUPS_PER_STEP])
    assert not generator.has_ended
    server.start()
    wait_until(lambda: survivors(run).step == 4, "the steps that the outage held up")
    trainer.kill()
    start(ROLLSTREAM_CRASH_AT="weights_written").wait()
    again = start()
    scored(run, prompts[4 * GROUPS_PER_STEP :])
    wait_until(lambda: survivors(run).step == 8, "the steps after the restart")
    newest = run.records(WEIGHTS)[-1].weight_version
    wait_until(lambda: newest in applied(run), "the generator to run on the newest version")
    assert again.terminate() == 0
    assert generator.terminate() == 0
    check_nothing_lost_or_twice(run, prompts)
    for process in (trainer, again, generator):
        assert SECRET not in process.said()
