"""A living trainer is seen on the broker, a stopped one is not."""

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.presence import TrainerPresence, is_trainer_present
from rollstream.process.settings import KafkaSettings
from tests.harness.waits import wait_until


def test_a_trainer_is_present_exactly_while_it_runs(kafka: str, topic_prefix: str) -> None:
    settings = KafkaSettings(bootstrap_servers=kafka)
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=1)
    assert not is_trainer_present(settings, topic_prefix)
    with TrainerPresence(settings, topic_prefix):
        wait_until(lambda: is_trainer_present(settings, topic_prefix), "the trainer to be seen", 20.0)
    assert not is_trainer_present(settings, topic_prefix)
