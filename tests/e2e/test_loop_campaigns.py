"""Long tests of the whole loop, minutes each: brokers or Redis are lost, stages come and go, no group has spread."""

import signal
import time
from pathlib import Path

import pytest

from rollstream.local.kafka import KafkaCluster
from rollstream.local.kafka_properties import plan_cluster
from rollstream.local.ports import free_ports
from rollstream.local.redis import RedisServer
from tests.harness.loops import SHARE, Loop, a_loop
from tests.harness.running import Run, a_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def keep_going(loop: Loop, seconds: float, *, min_steps: int) -> None:
    """Let the loop run for a time, in which it must make progress."""
    before = loop.outside.steps()
    deadline = time.monotonic() + seconds
    loop.until(lambda: time.monotonic() > deadline, "the time to pass", seconds + 30)
    assert loop.outside.steps() >= before + min_steps


def test_one_broker_of_three_dies_under_load_and_comes_back(tmp_path: Path, topic_prefix: str, model: Path) -> None:
    cluster = KafkaCluster(tmp_path / "kafka", plan_cluster(3))
    try:
        cluster.start()
        with a_run(cluster.bootstrap_servers, topic_prefix, tmp_path) as run, a_loop(run, model) as loop:
            loop.start()
            loop.until_step(3)
            for node in (1, 2, 3):
                cluster.kill_node(node)
                loop.until_step(loop.outside.steps() + 10)
                cluster.start()
                loop.until_step(loop.outside.steps() + 10)
            loop.end()
    finally:
        cluster.stop()


def test_redis_is_gone_for_a_minute(run: Run, model: Path, tmp_path: Path) -> None:
    redis = RedisServer(tmp_path / "redis", free_ports(1)[0])
    redis.start()
    run.redis_url = redis.url
    try:
        with a_loop(run, model) as loop:
            loop.start()
            loop.until_step(3)
            redis.kill()
            keep_going(loop, 60, min_steps=20)
            redis.start()
            keep_going(loop, 10, min_steps=3)
            assert {stage.restarts for stage in loop.stages.values()} == {0}
            loop.end()
    finally:
        redis.stop()


def test_no_group_has_spread_for_three_minutes(run: Run, model: Path) -> None:
    with a_loop(run, model, correct_ratio=0.0) as loop:
        loop.start()
        loop.until_account(lambda account: account.dropped["no_spread"], "a first drop")
        before = 0
        for _ in range(6):
            keep_going(loop, 30, min_steps=0)
            now = loop.outside.account().dropped["no_spread"]
            assert now > before + SHARE
            before = now
        loop.end()


def test_a_second_generator_joins_late_and_the_first_leaves(run: Run, model: Path) -> None:
    with a_loop(run, model) as loop:
        loop.start("trainer", "scorer", "producer")
        loop.start("generator", name="first")
        loop.until_step(10)
        loop.start("generator", name="second")
        loop.until(lambda: "second" in generators(loop), "the joiner's first sample")
        loop.until_step(loop.outside.steps() + 10)
        loop.stop("first")
        loop.until_step(loop.outside.steps() + 10)
        versions = {
            record["weight_version"]
            for record in loop.outside.records("weights-applied")
            if record["generator_id"] == "second" and record["outcome"] == "applied"
        }
        assert min(versions) >= 10, "the joiner starts on the newest version"
        loop.end()


@pytest.mark.parametrize("stage", ["generator", "scorer"])
def test_a_stage_is_stopped_past_its_session_and_comes_back(run: Run, model: Path, stage: str) -> None:
    with a_loop(run, model) as loop:
        loop.start()
        for round_number in range(3):
            loop.until_step(loop.outside.steps() + 5)
            stopped = loop.stages[stage].process
            stopped.signal(signal.SIGSTOP)
            heir = f"heir-{round_number}"
            loop.start(stage, name=heir)
            loop.until_step(loop.outside.steps() + 10)
            stopped.signal(signal.SIGCONT)
            loop.until_step(loop.outside.steps() + 10)
            loop.stop(heir)
        loop.end()


def generators(loop: Loop) -> set[str]:
    return {rollout["generator"]["generator_id"] for rollout in loop.outside.records("rollouts")}
