"""The loop while its processes are killed, one after the other: nothing is lost and nothing is trained on twice.

By default `tests/hostile/test_campaign.py` shows it, which kills all of these too, and more, while others are away.
"""

from pathlib import Path

import pytest

from rollstream.local.kafka import KafkaCluster
from rollstream.local.kafka_properties import plan_cluster
from rollstream.local.ports import free_ports
from rollstream.local.redis import RedisServer
from tests.harness.loops import STAGES, Loop, a_loop
from tests.harness.running import a_run

STEPS_BETWEEN = 2


@pytest.mark.slow
def test_every_stage_redis_and_the_broker_are_killed_once(tmp_path: Path, topic_prefix: str, model: Path) -> None:
    cluster = KafkaCluster(tmp_path / "kafka", plan_cluster(1))
    redis = RedisServer(tmp_path / "redis", free_ports(1)[0])
    try:
        cluster.start()
        redis.start()
        with (
            a_run(cluster.bootstrap_servers, topic_prefix, tmp_path, redis_url=redis.url) as run,
            a_loop(run, model) as loop,
        ):
            loop.start()
            loop.until_step(STEPS_BETWEEN)
            kill_every_stage(loop)
            redis.kill()
            loop.until_step(loop.outside.steps() + STEPS_BETWEEN)
            cluster.kill_node(1)
            assert not loop.stages["trainer"].process.has_ended
            redis.start()
            cluster.start()
            loop.until_step(loop.outside.steps() + STEPS_BETWEEN)
            loop.end()
    finally:
        redis.stop()
        cluster.stop()


def kill_every_stage(loop: Loop) -> None:
    for stage in STAGES:
        loop.kill(stage)
        loop.outside.account().check()
    restarts = [entry for entry in loop.outside.account().ledger if entry["kind"] == "restart"]
    assert len(restarts) == 2
    assert min(stage.restarts for stage in loop.stages.values()) == 1
