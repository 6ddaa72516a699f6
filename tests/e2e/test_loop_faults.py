"""The loop while its processes are killed: nothing is lost and nothing is trained on twice."""

from pathlib import Path

from rollstream.local.kafka import KafkaCluster
from rollstream.local.kafka_properties import plan_cluster
from rollstream.local.ports import free_ports
from rollstream.local.redis import RedisServer
from rollstream.local.supervisor import StageState
from tests.harness.loops import a_loop
from tests.harness.running import Run, a_run

KILL_STEPS = 70
OUTAGE_STEPS = 60


def test_every_stage_is_killed_once(run: Run, model: Path) -> None:
    with a_loop(run, model, num_steps=KILL_STEPS) as loop:
        loop.start()
        loop.until_step(3)
        for stage in ("generator", "trainer", "scorer", "producer"):
            loop.kill(stage)
            loop.outside.account().check()
        account = loop.finish(KILL_STEPS)
        restarts = [entry for entry in account.ledger if entry["kind"] == "restart"]
        assert len(restarts) == 2
        assert min(status.restarts for status in loop.supervisor.statuses()) == 1


def test_the_broker_and_redis_are_killed_and_come_back(tmp_path: Path, topic_prefix: str, model: Path) -> None:
    cluster = KafkaCluster(tmp_path / "kafka", plan_cluster(1))
    redis = RedisServer(tmp_path / "redis", free_ports(1)[0])
    try:
        cluster.start()
        redis.start()
        with (
            a_run(cluster.bootstrap_servers, topic_prefix, tmp_path, redis_url=redis.url) as run,
            a_loop(run, model, num_steps=OUTAGE_STEPS) as loop,
        ):
            loop.start()
            loop.until_step(3)
            redis.kill()
            loop.until_step(loop.outside.steps() + 4)
            cluster.kill_node(1)
            assert loop.supervisor.status("trainer").state is StageState.RUNNING
            redis.start()
            cluster.start()
            loop.until_step(loop.outside.steps() + 2)
            loop.finish(OUTAGE_STEPS)
    finally:
        redis.stop()
        cluster.stop()
