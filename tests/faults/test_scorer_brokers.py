"""The scorer on three brokers of its own, of which it loses one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from rollstream.local.kafka import KafkaCluster
from rollstream.local.kafka_properties import plan_cluster
from rollstream.local.ports import free_ports
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.topics import ROLLOUTS, SCORED
from tests.harness.builders import a_generated, a_prompt
from tests.harness.processes import StartedProcess
from tests.harness.running import Run, a_run, readiness
from tests.harness.waits import wait_until


def leader_of(run: Run, partition: int) -> int:
    name = ROLLOUTS.of(run.name)
    client = AdminClient(run.kafka.client_config() | {"log_level": 0})
    return int(client.describe_topics(TopicCollection([name]))[name].result(30).partitions[partition].leader.id)


@contextmanager
def a_reading_scorer(
    cluster: KafkaCluster, topic_prefix: str, directory: Path
) -> Iterator[tuple[Run, StartedProcess, int]]:
    """A run on the brokers of `cluster`, with a scorer that reads all its partitions, and the scorer's health port."""
    try:
        cluster.start()
        with a_run(cluster.bootstrap_servers, topic_prefix, directory) as run:
            [port] = free_ports(1)
            scorer = run.start("scorer", ROLLSTREAM_HEALTH_PORT=str(port))
            wait_until(lambda: "6 partitions" in str(readiness(port).get("fetching")), "all to be read", 60)
            yield run, scorer, port
    finally:
        cluster.stop()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_scorer_whose_broker_dies_before_anything_was_committed_goes_on_within_seconds(
    tmp_path: Path, topic_prefix: str
) -> None:
    cluster = KafkaCluster(tmp_path / "kafka", plan_cluster(3))
    with a_reading_scorer(cluster, topic_prefix, tmp_path) as (run, scorer, port):
        for _ in range(3):
            cluster.processes[leader_of(run, 0)].kill()
            cluster.start()
        codec = AvroCodec(ROLLOUTS)
        rollouts = [a_generated(prompt=a_prompt(row)) for row in range(20)]
        run.publish("rollouts", [(rollout.group_id, codec.encode(rollout)) for rollout in rollouts])
        wait_until(lambda: len(run.records(SCORED)) == 20, "all to be scored", 30)
        wait_until(lambda: all(check["is_ok"] for check in readiness(port).values()), "the scorer to be ready", 30)
        assert scorer.said().count("aiokafka") < 100
        assert scorer.terminate() == 0


def test_a_scorer_that_is_told_to_end_while_its_broker_is_away_ends_in_order(tmp_path: Path, topic_prefix: str) -> None:
    cluster = KafkaCluster(tmp_path / "kafka", plan_cluster(1))
    with a_reading_scorer(cluster, topic_prefix, tmp_path) as (run, scorer, _):
        cluster.processes[leader_of(run, 0)].kill()
        wait_until(lambda: "Failed fetch messages" in scorer.said(), "a fetch to fail", 30)
        assert scorer.terminate() == 0
        assert "Traceback" not in scorer.said()
