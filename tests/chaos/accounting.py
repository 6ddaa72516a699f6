"""An outside client of a run: it reads the topics and adds up what became of every prompt.

It knows Kafka, Avro and the packaged .avsc files (`records.py`), and imports nothing else of this project. So a mistake
of the stages is not repeated here, and shows. Campaigns and tests share it.
"""

import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import MappingProxyType

import numpy as np
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.chaos.records import Fields, decoded

Place = tuple[int, int]

READ_SECONDS = 60.0
_MOST_BYTES = 2**27
_LARGE_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What the topics say. The ledger is read first, so that all that it names must be on the topics read after it."""

    ledger: Sequence[Fields]
    scored: Mapping[Place, Fields]
    """Every readable record of `scored`, by (partition, offset)."""
    rollouts: Sequence[Fields]
    prompts: Mapping[str, Fields]
    """The first record of each group on `prompts`; of an answer to a client the one that lies in it on `scored`."""
    may_be_lost: frozenset[str] = frozenset()
    """Groups whose samples may have lain in a topic `rollouts` that was deleted."""

    @classmethod
    def of_ledger(cls, ledger: Sequence[Fields]) -> "Account":
        """What the ledger alone says."""
        return cls(ledger=ledger, scored={}, rollouts=(), prompts={})

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
    def closed_twice(self) -> list[str]:
        """Groups that more than one surviving entry closes."""
        return _repeated(Counter(group["group_id"] for entry in self.chain for group in entry["closed"]))

    @property
    def dropped(self) -> Counter[str]:
        """Dropped groups by reason."""
        return Counter(group["reason"] for group in self.closed.values() if group["outcome"] == "dropped")

    @property
    def num_trained(self) -> int:
        """Groups that were trained on."""
        return sum(group["outcome"] == "trained" for group in self.closed.values())

    @property
    def samples_by_engine(self) -> Counter[str]:
        """Records on `rollouts` by the engine that generated them."""
        return Counter(rollout["generator"]["engine"] for rollout in self.rollouts)

    @property
    def open_groups(self) -> set[str]:
        """Groups on `prompts` that no entry of the surviving branch closes."""
        return {group for group in self.prompts if group not in self.closed}

    def num_waiting(self, ones_per_group: int) -> float:
        """How many groups are open; so many of one sample count as one."""
        sizes = [self.prompts[group]["group_size"] for group in self.open_groups]
        return sum(1 / ones_per_group if size == 1 else 1 for size in sizes)

    @property
    def unfinished(self) -> set[str]:
        """Open groups of which `scored` lacks a sample; once no stage has work left, they are lost."""
        return self.open_groups & self.incomplete

    @property
    def incomplete(self) -> set[str]:
        """Groups, open or not, of which `scored` lacks a sample."""
        samples = defaultdict(set)
        for record in self.scored.values():
            samples[record["rollout"]["group_id"]].add(record["rollout"]["rollout_id"])
        return {group for group, prompt in self.prompts.items() if len(samples[group]) < prompt["group_size"]}

    @property
    def num_duplicates(self) -> int:
        """Records of `scored` beyond the first of their rollout."""
        return len(self.scored) - len({record["rollout"]["rollout_id"] for record in self.scored.values()})

    def samples(self, group: str) -> list[Fields]:
        """The scored records of a group."""
        return [record for record in self.scored.values() if record["rollout"]["group_id"] == group]

    def check(self) -> None:
        """Check what must hold at any time; raises `AssertionError` with the first thing that does not."""
        for rollout in (*(record["rollout"] for record in self.scored.values()), *self.rollouts):
            check_turns(rollout)
        steps = [entry for entry in self.chain if entry["kind"] == "step"]
        numbers = [entry["step"] for entry in steps]
        _require(numbers == list(range(1, len(steps) + 1)), f"the surviving steps are numbered {numbers}")
        for entry in steps:
            self._check_step(entry)
        trained = Counter(rollout["rollout_id"] for entry in steps for rollout in entry["trained"])
        _require(not _repeated(trained), f"trained twice: {_repeated(trained)[:5]}")
        _require(not self.closed_twice, f"closed twice: {self.closed_twice[:5]}")
        strangers = self.closed.keys() - self.prompts.keys()
        _require(not strangers, f"closed, but never submitted: {sorted(strangers)[:5]}")
        told = self.num_trained + sum(self.dropped.values()) + len(self.open_groups)
        _require(len(self.prompts) == told, f"{len(self.prompts)} groups, of which {told} are accounted for")
        lost = {group for group, closed in self.closed.items() if closed["reason"] == "lost"}
        unexplained = lost - self.may_be_lost
        _require(not unexplained, f"{len(unexplained)} groups lost: {sorted(unexplained)[:5]}")

    def _check_step(self, entry: Fields) -> None:
        """What a step names lies in `scored` at that place, and belongs to a training group that it closes."""
        closes = {group["group_id"] for group in entry["closed"] if group["outcome"] == "trained"}
        for named in entry["trained"]:
            what = f"step {entry['step']} names {named['rollout_id']}"
            record = self.scored.get((named["partition"], named["offset"]))
            if record is None:
                raise AssertionError(f"{what} where nothing lies")
            rollout = record["rollout"]
            ids = (rollout["rollout_id"], rollout["attempt_id"])
            _require(ids == (named["rollout_id"], named["attempt_id"]), f"{what}, and {ids} lies there")
            _require(rollout["group_id"] in closes, f"{what} and does not close its group")
            _require(rollout["status"] == "completed", f"{what}, which is {rollout['status']}")
            _require(record["scoring"]["reward"] is not None, f"{what}, which has no reward")
            purpose = self.prompts.get(rollout["group_id"], {"purpose": "nothing"})["purpose"]
            _require(purpose == "train", f"{what}, whose prompt is for {purpose}")


def surviving_entries(ledger: Sequence[Fields]) -> list[Fields]:
    """Each restart or rollback cuts what follows the entry that made its parent version; a repair is on no branch."""
    chain: list[Fields] = []
    for entry in ledger:
        if entry["kind"] == "skip":
            continue
        if entry["kind"] in ("restart", "rollback") and entry["parent_version"] is not None:
            while chain[-1]["kind"] == "drops" or chain[-1]["weight_version"] != entry["parent_version"]:
                chain.pop()
        chain.append(entry)
    return chain


def check_turns(rollout: Fields) -> None:
    """Token ids, logprobs and spans agree in length; spans cover the tokens without gap or overlap."""
    what = f"rollout {rollout['rollout_id']}"
    _require((rollout["status"] == "completed") == bool(rollout["turns"]), f"{what} is {rollout['status']}, its turns")
    for turn in rollout["turns"]:
        token_ids = np.frombuffer(turn["token_ids"], "<i4")
        logprobs = np.frombuffer(turn["behavior_logprobs"], "<f4")
        _require(len(token_ids) == len(logprobs) > 0, f"{what}: {len(token_ids)} tokens, {len(logprobs)} logprobs")
        _require(bool((logprobs <= 0).all()), f"{what}: a logprob is above 0")
        edges = [(span["start"], span["end"]) for span in turn["weight_spans"]]
        starts, ends = [start for start, _ in edges], [end for _, end in edges]
        covers = starts == [0, *ends[:-1]] and ends[-1:] == [len(token_ids)] and all(np.subtract(ends, starts) > 0)
        _require(covers, f"{what}: spans {edges} over {len(token_ids)} tokens")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def _repeated(counts: Counter[str]) -> list[str]:
    return [name for name, count in counts.items() if count > 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A record to write; without a key it gets one of its own."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class OutsideClient:
    """Reads every topic of a run from its start, each record once, and submits prompts."""

    def __init__(self, bootstrap_servers: str, run: str, *, delivery_seconds: float = READ_SECONDS) -> None:
        self._bootstrap = bootstrap_servers
        self._run = run
        self._delivery_seconds = delivery_seconds
        self._read: defaultdict[str, list[tuple[Message, Fields]]] = defaultdict(list)
        self._next_offsets: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._may_be_lost: frozenset[str] = frozenset()

    def account(self) -> Account:
        """Read everything there is now."""
        account = self._account()
        return replace(account, rollouts=self.records("rollouts"), may_be_lost=self._may_be_lost)

    def _account(self) -> Account:
        """The same without `rollouts`."""
        ledger = self.ledger()
        scored = {(m.partition(), m.offset()): fields for m, fields in self._records("scored")}
        prompts: dict[str, Fields] = {}
        for _, fields in self._records("prompts"):
            prompts.setdefault(fields["group_id"], fields)
        for fields in scored.values():
            if fields["rollout"]["served"] is not None:
                prompts.setdefault(fields["rollout"]["group_id"], fields["rollout"]["prompt"])
        return Account(ledger=ledger, scored=scored, rollouts=(), prompts=prompts)

    def ledger(self) -> list[Fields]:
        """Every readable entry but those that a repair names."""
        found = self._records("ledger")
        named = (record for _, entry in found for record in entry["skipped"])
        skipped = {record["offset"] for record in named if record["topic"] == "ledger"}
        return [entry for message, entry in found if message.offset() not in skipped]

    def steps(self) -> int:
        """Surviving optimizer steps so far."""
        return sum(entry["kind"] == "step" for entry in surviving_entries(self.ledger()))

    def records(self, topic: str) -> list[Fields]:
        """The readable records of a topic."""
        return [fields for _, fields in self._records(topic)]

    def dead_letters(self) -> list[bytes | None]:
        """The original bytes of each dead letter, replay markers left out."""
        marker = "replayed_at"
        return [m.value() for m in self._messages("dead-letters") if marker not in dict(m.headers() or ())]

    def messages(self, topic: str) -> list[Message]:
        """The readable messages of a topic."""
        return [message for message, _ in self._records(topic)]

    def put(
        self, topic: str, *values: bytes | None, key: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> list[Place]:
        """Write bytes, each with a key of its own or all with `key`; where they lie."""
        return self.put_all(Sent(topic=topic, value=value, key=key, headers=headers or {}) for value in values)

    def put_all(self, records: Iterable[Sent]) -> list[Place]:
        """Write records; where they lie, in their order. Raises `AssertionError` if one is not taken in time."""
        places: dict[int, Place] = {}
        count = 0

        def note(number: int, error: KafkaError | None, message: Message) -> None:
            if error is None:
                places[number] = (message.partition(), message.offset())

        for number, sent in enumerate(records):
            self._producer.produce(
                f"{self._run}.{sent.topic}",
                sent.value,
                sent.key or uuid.uuid4().bytes,
                headers=dict(sent.headers),
                on_delivery=partial(note, number),
            )
            self._producer.poll(0)
            if len(sent.value or b"") >= _LARGE_BYTES:
                self._producer.flush(self._delivery_seconds + 1.0)  # few large ones wait at the same time
            count = number + 1
        self._producer.flush(self._delivery_seconds + 1.0)
        _require(len(places) == count, f"{count - len(places)} of {count} records were not delivered")
        return [places[number] for number in range(count)]

    def add_partition(self, topic: str) -> int | None:
        """Have a topic have one partition more; returns how many it has then. None: no broker took that in time."""
        name = f"{self._run}.{topic}"
        with AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0}) as admin:
            try:
                count = len(admin.list_topics(name, timeout=READ_SECONDS).topics[name].partitions) + 1
                admin.create_partitions([NewPartitions(name, count)])[name].result(READ_SECONDS)
            except (KafkaException, TimeoutError):
                return None
        return count

    def is_in_sync(self) -> bool:
        """Whether every replica of every partition of the cluster has all records."""
        with AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0}) as admin:
            try:
                topics = admin.list_topics(timeout=READ_SECONDS).topics.values()
            except KafkaException:
                return False
        parts = [part for topic in topics for part in topic.partitions.values()]
        return bool(parts) and all(part.leader >= 0 and len(part.isrs) == len(part.replicas) for part in parts)

    def delete(self, topic: str) -> int:
        """Delete a topic with all that lies in it; returns how many partitions it had.

        What was read of it stays remembered, and the next one of this name is read from its start. With `rollouts` go
        the samples that no scorer has read yet.
        """
        name = f"{self._run}.{topic}"
        with AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0}) as admin:
            count = len(admin.list_topics(name, timeout=READ_SECONDS).topics[name].partitions)
            admin.delete_topics([name])[name].result(READ_SECONDS)
        self._next_offsets.pop(topic, None)
        if topic == "rollouts":
            self._may_be_lost |= self._account().incomplete
        return count

    @cached_property
    def _producer(self) -> Producer:
        # The broker bounds what a record takes compressed: a stranger may send far more.
        config = {"acks": "all", "log_level": 0, "compression.type": "zstd", "message.max.bytes": _MOST_BYTES}
        config["message.timeout.ms"] = round(self._delivery_seconds * 1000)
        return Producer({"bootstrap.servers": self._bootstrap, **config})

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
                "log_level": 0,
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
        _require(time.monotonic() < deadline, f"no end of partitions {open_partitions} within {READ_SECONDS} s")
        for message in consumer.consume(500, timeout=0.05):
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                open_partitions.discard(message.partition())
            # Other errors report lost connections, which the client restores by itself.
    return found
