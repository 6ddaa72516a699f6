"""An outside client of a run: it reads the topics and adds up what became of every prompt.

It knows Kafka, Avro and the packaged .avsc files, and shares no code with the stages. So a mistake of theirs is not
repeated here, and shows.
"""

import io
import json
import struct
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import fastavro
import numpy as np
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

Fields = dict[str, Any]
Place = tuple[int, int]

READ_SECONDS = 60.0
_PROMPT_SCHEMA_ID = 1
_RECORDS = {
    "prompts": "PromptSubmitted",
    "rollouts": "RolloutGenerated",
    "scored": "RolloutScored",
    "weights": "WeightsPublished",
    "weights-applied": "WeightsApplied",
    "ledger": "LedgerEntry",
}


def _schema(record: str) -> Any:
    return fastavro.parse_schema(json.loads((files("rollstream.schemas") / "avro" / f"{record}.avsc").read_text()))


_SCHEMAS = {topic: _schema(record) for topic, record in _RECORDS.items()}


def decoded(topic: str, value: bytes | None) -> Fields | None:
    """The fields of a record in Confluent wire format, None if it can't be read."""
    if not value or value[0] != 0 or len(value) < 5:
        return None
    try:
        return fastavro.schemaless_reader(io.BytesIO(value[5:]), _SCHEMAS[topic], None)
    except (EOFError, ValueError, IndexError, struct.error):
        return None


def encoded_prompt(content: str, **fields: Any) -> bytes:
    """A `PromptSubmitted` of one user message; what `fields` leaves out takes the schema's default."""
    prompt = {
        "prompt_id": f"outside/{uuid.uuid4().hex}",
        "group_id": uuid.uuid4().hex,
        "messages": [{"role": "user", "content": content}],
        "sampling": {"max_tokens": 12},
        "submitted_at": datetime.now(UTC),
        **fields,
    }
    body = io.BytesIO()
    fastavro.schemaless_writer(body, _SCHEMAS["prompts"], prompt)
    return b"\0" + _PROMPT_SCHEMA_ID.to_bytes(4, "big") + body.getvalue()


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What the topics say. The ledger is read first, so that all that it names must be on the topics read after it."""

    ledger: Sequence[Fields]
    scored: Mapping[Place, Fields]
    """Every readable record of `scored`, by (partition, offset)."""
    rollouts: Sequence[Fields]
    prompts: Mapping[str, Fields]
    """The first record of each group on `prompts`."""

    @property
    def chain(self) -> list[Fields]:
        """The ledger's surviving entries."""
        return surviving_entries(self.ledger)

    @property
    def steps(self) -> int:
        """Surviving optimizer steps."""
        return sum(entry["kind"] == "step" for entry in self.chain)

    @property
    def closed(self) -> dict[str, Fields]:
        """How each group closed on the surviving branch."""
        return {group["group_id"]: group for entry in reversed(self.chain) for group in entry["closed"]}

    @property
    def dropped(self) -> Counter[str]:
        """Dropped groups by reason."""
        return Counter(group["reason"] for group in self.closed.values() if group["outcome"] == "dropped")

    @property
    def num_trained(self) -> int:
        """Groups that were trained on."""
        return sum(group["outcome"] == "trained" for group in self.closed.values())

    @property
    def open_groups(self) -> set[str]:
        """Groups on `prompts` that no entry of the surviving branch closes."""
        return {group for group in self.prompts if group not in self.closed}

    @property
    def unfinished(self) -> set[str]:
        """Open groups of which `scored` lacks a sample; once no stage has work left, they are lost."""
        samples = defaultdict(set)
        for record in self.scored.values():
            samples[record["rollout"]["group_id"]].add(record["rollout"]["rollout_id"])
        return {group for group in self.open_groups if len(samples[group]) < self.prompts[group]["group_size"]}

    @property
    def num_duplicates(self) -> int:
        """Records of `scored` beyond the first of their rollout."""
        return len(self.scored) - len({record["rollout"]["rollout_id"] for record in self.scored.values()})

    def samples(self, group: str) -> list[Fields]:
        """The scored records of a group."""
        return [record for record in self.scored.values() if record["rollout"]["group_id"] == group]

    def check(self) -> None:
        """Assert what must hold at any time."""
        for record in self.scored.values():
            check_turns(record["rollout"])
        for rollout in self.rollouts:
            check_turns(rollout)
        steps = [entry for entry in self.chain if entry["kind"] == "step"]
        assert [entry["step"] for entry in steps] == list(range(1, len(steps) + 1))
        for entry in steps:
            self._check_step(entry)
        trained = Counter(rollout["rollout_id"] for entry in steps for rollout in entry["trained"])
        assert set(trained.values()) <= {1}, "trained twice"
        closings = Counter(group["group_id"] for entry in self.chain for group in entry["closed"])
        assert set(closings.values()) <= {1}, "closed twice"
        assert closings.keys() <= self.prompts.keys(), "closed, but never submitted"
        assert len(self.prompts) == self.num_trained + sum(self.dropped.values()) + len(self.open_groups)
        assert self.dropped["lost"] == 0

    def _check_step(self, entry: Fields) -> None:
        """What a step names lies in `scored` at that place, and belongs to a training group that it closes."""
        closes = {group["group_id"] for group in entry["closed"] if group["outcome"] == "trained"}
        for named in entry["trained"]:
            record = self.scored[named["partition"], named["offset"]]
            rollout = record["rollout"]
            assert (rollout["rollout_id"], rollout["attempt_id"]) == (named["rollout_id"], named["attempt_id"])
            assert rollout["group_id"] in closes
            assert rollout["status"] == "completed"
            assert record["scoring"]["reward"] is not None
            assert self.prompts[rollout["group_id"]]["purpose"] == "train"


def surviving_entries(ledger: Sequence[Fields]) -> list[Fields]:
    """Each restart or rollback cuts what follows the entry that made its parent version."""
    chain: list[Fields] = []
    for entry in ledger:
        if entry["kind"] in ("restart", "rollback") and entry["parent_version"] is not None:
            while chain[-1]["kind"] == "drops" or chain[-1]["weight_version"] != entry["parent_version"]:
                chain.pop()
        chain.append(entry)
    return chain


def check_turns(rollout: Fields) -> None:
    """Token ids, logprobs and spans agree in length; spans cover the tokens without gap or overlap."""
    assert (rollout["status"] == "completed") == bool(rollout["turns"])
    for turn in rollout["turns"]:
        token_ids = np.frombuffer(turn["token_ids"], "<i4")
        logprobs = np.frombuffer(turn["behavior_logprobs"], "<f4")
        assert len(token_ids) == len(logprobs) > 0
        assert (logprobs <= 0).all()
        edges = [(span["start"], span["end"]) for span in turn["weight_spans"]]
        assert [start for start, _ in edges] == [0, *(end for _, end in edges[:-1])]
        assert all(start < end for start, end in edges)
        assert edges[-1][1] == len(token_ids)


class OutsideClient:
    """Reads every topic of a run from its start, each record once, and submits prompts."""

    def __init__(self, bootstrap_servers: str, run: str) -> None:
        self._bootstrap = bootstrap_servers
        self._run = run
        self._read: defaultdict[str, list[tuple[Message, Fields]]] = defaultdict(list)
        self._next_offsets: defaultdict[str, dict[int, int]] = defaultdict(dict)

    def account(self) -> Account:
        """Read everything there is now."""
        ledger = [fields for _, fields in self._records("ledger")]
        scored = {(m.partition(), m.offset()): fields for m, fields in self._records("scored")}
        prompts: dict[str, Fields] = {}
        for _, fields in self._records("prompts"):
            prompts.setdefault(fields["group_id"], fields)
        rollouts = [fields for _, fields in self._records("rollouts")]
        return Account(ledger=ledger, scored=scored, rollouts=rollouts, prompts=prompts)

    def steps(self) -> int:
        """Surviving optimizer steps so far."""
        entries = surviving_entries([fields for _, fields in self._records("ledger")])
        return sum(entry["kind"] == "step" for entry in entries)

    def records(self, topic: str) -> list[Fields]:
        """The readable records of a topic."""
        return [fields for _, fields in self._records(topic)]

    def dead_letters(self) -> list[bytes | None]:
        """The original bytes of each dead letter, replay markers left out."""
        marker = "replayed_at"
        return [m.value() for m in self._messages("dead-letters") if marker not in dict(m.headers() or ())]

    def put(self, topic: str, *values: bytes | None, headers: Mapping[str, str] | None = None) -> list[Place]:
        """Write bytes; where they lie."""
        places: list[Place] = []
        producer = Producer({"bootstrap.servers": self._bootstrap, "acks": "all"})
        for value in values:
            producer.produce(
                f"{self._run}.{topic}",
                value,
                key=uuid.uuid4().hex,
                headers=dict(headers or {}),
                on_delivery=lambda error, m: places.append((m.partition(), m.offset())) if error is None else None,
            )
        producer.flush(READ_SECONDS)
        assert len(places) == len(values)
        return places

    def _records(self, topic: str) -> list[tuple[Message, Fields]]:
        """Every readable record; what was read before is remembered, since topics only grow."""
        for message in self._messages(topic, self._next_offsets[topic]):
            self._next_offsets[topic][message.partition()] = message.offset() + 1
            if (fields := decoded(topic, message.value())) is not None:
                self._read[topic].append((message, fields))
        return self._read[topic]

    def _messages(self, topic: str, first_offsets: Mapping[int, int] = MappingProxyType({})) -> list[Message]:
        """All committed messages of a topic from given offsets on, each partition in order."""
        name = f"{self._run}.{topic}"
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "outside",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
            }
        )
        try:
            open_partitions = set(consumer.list_topics(name, timeout=READ_SECONDS).topics[name].partitions)
            firsts = {number: first_offsets.get(number, OFFSET_BEGINNING) for number in open_partitions}
            consumer.assign([TopicPartition(name, number, first) for number, first in firsts.items()])
            return _read_to_end(consumer, open_partitions)
        finally:
            consumer.close()


def _read_to_end(consumer: Consumer, open_partitions: set[int]) -> list[Message]:
    found: list[Message] = []
    deadline = time.monotonic() + READ_SECONDS
    while open_partitions:
        assert time.monotonic() < deadline, f"no end of partitions {open_partitions} within {READ_SECONDS} s"
        for message in consumer.consume(500, timeout=0.05):
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                open_partitions.discard(message.partition())
            # Other errors report lost connections, which the client restores by itself.
    return found
