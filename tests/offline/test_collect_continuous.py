"""Continuous collections as processes: topics in and out."""

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from rollstream.bus.reader import TopicReader
from rollstream.cli.collect import command
from rollstream.process.settings.base import KafkaSettings
from rollstream.rows.open import open_rows
from tests.harness.fake_openai import fake_openai
from tests.harness.forking import start_forked
from tests.harness.processes import StartedProcess
from tests.harness.waits import wait_until

CONFIG = """
run = "{run}"

[kafka]
bootstrap_servers = "{kafka}"

[generator.engine]
kind = "scripted"
model_path = "no-tokenizer"
"""
FIXED = ["--max-tokens", "4", "--num-samples", "2", "--concurrency", "8"]


@pytest.fixture
def topics(kafka: str, topic_prefix: str) -> Iterator[tuple[str, str]]:
    """(tasks, rollouts): two topics of the test's own, with two partitions each."""
    names = f"{topic_prefix}.tasks", f"{topic_prefix}.collected"
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.create_topics([NewTopic(name, 2, 1) for name in names]).values():
        future.result(20)
    yield names
    for future in admin.delete_topics(list(names)).values():
        future.result(20)


def put(kafka: str, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 0})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % 2)
    assert producer.flush(20) == 0


def task(name: str) -> bytes:
    return json.dumps({"prompt": name, "user": {"id": 7}}).encode()


def records(kafka: str, topic: str) -> list[tuple[bytes, dict]]:
    """Key and row of each record of a topic."""
    reader = TopicReader(KafkaSettings(bootstrap_servers=kafka), [topic])
    found = [(message.key, json.loads(message.value)) for message in reader.to_end()]
    reader.close()
    return found


def words(tmp_path: Path, kafka: str, topics: tuple[str, str], *more: str) -> list[str]:
    config = tmp_path / "engine.toml"
    config.write_text(CONFIG.format(run=topics[0].partition(".")[0], kafka=kafka))
    output = ["--output", str(tmp_path / "out"), "--config", str(config)]
    return [f"topic:{topics[0]}", *output, *FIXED, "--to", f"topic:{topics[1]}", *more]


def be_collect(*given: str) -> None:
    """Be `rollstream collect GIVEN`."""
    command.main(list(given))


def started(tmp_path: Path, given: list[str], **environment: str) -> StartedProcess:
    return start_forked(partial(be_collect, *given), log=tmp_path / "collect.log", env=environment)


def asked(directory: Path) -> Counter[str]:
    """How often each prompt is in the parts."""
    parts = [path for path in directory.glob("part-*.jsonl") if path.name.removesuffix(".jsonl")[5:].isdigit()]
    return Counter(row.fields["prompt"] for part in parts for row in open_rows(part))


def test_a_message_gives_its_rollouts_once_however_often_it_is_sent(tmp_path, kafka, topics):
    put(kafka, topics[0], task("a"), task("b"), task("a"), b"no JSON", b"\x00\x00\x00\x00\x01Avro", b"")
    process = started(tmp_path, words(tmp_path, kafka, topics, "--watch", "--every", "1s"))
    wait_until(lambda: len(records(kafka, topics[1])) == 4 or process.has_ended, process.said)
    put(kafka, topics[0], task("b"), task("c"))
    wait_until(lambda: len(records(kafka, topics[1])) == 6 or process.has_ended, process.said)
    assert process.terminate() == 0
    found = records(kafka, topics[1])
    assert Counter(row["prompt"] for _, row in found) == asked(tmp_path / "out") == {"a": 2, "b": 2, "c": 2}
    assert len({key for key, _ in found}) == 6
    assert {json.dumps(row["original_user"]) for _, row in found} == {'{"id": 7}'}
    assert {row["original_collected_from"].rpartition("@")[0] for _, row in found} <= {
        f"{topics[0]}/0", f"{topics[0]}/1"
    }  # fmt: skip
    listed = [json.loads(line) for line in (tmp_path / "out" / "part-000001_bad_rows.jsonl").read_text().splitlines()]
    assert len(listed) == 3
    assert any("it has no value" in line["why"] for line in listed)


def test_a_topic_is_asked_of_a_server_that_options_name_or_that_the_file_names(tmp_path, kafka, topics):
    put(kafka, topics[0], task("a"), task("b"))
    config = tmp_path / "cluster.toml"
    cluster = f'run = "{topics[0].partition(".")[0]}"\n[kafka]\nbootstrap_servers = "{kafka}"\n'
    config.write_text(cluster)
    with fake_openai() as server:
        by_options = ["--url", server.url, "--model", "tiny"]
        given = [f"topic:{topics[0]}", "--config", str(config), "--max-tokens", "16"]
        done = CliRunner().invoke(command, [*given, *by_options, "--output", str(tmp_path / "out")])
        assert done.exit_code == 0, done.output
        config.write_text(
            f'{cluster}[generator.engine]\nkind = "openai_http"\n'
            f'[generator.engine.http]\nurls = ["{server.url}"]\nmodel = "tiny"\n'
        )
        done = CliRunner().invoke(command, [*given, "--output", str(tmp_path / "other")])
        assert done.exit_code == 0, done.output
    assert asked(tmp_path / "out") == asked(tmp_path / "other") == {"a": 1, "b": 1}
    assert len(server.asked) == 4


def test_a_topic_that_is_not_there_or_lost_messages_is_named(tmp_path, kafka, topics):
    given = words(tmp_path, kafka, topics)
    missing = CliRunner().invoke(command, [f"{given[0]}-not", *given[1:]])
    assert f"has no topic '{topics[0]}-not'" in str(missing.exception)
    put(kafka, topics[0], *(task(str(number)) for number in range(4)))
    assert CliRunner().invoke(command, given).exit_code == 0
    put(kafka, topics[0], *(task(str(number)) for number in range(4, 12)))
    gone = [TopicPartition(topics[0], number, 4) for number in range(2)]
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.delete_records(gone).values():
        future.result(20)
    lost = CliRunner().invoke(command, given)
    assert "2 offsets were deleted before they were read" in str(lost.exception)
    assert CliRunner().invoke(command, [*given, "--accept-loss"]).exit_code == 0
    assert sorted(asked(tmp_path / "out")) == sorted(str(number) for number in (0, 1, 2, 3, 8, 9, 10, 11))
