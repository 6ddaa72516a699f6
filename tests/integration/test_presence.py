"""A living trainer is seen on the broker, a stopped one is not."""

import time

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.presence import TrainerPresence, is_trainer_present
from rollstream.process.settings import KafkaSettings


def test_a_trainer_is_present_exactly_while_it_runs(kafka: str, topic_prefix: str) -> None:
    settings = KafkaSettings(bootstrap_servers=kafka)
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=1)
    assert not is_trainer_present(settings, topic_prefix)
    with TrainerPresence(settings, topic_prefix):
        deadline = time.monotonic() + 20
        while not is_trainer_present(settings, topic_prefix):
            assert time.monotonic() < deadline
    assert not is_trainer_present(settings, topic_prefix)
