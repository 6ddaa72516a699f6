"""The trainer's questions about the other stages, on a real broker."""

from contextlib import closing

import psutil
from prometheus_client import REGISTRY

from rollstream.bus.admin import KafkaAdmin
from rollstream.process.settings import KafkaSettings
from rollstream.schemas.topics import PROMPTS
from rollstream.trainer.intake.aging import Upstream
from rollstream.trainer.intake.upstream import UpstreamWatcher
from tests.harness.builders import a_prompt
from tests.harness.running import run_on
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
