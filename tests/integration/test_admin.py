"""What the admin client says when a cluster is gone or changes its leaders."""

import logging
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient

from rollstream.bus import admin
from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.message import OutRecord
from rollstream.bus.presence import is_trainer_present
from rollstream.bus.publisher import Publisher
from rollstream.bus.reader import TopicReader
from rollstream.local.kafka import KafkaCluster
from rollstream.local.kafka_properties import plan_cluster
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.errors import BrokerError
from rollstream.schemas.topics import LEDGER, TOPICS
from tests.harness.topics import keep_for
from tests.harness.waits import wait_until

NOWHERE = KafkaSettings(bootstrap_servers="127.0.0.1:1")


QUESTIONS: dict[str, Callable[[], Any]] = {
    "create": lambda: KafkaAdmin(NOWHERE).create_topics("demo"),
    "names": lambda: KafkaAdmin(NOWHERE).describe_topics("demo"),
    "bounds": lambda: KafkaAdmin(NOWHERE).bounds("demo.scored"),
    "ends": lambda: KafkaAdmin(NOWHERE).end_offsets("demo.scored", 1),
    "committed": lambda: KafkaAdmin(NOWHERE).committed_offsets("demo.trainer", "demo.scored"),
    "presence": lambda: is_trainer_present(NOWHERE, "demo"),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_without_a_broker_every_question_ends_in_one_sentence(
    question: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rollstream.bus.admin._TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr("rollstream.bus.presence._ANSWER_SECONDS", 0.5)
    with pytest.raises(BrokerError, match="is Kafka up"):
        QUESTIONS[question]()
    assert capfd.readouterr().err == ""


def test_topics_can_be_read_by_anybody_as_soon_as_they_are_created(kafka: str, topic_prefix: str) -> None:
    settings = KafkaSettings(bootstrap_servers=kafka)
    for number in range(4):
        name = f"{topic_prefix}-{number}"
        KafkaAdmin(settings).create_topics(name, partitions=8)
        with TopicReader(settings, [topic.of(name) for topic in TOPICS]) as reader:
            assert len(reader.partitions) == sum(1 if topic.single_partition else 8 for topic in TOPICS)
        KafkaAdmin(settings).delete_topics(name)


def test_how_long_topics_keep_a_record_is_their_retention_and_the_span_of_a_segment(
    kafka: str, topic_prefix: str
) -> None:
    settings = KafkaSettings(bootstrap_servers=kafka)
    admin = KafkaAdmin(settings)
    admin.create_topics(topic_prefix, partitions=1)
    prompts, scored, ledger = (f"{topic_prefix}.{name}" for name in ("prompts", "scored", "ledger"))
    assert admin.kept_seconds([prompts, scored]) == 14 * 24 * 3600.0
    assert admin.kept_seconds([prompts, ledger]) is None
    keep_for(settings, topic_prefix, seconds=180, segment_seconds=30)
    # A broker applies what the controller has confirmed a little later.
    wait_until(lambda: admin.kept_seconds([prompts, scored]) == 210.0, "the new retention")
    assert admin.kept_seconds([prompts, ledger]) is None


def test_lag_counts_what_a_group_has_not_committed_and_nothing_that_expired(kafka: str, topic_prefix: str) -> None:
    settings = KafkaSettings(bootstrap_servers=kafka)
    admin, name, group = KafkaAdmin(settings), f"{topic_prefix}.prompts", f"{topic_prefix}.generators"
    admin.create_topics(topic_prefix, partitions=2)
    with Publisher(settings, client_id="outside") as publisher:
        records = [OutRecord(topic=name, key=str(number).encode(), value=b"x") for number in range(40)]
        places = Counter(publisher.publish_soon(record).result().partition for record in records)
    assert admin.lag(group, name) is None
    commit(settings, group, TopicPartition(name, 0, 3))
    assert admin.lag(group, name) == (places[0] - 3) + places[1]
    expire(settings, TopicPartition(name, 0, 5), TopicPartition(name, 1, 1))
    assert admin.lag(group, name) == (places[0] - 5) + (places[1] - 1)
    commit(settings, group, TopicPartition(name, 0, places[0]), TopicPartition(name, 1, places[1]))
    assert admin.lag(group, name) == 0


def commit(settings: KafkaSettings, group: str, *places: TopicPartition) -> None:
    consumer = Consumer({**settings.client_config(), "group.id": group})
    consumer.commit(offsets=list(places), asynchronous=False)
    consumer.close()


def expire(settings: KafkaSettings, *places: TopicPartition) -> None:
    """Delete the records before these places, as retention would."""
    admin = AdminClient(settings.client_config())
    for future in admin.delete_records(list(places)).values():
        future.result(30)


@pytest.mark.slow
def test_a_leader_that_was_away_for_a_while_is_asked_again(tmp_path: Path, topic_prefix: str) -> None:
    cluster = KafkaCluster(tmp_path / "kafka", plan_cluster(3))
    try:
        cluster.start()
        admin = KafkaAdmin(KafkaSettings(bootstrap_servers=cluster.bootstrap_servers))
        admin.create_topics(topic_prefix, partitions=3)
        wait_until(lambda: len(admin.describe_topics(topic_prefix)) == len(TOPICS), "every broker to know the topics")
        name = f"{topic_prefix}.scored"
        ends = admin.end_offsets(name, 3)
        lead_elsewhere_and_come_back(cluster, name)
        assert admin.end_offsets(name, 3) == ends
    finally:
        cluster.stop()


def lead_elsewhere_and_come_back(cluster: KafkaCluster, topic: str) -> None:
    """Pause broker 1 until it leads no partition, and make it the leader of the same ones again."""
    others = ",".join(node.address for node in cluster.plan.nodes if node.node_id != 1)
    client = AdminClient({"bootstrap.servers": others, "log_level": 0})

    def partitions() -> list[Any]:
        return list(client.list_topics(topic, timeout=30).topics[topic].partitions.values())

    paused = cluster.processes[1].pid
    os.kill(paused, signal.SIGSTOP)
    try:
        wait_until(lambda: {part.leader for part in partitions()} <= {2, 3}, "new leaders")
    finally:
        os.kill(paused, signal.SIGCONT)
    wait_until(lambda: min(len(part.isrs) for part in partitions()) == 3, "broker 1 to catch up")
    client.elect_leaders(ElectionType.PREFERRED).result(30)
    wait_until(lambda: 1 in {part.leader for part in partitions()}, "broker 1 to lead")


def test_a_new_client_loses_no_question_for_leaders(
    kafka: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """librdkafka drops those that are under way when it leaves the bootstrap server, and asks again after 1 or 3 s."""
    settings, topic = KafkaSettings(bootstrap_servers=kafka), LEDGER.of(topic_prefix)
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=1)
    loud = {**settings.client_config(), "debug": "metadata", "logger": logging.getLogger("client")}
    monkeypatch.setattr(admin, "quiet_config", lambda _: loud)
    with caplog.at_level(logging.DEBUG, "client"):
        for _ in range(20):
            asking = KafkaAdmin(settings)
            assert asking.end_offsets(topic, 1) == {0: 0}
            asking._client.poll(0)  # the client's log lines are handed over here
    asked = [line for line in caplog.messages if "query partition leaders" in line]
    assert asked == []
