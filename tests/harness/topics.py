"""Changes of topics that an operator makes while stages read them."""

from confluent_kafka import KafkaException
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.clients import admin_client
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.topics import TOPICS
from tests.harness.waits import wait_until


def make_anew(kafka: KafkaSettings, topic: str, partitions: int = 1) -> None:
    """Delete a topic and make it again, with another id and nothing in it."""
    admin = KafkaAdmin(kafka)
    before = admin.shape(topic).topic_id
    with admin_client(kafka) as client:
        client.delete_topics([topic])[topic].result(20)

        def is_made() -> bool:
            try:
                client.create_topics([NewTopic(topic, partitions, 1)])[topic].result(20)
            except KafkaException:  # the broker still deletes the old one
                return False
            return True

        wait_until(is_made, f"{topic} to be made anew")

    def is_described() -> bool:
        try:
            return admin.shape(topic).topic_id != before
        except ConfigurationError:
            return False

    # The controller made it; who asks the broker at once may hear of the old one, or that there is none.
    wait_until(is_described, f"{topic} to be described with its new id")


def add_partitions(kafka: KafkaSettings, topic: str, count: int) -> None:
    """Have the topic have so many partitions, more than before."""
    with admin_client(kafka) as client:
        client.create_partitions([NewPartitions(topic, count)])[topic].result(20)
        # The controller made them; a producer that asks the broker at once may hear of the former ones alone.
        wait_until(
            lambda: len(client.list_topics(topic, timeout=20).topics[topic].partitions) == count,
            f"{count} partitions of {topic} to be listed",
        )


def keep_for(kafka: KafkaSettings, run: str, *, seconds: int, segment_seconds: int) -> None:
    """Have the run's topics of time and size keep records for so long; whole segments of this age are deleted.

    Those of compacted topics are compacted.
    """
    segment = {"segment.ms": segment_seconds * 1000}
    wanted = {"time_and_size": {"retention.ms": seconds * 1000, **segment}, "compacted": segment}
    changed = [
        ConfigResource(ConfigResource.Type.TOPIC, topic.of(run), incremental_configs=_set(wanted[topic.retention]))
        for topic in TOPICS
        if topic.retention in wanted
    ]
    with admin_client(kafka) as client:
        for future in client.incremental_alter_configs(changed).values():
            future.result(20)


def _set(values: dict[str, int]) -> list[ConfigEntry]:
    return [
        ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET) for name, value in values.items()
    ]
