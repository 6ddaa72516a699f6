"""A topic that gets more partitions while a collection goes on."""

import json
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from rollstream.offline.continuous.production import PROGRESS
from rollstream.offline.continuous.taken import TakenRows
from rollstream.offline.continuous.topic_source import MessagesSource, topic_source
from rollstream.process.settings.base import KafkaSettings
from rollstream.rows.row import ReadRow
from tests.harness.waits import wait_until


def put(kafka: str, topic: str, partition: int, prompt: str) -> None:
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 0})
    producer.produce(topic, json.dumps({"prompt": prompt}), partition=partition)
    assert producer.flush(20) == 0


def looked(source: MessagesSource, taken: TakenRows) -> list[str]:
    found = [one.row.fields["prompt"] for one in source.look(taken) if isinstance(one.row, ReadRow)]
    taken.note_marks(source.marks())
    return found


def test_partitions_that_are_added_are_read_at_the_next_look(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    topic, admin = f"{topic_prefix}.tasks", AdminClient({"bootstrap.servers": kafka})
    for future in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        future.result(20)
    settings = KafkaSettings(bootstrap_servers=kafka)
    put(kafka, topic, 0, "a")
    with (
        TakenRows(tmp_path / PROGRESS) as taken,
        topic_source(settings, topic_prefix, topic, taken, accept_loss=False) as source,
    ):
        assert looked(source, taken) == ["a"]
        for future in admin.create_partitions([NewPartitions(topic, 3)]).values():
            future.result(20)
        wait_until(lambda: len(admin.list_topics(topic).topics[topic].partitions) == 3, "the partitions")
        put(kafka, topic, 2, "b")
        put(kafka, topic, 0, "c")
        found: list[str] = []
        wait_until(lambda: found.extend(looked(source, taken)) or len(found) >= 2, "both rows")
        assert sorted(found) == ["b", "c"]
        assert looked(source, taken) == []
    with (
        TakenRows(tmp_path / PROGRESS) as taken,
        topic_source(settings, topic_prefix, topic, taken, accept_loss=False) as source,
    ):
        assert looked(source, taken) == []
    for future in admin.delete_topics([topic]).values():
        future.result(20)
