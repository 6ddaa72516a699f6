"""Every offline command is killed at each of its crash points, and goes on: no row is lost, and none is there twice."""

import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from rollstream.bus.reader import TopicReader
from rollstream.offline.continuous.production import PROGRESS
from rollstream.process.crash_points import CRASH_AT
from rollstream.process.settings.base import KafkaSettings
from tests.harness.collecting import noted_facts, noted_samples
from tests.harness.fake_openai import fake_openai
from tests.harness.offline_commands import NUM_ROWS, OfflineCommand, offline_command
from tests.harness.waits import wait_until

ASKING = ["progress_committed", "progress_committed:2", "output_written", "collection_finished"]
OF_BATCHES = ["batch_written", "batch_taken", *ASKING, "batch_asked"]
POINTS = {
    "collect a file": ASKING,
    "collect into parquet": ["progress_committed:2", "output_written"],
    "collect into a directory": ["progress_committed:2", "output_written"],
    "collect an environment": ASKING,
    "collect --every": [*OF_BATCHES, "batch_written:2", "batch_taken:2", "collection_finished:2", "batch_asked:2"],
    "analyze-rewards": ["progress_committed", "progress_committed:2", "scores_written"],
    "word-count-rollouts": ["progress_committed", "output_written", "collection_finished"],
    "filter-difficulty": ["metrics_written", "buckets_written"],
}
TABLE = [(name, point) for name, points in POINTS.items() for point in points]


def kill(command: OfflineCommand, point: str) -> None:
    """Run it until it kills itself there."""
    process = command.start({CRASH_AT: point})
    assert process.wait(60) == -signal.SIGKILL, process.said()


def go_on(command: OfflineCommand) -> None:
    """Run it to its end, twice: the second time nothing is left to do."""
    for _ in range(2):
        process = command.start()
        assert process.wait(60) == 0, process.said()


def check(command: OfflineCommand) -> None:
    found = command.found()
    assert set(found.values()) == {1}
    assert len(found) == NUM_ROWS if command.expected is None else found.keys() == command.expected
    assert [path.name for path in command.output.parent.glob(".out*")] == []
    progress = command.output.with_name(f"{command.output.name}_progress.sqlite")
    assert not progress.exists() or noted_samples(progress) == []


@pytest.mark.parametrize(("name", "point"), TABLE)
def test_a_command_that_is_killed_goes_on(name: str, point: str, tmp_path: Path) -> None:
    command = offline_command(name, tmp_path)
    kill(command, point)
    go_on(command)
    check(command)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", POINTS)
def test_a_command_that_is_killed_at_random_moments_goes_on(name: str, tmp_path: Path) -> None:
    command, chance = offline_command(name, tmp_path), random.Random(7)
    for _ in range(20):
        process, moment = command.start(), time.monotonic() + chance.uniform(0.0, 2.0)
        wait_until(lambda: process.has_ended or time.monotonic() > moment, process.said)  # noqa: B023
        process.kill()
    go_on(command)
    check(command)


def test_what_was_scored_is_noted_with_each_batch(tmp_path: Path) -> None:
    command = offline_command("analyze-rewards", tmp_path)
    kill(command, "progress_committed:2")
    assert len(noted_samples(tmp_path / "scored.jsonl_progress.sqlite")) == 128


@pytest.mark.parametrize("point", POINTS["filter-difficulty"])
def test_a_summary_never_stands_beside_the_files_of_a_run_that_was_killed(point: str, tmp_path: Path) -> None:
    command = offline_command("filter-difficulty", tmp_path)
    go_on(command)
    before = {path.name: path.read_bytes() for path in command.output.iterdir()}
    kill(command, point)
    left = {path.name: path.read_bytes() for path in command.output.glob("[!.]*")}
    assert "summary_percentile.json" in before
    assert "summary_percentile.json" not in left
    assert left.items() <= before.items()


@pytest.mark.parametrize("point", [*OF_BATCHES])
def test_a_watch_that_is_killed_goes_on(point: str, tmp_path: Path) -> None:
    command = offline_command("collect --watch", tmp_path)
    kill(command, point)
    began, process = time.time(), command.start()

    def is_done() -> bool:
        looked_at = noted_facts(command.output / PROGRESS, "continuous").get("looked_at", 0.0)
        return looked_at > began and command.found().total() >= 2 * NUM_ROWS

    wait_until(lambda: process.has_ended or is_done(), process.said)
    assert process.terminate() == 0
    check(command)


@pytest.mark.parametrize("point", ASKING)
def test_a_command_that_asks_a_server_goes_on_and_asks_nothing_again_that_was_noted(point: str, tmp_path: Path) -> None:
    with fake_openai() as server:
        made = offline_command("generate-rollouts", tmp_path)
        command = replace(made, words=(*made.words, f"{server.url}/v1"))
        kill(command, point)
        num_noted = len(noted_samples(tmp_path / "out.jsonl_progress.sqlite")) or 2 * NUM_ROWS
        num_asked = len(server.asked)
        go_on(command)
        assert len(server.asked) - num_asked == 2 * NUM_ROWS - num_noted
    check(command)


@pytest.fixture
def topics(kafka: str, topic_prefix: str) -> Iterator[tuple[str, str]]:
    """Two topics, the first with a prompt in each record, half of them twice."""
    names = f"{topic_prefix}.tasks", f"{topic_prefix}.collected"
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.create_topics([NewTopic(name, 2, 1) for name in names]).values():
        future.result(20)
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 0})
    for row in [*range(NUM_ROWS), *range(0, NUM_ROWS, 2)]:
        producer.produce(names[0], f'{{"prompt": "{row:05}="}}'.encode(), partition=row % 2)
    assert producer.flush(20) == 0
    yield names
    for future in admin.delete_topics(list(names)).values():
        future.result(20)


@pytest.mark.parametrize("point", [*OF_BATCHES, "row_published", "row_published:150", "row_published:200"])
def test_a_topic_is_collected_into_another_one_wherever_it_is_killed(
    point: str, tmp_path: Path, kafka: str, topics: tuple[str, str]
) -> None:
    made = offline_command("collect a topic", tmp_path, kafka)
    words = tuple(word.replace("TASKS", topics[0]).replace("COLLECTED", topics[1]) for word in made.words)
    command = replace(made, words=words)
    kill(command, point)
    go_on(command)
    check(command)
    reader = TopicReader(KafkaSettings(bootstrap_servers=kafka), [topics[1]])
    keys = [message.key for message in reader.to_end()]
    reader.close()
    assert len(keys) == len(set(keys)) == 2 * NUM_ROWS
