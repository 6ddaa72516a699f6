"""The trainer's questions about the other stages, on a real broker."""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition
from prometheus_client import REGISTRY

from rollstream.bus.admin import KafkaAdmin
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.topics import PROMPTS, ROLLOUTS, Topic
from rollstream.trainer.intake.aging import Upstream
from rollstream.trainer.intake.upstream import UpstreamWatcher
from tests.harness.builders import a_prompt
from tests.harness.running import run_on
from tests.harness.topics import make_anew
from tests.harness.waits import wait_until

NUM_ANSWERS = 3


def answers(watcher: UpstreamWatcher, count: int) -> tuple[Upstream, set[int]]:
    """The answer after so many newer ones, and every thread that this process had meanwhile."""
    threads: set[int] = set()
    latest = watcher.latest

    def is_newer() -> bool:
        threads.update(thread.id for thread in psutil.Process().threads())
        return watcher.latest is not latest

    for _ in range(count):
        wait_until(is_newer, "an answer", every_seconds=0.005)
        latest = watcher.latest
    return latest, threads


def test_the_watcher_asks_again_and_again_with_the_same_clients(kafka: str, topic_prefix: str) -> None:
    settings = KafkaSettings(bootstrap_servers=kafka)
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=1)
    run = run_on(settings, topic_prefix)
    with run.publisher("outside") as publisher:
        publisher.publish_soon(run.out_record(PROMPTS, a_prompt())).result()
    with closing(UpstreamWatcher(run, ask_every_seconds=0.1)) as watcher:
        _, before = answers(watcher, 2)
        answer, threads = answers(watcher, NUM_ANSWERS)
    assert (answer.prompts_end, answer.prompts_done) == ({0: 1}, {0: 0})
    assert REGISTRY.get_sample_value("rollstream_trainer_topic_records", {"topic": "prompts"}) == 1
    assert REGISTRY.get_sample_value("rollstream_trainer_topic_records", {"topic": "ledger"}) == 0
    # A client has several threads. Those of earlier tests may still come and go.
    assert len(threads - before) < NUM_ANSWERS


@pytest.mark.parametrize(
    ("group", "topic"), [("generators", PROMPTS), ("scorers", ROLLOUTS)], ids=["generators", "scorers"]
)
def test_a_commit_of_a_topic_before_is_no_work_done(
    group: str, topic: Topic[Any], kafka: str, topic_prefix: str
) -> None:
    settings = KafkaSettings(bootstrap_servers=kafka)
    admin, name = KafkaAdmin(settings), topic.of(topic_prefix)
    admin.create_topics(topic_prefix, partitions=1)
    run = run_on(settings, topic_prefix)

    def done(topic_id: str) -> Mapping[int, int]:
        """What counts of a commit of 7 records."""
        place = TopicPartition(name, 0, 7, metadata=topic_id)
        with Consumer({**settings.client_config(), "group.id": run.group(group)}) as member:
            member.commit(offsets=[place], asynchronous=False)
        latest, _ = answers(watcher, 2)
        return latest.prompts_done if topic is PROMPTS else latest.rollouts_done

    before = admin.shape(name).topic_id
    with closing(UpstreamWatcher(run, ask_every_seconds=0.1)) as watcher:
        assert done(before) == {0: 7}
        make_anew(settings, name)
        # A member that has not noticed it yet commits once more.
        assert done(before) == {0: 0}
        assert done("") == {0: 7}, "members of older versions and tools name no topic"
        assert done(admin.shape(name).topic_id) == {0: 7}


def test_the_watcher_says_of_which_rollouts_it_speaks(kafka: str, topic_prefix: str) -> None:
    settings = KafkaSettings(bootstrap_servers=kafka)
    admin, name = KafkaAdmin(settings), ROLLOUTS.of(topic_prefix)
    admin.create_topics(topic_prefix, partitions=1)
    with closing(UpstreamWatcher(run_on(settings, topic_prefix), ask_every_seconds=0.1)) as watcher:
        before, _ = answers(watcher, 1)
        assert before.rollouts_id == admin.shape(name).topic_id
        make_anew(settings, name)
        wait_until(lambda: watcher.latest.rollouts_id != before.rollouts_id, "the id of the new one")
