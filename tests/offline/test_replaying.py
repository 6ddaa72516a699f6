"""`dead-letters list` and `replay` on the real broker: what strangers write there gets no rights by it."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.message import KafkaMessage, OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.bus.reader import TopicReader
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.errors import BrokerError, ConfigurationError, DecodeError
from rollstream.schemas.topics import DEAD_LETTERS, PROMPTS, TOPIC_BYTES, TOPICS, Topic
from rollstream.stage.dead_letters import dead_letter
from tests.harness.command_runs import CommandRun
from tests.hostile.hostile import Context
from tests.hostile.hostile_letters import forged_letters


@pytest.fixture
def run(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[CommandRun]:
    """A run with empty topics."""
    config = tmp_path / "rollstream.toml"
    config.write_text(f'run = "{topic_prefix}"\n[kafka]\nbootstrap_servers = "{kafka}"\n')
    settings = KafkaSettings(bootstrap_servers=kafka)
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=2)
    with Publisher(settings, client_id="test") as publisher:
        yield CommandRun(name=topic_prefix, kafka=settings, config=config, publisher=publisher)


def test_dead_letters_are_listed_once_replayed_once_and_refused_after(run: CommandRun) -> None:
    letter = _dead_letter(run, _put(run, b"garbage"))
    for _ in range(2):  # the same one twice: a crash between publishing and committing
        run.publisher.publish_soon(letter).result(30)
    listed = json.loads(run.command("dead-letters", "list", "--json"))
    assert [(row["error_class"], row["replayed_at"]) for row in listed] == [("DecodeError", None)]
    identity = listed[0]["identity"]
    assert identity in run.command("dead-letters", "list")

    assert f"replayed {identity}" in run.command("dead-letters", "replay", identity)
    back = _read(run, PROMPTS)
    assert [message.value for message in back] == [b"garbage"] * 2
    assert sum(("rollstream.replays", b"1") in message.headers for message in back) == 1
    assert json.loads(run.command("dead-letters", "list", "--json"))[0]["replayed_at"] is not None
    assert isinstance(run.refusal("dead-letters", "replay", identity), ConfigurationError)
    assert run.command("dead-letters", "replay", "--all") == ""
    assert len(_read(run, PROMPTS)) == 2


FORGED_TARGETS = {
    "scored": {"topic": "{run}.scored"},
    "weights": {"topic": "{run}.weights"},
    "the ledger": {"topic": "{run}.ledger"},
    "prompts of another run": {"topic": "{other}.prompts"},
    "another's topic": {"topic": "{other}"},
    "other bytes at a place that is there": {"value": b"evil"},
    "a place that never was": {"offset": 10**6},
    "a partition that is none": {"partition": 10**6},
    "an offset beyond 64 bits": {"offset": 2**70},
    "a topic of the scorers": {"topic": "{run}.rollouts"},
}


def test_a_replay_writes_only_what_lies_at_the_place_of_a_letter_on_a_topic_that_its_group_reads(
    run: CommandRun,
) -> None:
    good = _put(run, b"garbage")
    other = f"{run.name}-other"
    KafkaAdmin(run.kafka).create_topics(other, partitions=1)
    for change in FORGED_TARGETS.values():
        filled = {k: v.format(run=run.name, other=other) if isinstance(v, str) else v for k, v in change.items()}
        # Older than the true one, and before it in the topic.
        forged = _dead_letter(run, good._replace(**filled), failed_at=datetime(2020, 1, 1, tzinfo=UTC))
        run.publisher.publish_soon(forged).result(30)
    run.publisher.publish_soon(_dead_letter(run, good)).result(30)
    before = {topic.name: len(_read(run, topic)) for topic in TOPICS}
    listed = json.loads(run.command("dead-letters", "list", "--json"))
    assert Counter(row["doubt"] for row in listed) == {"foreign": 6, "forged": 4, None: 1}
    assert "FORGED: other bytes lie there" in run.command("dead-letters", "list")
    for row in listed:
        if row["doubt"] and row["offset"] != good.offset:
            assert row["doubt"] in str(run.refusal("dead-letters", "replay", row["identity"]))
    assert run.command("dead-letters", "replay", "--all").count("replayed ") == 1
    after = {topic.name: len(_read(run, topic)) for topic in TOPICS}
    assert {name: after[name] - before[name] for name in after if after[name] != before[name]} == {
        "prompts": 1,
        "dead-letters": 1,
    }
    assert [message.value for message in _read(run, PROMPTS)] == [b"garbage"] * 2
    with TopicReader(run.kafka, [topic.of(other) for topic in TOPICS]) as reader:
        assert list(reader.to_end()) == []


def test_no_letter_of_the_hostile_corpus_has_a_replay_write_anything(run: CommandRun, tmp_path: Path) -> None:
    _put(run, b"garbage")
    topic = DEAD_LETTERS.of(run.name)
    sent = []
    for letter in forged_letters(Context(run=run.name, outside=tmp_path), DEAD_LETTERS):
        headers = tuple((name, text.encode()) for name, text in letter.headers.items())
        sent.append(run.publisher.publish_soon(OutRecord(topic=topic, value=letter.value, headers=headers)))
    for one in sent:
        one.result(30)
    before = {topic.name: len(_read(run, topic)) for topic in TOPICS}
    assert "\x1b" not in run.command("dead-letters", "list")
    json.loads(run.command("dead-letters", "list", "--json"))
    assert run.command("dead-letters", "replay", "--all") == ""
    assert {topic.name: len(_read(run, topic)) for topic in TOPICS} == before


@pytest.mark.parametrize("copy", ["none", "the message itself", "other bytes", "not there", "beyond 64 bits"])
def test_a_marker_of_somebody_else_hides_no_letter_from_a_replay(run: CommandRun, copy: str) -> None:
    good, other = _put(run, b"garbage"), _put(run, b"other")
    run.publisher.publish_soon(_dead_letter(run, good)).result(30)
    (row,) = json.loads(run.command("dead-letters", "list", "--json"))
    offset = {"the message itself": good.offset, "other bytes": other.offset, "not there": 10**6}.get(copy, 2**70)
    place = {} if copy == "none" else {"replayed.partition": f"{good.partition}", "replayed.offset": f"{offset}"}
    said = {
        "original.topic": good.topic, "original.partition": f"{good.partition}", "original.offset": f"{good.offset}",
        "original.timestamp": "0", "consumer.group": row["group"], "error.class": "DecodeError", "error.message": "",
        "attempts": "1", "failed_at": row["failed_at"], "replayed_at": "2026-03-01T13:00:00+00:00", **place,
    }  # fmt: skip
    headers = tuple((name, text.encode()) for name, text in said.items())
    run.publisher.publish_soon(OutRecord(topic=DEAD_LETTERS.of(run.name), value=None, headers=headers)).result(30)
    assert [row["replayed_at"] for row in json.loads(run.command("dead-letters", "list", "--json"))] == [None]
    assert f"replayed {row['identity']}" in run.command("dead-letters", "replay", "--all")
    assert [row["replayed_at"] is None for row in json.loads(run.command("dead-letters", "list", "--json"))] == [False]


@pytest.mark.parametrize("lie", [{"rollstream.replays": "9"}, {"original.bytes": "7", "original.sha256": "{sum}"}])
def test_an_older_letter_of_the_same_bytes_keeps_no_message_from_a_replay(run: CommandRun, lie: dict[str, str]) -> None:
    good = _put(run, b"garbage")
    forged = _dead_letter(run, good, failed_at=datetime(2020, 1, 1, tzinfo=UTC))
    added = {name: text.format(sum=hashlib.sha256(b"garbage").hexdigest()) for name, text in lie.items()}
    headers = (*forged.headers, *((name, text.encode()) for name, text in added.items()))
    for letter in (replace(forged, headers=headers), _dead_letter(run, good)):
        run.publisher.publish_soon(letter).result(30)
    assert run.command("dead-letters", "replay", "--all").count("replayed ") == 1


def test_a_letter_that_cannot_be_put_back_does_not_keep_the_others_from_it(run: CommandRun) -> None:
    large = _largest(run)
    good = _put(run, b"garbage")
    for original in (large, good):
        run.publisher.publish_soon(_dead_letter(run, original)).result(30)
    said = str(run.refusal("dead-letters", "replay", "--all"))
    assert "1 of 2 were not replayed" in said
    assert [message.value for message in _read(run, PROMPTS)][2:] == [b"garbage"]


def test_replaying_what_is_not_there_names_the_command_that_lists(run: CommandRun) -> None:
    assert "dead-letters list" in str(run.refusal("dead-letters", "replay", "group/topic/0/0"))


def _put(run: CommandRun, value: bytes) -> KafkaMessage:
    """A message on `prompts`, as the generators read it."""
    topic = PROMPTS.of(run.name)
    delivery = run.publisher.publish_soon(OutRecord(topic=topic, key=b"g", value=value)).result(30)
    return KafkaMessage(*delivery[:3], key=b"g", value=value)


def _largest(run: CommandRun) -> KafkaMessage:
    """A message that just fits: with the counter of a replay it is larger than what the topic takes."""
    noise = random.Random(1).randbytes(TOPIC_BYTES)
    for headroom in range(60, 400, 10):
        try:
            return _put(run, noise[headroom:])
        except BrokerError:  # it is too large as yet
            continue
    raise AssertionError("nothing of about the topic's limit fits")


def _dead_letter(
    run: CommandRun, original: KafkaMessage, failed_at: datetime = datetime(2026, 3, 1, tzinfo=UTC)
) -> OutRecord:
    return dead_letter(
        original,
        topic=DEAD_LETTERS.of(run.name),
        group=f"{run.name}.generators",
        error=DecodeError("prompts: not in the wire format"),
        attempts=1,
        failed_at=failed_at,
    )


def _read(run: CommandRun, topic: Topic[Any]) -> list[KafkaMessage]:
    with TopicReader(run.kafka, [topic.of(run.name)]) as reader:
        return list(reader.to_end())
