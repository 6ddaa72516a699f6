"""Redis holds only what may be lost: a stage goes on without it, says so, and uses it again when it is back."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollstream.local.ports import free_ports
from rollstream.local.redis import RedisServer
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.topics import PROMPTS, ROLLOUTS
from tests.harness.builders import a_generated, a_prompt
from tests.harness.running import Run, a_run, readiness
from tests.harness.waits import wait_until


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis", free_ports(1)[0])
    server.start()
    yield server
    server.stop()


def submit_prompt(run: Run, row: int) -> None:
    run.submit(a_prompt(row, run=run.name))


def submit_rollout(run: Run, row: int) -> None:
    rollout = a_generated(prompt=a_prompt(row, run=run.name))
    run.publish("rollouts", [(rollout.group_id, AvroCodec(ROLLOUTS).encode(rollout))])


@pytest.mark.parametrize(
    ("stage", "topic", "submit"),
    [
        ("generator", PROMPTS.name, submit_prompt),
        pytest.param("scorer", ROLLOUTS.name, submit_rollout, marks=pytest.mark.slow),
    ],
)
def test_a_stage_goes_on_without_redis_says_so_and_takes_it_up_again(
    stage: str,
    topic: str,
    submit: Callable[[Run, int], None],
    kafka: str,
    topic_prefix: str,
    tmp_path: Path,
    redis: RedisServer,
) -> None:
    with a_run(kafka, topic_prefix, tmp_path, redis_url=redis.url) as run:
        (port,) = free_ports(1)
        run.tables[stage] = {"health_port": port}
        run.tables["generator.engine"] = {"kind": "scripted", "model_path": tmp_path}
        run.publish_weights(0)
        process = run.start(stage)
        rows = iter(range(1_000_000))

        def works_and_says(word: str) -> bool:
            row = next(rows)
            submit(run, row)
            wait_until(lambda: run.committed(f"{stage}s", topic) == row + 1, f"record {row} to be committed")
            checks = readiness(port)
            assert all(check["is_ok"] for check in checks.values()), checks
            return word in str(checks["redis"]["detail"])

        wait_until(lambda: works_and_says("answers"), "Redis to be seen")
        redis.kill()
        wait_until(lambda: works_and_says("gone"), "its loss to be seen")
        redis.start()
        wait_until(lambda: works_and_says("answers"), "its return to be seen")
        assert process.terminate() == 0
