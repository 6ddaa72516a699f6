"""A living trainer is seen on the broker, a stopped one is not."""

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.presence import GONE_AFTER_SECONDS, TrainerPresence, is_trainer_present
from rollstream.process.settings.base import KafkaSettings
from tests.harness.waits import wait_until


def test_a_trainer_is_present_exactly_while_it_runs(kafka: str, topic_prefix: str) -> None:
    settings = KafkaSettings(bootstrap_servers=kafka)
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=1)
    assert not is_trainer_present(settings, topic_prefix)
    with TrainerPresence(settings, topic_prefix):
        wait_until(lambda: is_trainer_present(settings, topic_prefix), "the trainer to be seen")
    # Well before the broker would miss one that was killed.
    wait_until(lambda: not is_trainer_present(settings, topic_prefix), "it to have left", GONE_AFTER_SECONDS - 2.0)
