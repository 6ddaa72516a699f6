"""Administration of a run's topics: create, describe, delete, and ask for their offsets."""

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Final

import confluent_kafka
from confluent_kafka import IsolationLevel, KafkaError, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

from rollstream.bus.clients import cluster_topics, know_brokers, made, quiet_config
from rollstream.bus.commit_notes import ids_in, is_of_topic, note_in
from rollstream.bus.offsets import Commit
from rollstream.bus.publisher import MAX_MESSAGE_BYTES
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.errors import BrokerError, ConfigurationError, NoLeaderError
from rollstream.schemas.topics import DEAD_LETTERS, STREAM_TOPICS, TOPIC_BYTES, TOPICS, Retention, Topic

_TIMEOUT_SECONDS = 30.0
_DAY_MS: Final = 24 * 3600 * 1000
# Operators also write the largest number for "for ever"; no date lies that far back.
_FOR_EVER_MS: Final = 100 * 365 * _DAY_MS
_RETENTION: Final[dict[Retention, dict[str, str]]] = {
    "time_and_size": {"cleanup.policy": "delete", "retention.ms": str(7 * _DAY_MS), "retention.bytes": str(50 * 2**30)},
    # As long as feedback may join an answer, and a day more.
    "time": {"cleanup.policy": "delete", "retention.ms": str(7 * _DAY_MS), "retention.bytes": "-1"},
    # Weights and ledger: the surviving branch is computed from the first entry on.
    "everything": {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"},
    # Kafka compacts only segments that are full, by default at a gigabyte or after a week. Until then a reader gets all
    # the older values too. A segment must hold the largest record.
    "compacted": {
        "cleanup.policy": "compact",
        "segment.bytes": str(2 * TOPIC_BYTES),
        "min.cleanable.dirty.ratio": "0.1",
    },
    # Progress of samples: tombstones end it, and what nobody ended is worth nothing after a day.
    "compacted_for_a_day": {
        "cleanup.policy": "compact,delete",
        "segment.bytes": str(2 * TOPIC_BYTES),
        "min.cleanable.dirty.ratio": "0.1",
        "retention.ms": str(_DAY_MS),
        "retention.bytes": "-1",
    },
    "long": {"cleanup.policy": "delete", "retention.ms": str(90 * _DAY_MS), "retention.bytes": "-1"},
}
_NO_LEADER: Final = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    # A new leader does not know yet which of its records are committed (KIP-207).
    KafkaError.OFFSET_NOT_AVAILABLE,
)
_COORDINATOR_MOVES: Final = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
_NO_ANSWER: Final = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
_IS_IT_UP: Final = "is Kafka up? `rollstream up` starts one"


def _is_moving(error: BaseException) -> bool:
    is_of_client = isinstance(error, confluent_kafka.KafkaException)
    return error.args[0].code() in _COORDINATOR_MOVES if is_of_client else isinstance(error, NoLeaderError)


until_settled = retry(
    retry=retry_if_exception(_is_moving), wait=wait_fixed(0.1), stop=stop_after_delay(_TIMEOUT_SECONDS), reraise=True
)
"""Decorator: call again while a leader or a coordinator moves. After 30 s the error is raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic as the cluster has it."""

    name: str
    topic_id: str
    num_partitions: int
    replication: int
    num_records: int
    """End offsets minus start offsets. An upper bound, since transaction markers take offsets too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterIdentity:
    """Ids of the cluster and of topics. A checkpoint keeps them, since its offsets are valid only there."""

    cluster_id: str
    topic_ids: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShape:
    """Which topic it is, since one that is made anew has another id, and its partitions: 0 up to this number."""

    topic_id: str
    num_partitions: int
    replication: int


class AskedTopics:
    """A question about topics that is under way."""

    def __init__(self, futures: Mapping[str, "Future[Any]"]) -> None:
        self._futures = futures

    @property
    def is_answered(self) -> bool:
        """Whether `shape` waits for nothing any more."""
        return all(future.done() for future in self._futures.values())

    def shape(self, topic: str) -> TopicShape:
        """The answer. Raises `ConfigurationError` for a topic that does not exist, `BrokerError` without an answer."""
        found = result_of(self._futures[topic], f"describing {topic}")
        replication = max((len(part.replicas) for part in found.partitions), default=0)
        return TopicShape(topic_id=str(found.topic_id), num_partitions=len(found.partitions), replication=replication)


class KafkaAdmin:
    """Administration of one run's topics."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._config = quiet_config(kafka)
        self._client = made(AdminClient, self._config, kafka)
        self._knows_brokers = False

    def create_topics(self, run: str, *, partitions: int = 4, with_streams: bool = False) -> list[str]:
        """Create the topics that are missing, with replication 3 if there are three brokers. Returns their names.

        The controller confirms a topic before all brokers know it. This returns when the broker that it asks serves it.
        `with_streams`: those of `rc-actor` too.
        """
        brokers = len(self._cluster().nodes)
        replication = 3 if brokers >= 3 else 1
        new = [_new_topic(topic, run, partitions, replication) for topic in (*TOPICS, *STREAM_TOPICS * with_streams)]
        created = []
        for name, future in self._client.create_topics(new, request_timeout=_TIMEOUT_SECONDS).items():
            if _is_new(name, future):
                created.append(name)
        self._wait_until_served(created)
        return created

    def delete_topics(self, run: str) -> list[str]:
        """Delete every topic of the run; returns the names that were there."""
        names = self._existing(run)
        if names:
            for name, future in self._client.delete_topics(names, request_timeout=_TIMEOUT_SECONDS).items():
                result_of(future, f"deleting {name}")
        return names

    def describe_topics(self, run: str) -> list[TopicDescription]:
        """The run's topics that exist."""
        names = self._existing(run)
        asked = self.ask_topics(names) if names else None
        return [self._describe(name, asked.shape(name)) for name in names] if asked else []

    def ask_topics(self, topics: list[str], timeout_seconds: float = _TIMEOUT_SECONDS) -> AskedTopics:
        """Ask about topics without waiting for the answer; after the timeout the answer is an error."""
        return AskedTopics(self._client.describe_topics(TopicCollection(topics), request_timeout=timeout_seconds))

    def shape(self, topic: str) -> TopicShape:
        """Id and partitions of a topic. Raises as `AskedTopics.shape` does."""
        return self.ask_topics([topic]).shape(topic)

    def identity(self, topics: list[str]) -> ClusterIdentity:
        ids = {topic: self.shape(topic).topic_id for topic in topics}
        return ClusterIdentity(cluster_id=str(self._cluster().cluster_id), topic_ids=ids)

    def kept_seconds(self, topics: list[str]) -> float | None:
        """How long these topics keep a record at most; None: for ever. A size that they may have is not looked at.

        A segment is deleted as a whole, when its newest record is old enough.
        """
        found = self.configs(topics).values()
        return longest_kept_seconds((int(one["retention.ms"]), int(one["segment.ms"])) for one in found)

    def configs(self, topics: list[str]) -> dict[str, dict[str, str]]:
        """The settings of these topics, defaults too, by their names, such as retention.ms."""
        asked = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics]
        futures = self._client.describe_configs(asked, request_timeout=_TIMEOUT_SECONDS)
        found = {
            one.name: result_of(future, f"asking for the settings of {one.name}") for one, future in futures.items()
        }
        return {topic: {name: str(entry.value) for name, entry in of.items()} for topic, of in found.items()}

    def committed_offsets(self, group: str, topic: str) -> dict[int, int]:
        """The offset that the group has committed for each partition, asked once."""
        with closing(CommittedOffsets(self._kafka, group)) as committed:
            return committed.of(topic, self.shape(topic))

    def lag(self, group: str, topic: str) -> int | None:
        """Records that the group has not committed yet; None: it has never committed on this topic.

        What expired does not count; of a partition without a commit everything does.
        """
        committed = self.committed_offsets(group, topic)
        if not committed:
            return None
        bounds = self.bounds(topic).items()
        return sum(max(0, end - max(start, committed.get(number, start))) for number, (start, end) in bounds)

    def end_offsets(self, topic: str, num_partitions: int) -> dict[int, int]:
        """End of each partition as a read_committed reader sees it.

        It covers all that was committed before, also where the leader changed meanwhile (KIP-207).
        """
        return self._offsets(topic, num_partitions, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)

    def offsets_at(self, topic: str, timestamp_ms: int) -> dict[int, int]:
        """The first offset of each partition that was appended then or later; the end if there is none."""
        count = self.shape(topic).num_partitions
        # -1 stands for none. The end is asked first: a record that comes meanwhile must not be left out.
        ends = self._offsets(topic, count, OffsetSpec.latest())
        found = self._offsets(topic, count, OffsetSpec.for_timestamp(timestamp_ms))
        return {number: offset if offset >= 0 else ends[number] for number, offset in found.items()}

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """First and next offset of each partition. A reader's own client would answer only between two fetches."""
        return self._bounds(topic, self.shape(topic).num_partitions)

    def _bounds(self, topic: str, num_partitions: int) -> dict[int, tuple[int, int]]:
        starts = self._offsets(topic, num_partitions, OffsetSpec.earliest())
        ends = self._offsets(topic, num_partitions, OffsetSpec.latest())
        return {number: (starts[number], ends[number]) for number in range(num_partitions)}

    def _wait_until_served(self, names: list[str]) -> None:
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while missing := set(names) - self._served():
            if time.monotonic() > deadline:
                created = ", ".join(sorted(missing))
                raise BrokerError(f"{created}: created, but not served after {_TIMEOUT_SECONDS:g} s")
            time.sleep(0.05)

    def _served(self) -> set[str]:
        """Topics whose partitions all have a leader, according to the broker that is asked."""
        try:
            topics = self._client.list_topics(timeout=_TIMEOUT_SECONDS).topics
        except confluent_kafka.KafkaException as error:
            raise BrokerError(f"no broker answered: {what_it_says(error)}") from error
        return {
            name
            for name, topic in topics.items()
            if topic.error is None and all(part.error is None for part in topic.partitions.values())
        }

    def _existing(self, run: str) -> list[str]:
        there = cluster_topics(self._kafka)
        return [topic.of(run) for topic in (*TOPICS, *STREAM_TOPICS) if topic.of(run) in there]

    @until_settled
    def _offsets(
        self,
        topic: str,
        num_partitions: int,
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[int, int]:
        if not self._knows_brokers:
            know_brokers(self._client, topic)
            self._knows_brokers = True
        asked = {TopicPartition(topic, number): spec for number in range(num_partitions)}
        futures = self._client.list_offsets(asked, isolation_level=isolation, request_timeout=_TIMEOUT_SECONDS)
        try:
            return {part.partition: result_of(future, f"offsets of {topic}").offset for part, future in futures.items()}
        except NoLeaderError:
            # After a leader change the same client may ask with the old epoch for ever.
            self._client = made(AdminClient, self._config, self._kafka)
            self._knows_brokers = False
            raise

    def _describe(self, name: str, shape: TopicShape) -> TopicDescription:
        bounds = self._bounds(name, shape.num_partitions).values()
        return TopicDescription(name=name, num_records=sum(end - start for start, end in bounds), **asdict(shape))

    def _cluster(self) -> Any:
        return result_of(self._client.describe_cluster(request_timeout=_TIMEOUT_SECONDS), "describing the cluster")


def longest_kept_seconds(times: Iterable[tuple[int, int]]) -> float | None:
    """How long records are kept, by (retention.ms, segment.ms) of their topics; None: for ever."""
    kept_ms = max(_FOR_EVER_MS if retention_ms < 0 else retention_ms + segment_ms for retention_ms, segment_ms in times)
    return None if kept_ms >= _FOR_EVER_MS else kept_ms / 1000


class CommittedOffsets:
    """What one consumer group has committed. Its client stays open until `close`, for those who ask again and again.

    `shape`: of the topic as it is now. A commit of a topic of this name before it is none, see `bus/commits.py`.
    """

    def __init__(self, kafka: KafkaSettings, group: str) -> None:
        self._group = group
        # Not the admin client: librdkafka 2.16 crashes the process if the group's coordinator moves or loads meanwhile.
        config = {**quiet_config(kafka), "group.id": group, "enable.auto.commit": False}
        self._client = made(confluent_kafka.Consumer, config, kafka)

    def of(self, topic: str, shape: TopicShape) -> dict[int, int]:
        """The offset that the group has committed for each partition; partitions without a commit are absent."""
        return {number: commit.offset for number, commit in self.commits(topic, shape).items()}

    def commits(self, topic: str, shape: TopicShape) -> dict[int, Commit]:
        """The same with the notes, which may be anybody's; see `commit_notes.marks_in`."""
        found = [part for part in self._found(topic, shape) if is_of_topic(metadata_in(part), shape.topic_id)]
        return {part.partition: Commit(part.offset, note_in(metadata_in(part))) for part in found}

    def topic_ids(self, topic: str, shape: TopicShape) -> set[tuple[str, str]]:
        """The topics and ids that are noted beside what is committed of `topic`, or of one of its name before."""
        return {pair for part in self._found(topic, shape) for pair in ids_in(note_in(metadata_in(part))).items()}

    def _found(self, topic: str, shape: TopicShape) -> list[TopicPartition]:
        self._client.poll(0)  # takes what the client reports about its connections: it would pile up
        try:
            found = committed_of(self._client, [TopicPartition(topic, n) for n in range(shape.num_partitions)])
        except confluent_kafka.KafkaException as error:
            raise BrokerError(f"offsets of group {self._group}: {what_it_says(error)}") from error
        return [part for part in found if part.offset >= 0]

    def close(self) -> None:
        self._client.close()


def _is_new(name: str, future: "Future[Any]") -> bool:
    try:
        result_of(future, f"creating {name}")
    except BrokerError as error:
        cause = error.__cause__
        if isinstance(cause, confluent_kafka.KafkaException) and (
            cause.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
        ):
            return False
        raise
    return True


@until_settled
def committed_of(client: confluent_kafka.Consumer, partitions: list[TopicPartition]) -> list[TopicPartition]:
    """What the client's group has committed; waits while the group's coordinator moves."""
    found: list[TopicPartition] = client.committed(partitions, timeout=_TIMEOUT_SECONDS)
    return found


def metadata_in(part: TopicPartition) -> str | None:
    """What is noted beside a commit; None if somebody wrote what can't be read."""
    try:
        metadata: str | None = part.metadata
    except UnicodeDecodeError:
        return None
    return metadata


def result_of(future: "Future[Any]", doing: str) -> Any:
    """What a question to the cluster gave. Raises `ConfigurationError` for no such topic, else `BrokerError`."""
    # Not `result`, which raises the error that the future keeps: see `clients.admin_client`.
    try:
        error = future.exception(_TIMEOUT_SECONDS)
    except TimeoutError as late:
        raise BrokerError(f"{doing}: no broker answered within {_TIMEOUT_SECONDS:g} s; {_IS_IT_UP}") from late
    if not isinstance(error, confluent_kafka.KafkaException):
        return future.result()
    if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        raise ConfigurationError(f"{doing}: no such topic; make it with `rollstream topics create`") from error
    if error.args[0].code() in _NO_LEADER:
        raise NoLeaderError(f"{doing}: {what_it_says(error)}") from error
    raise BrokerError(f"{doing}: {what_it_says(error)}") from error


def what_it_says(error: confluent_kafka.KafkaException) -> str:
    """The client's message, with what to check if no broker answered."""
    said = str(error.args[0].str())
    return f"{said}; {_IS_IT_UP}" if error.args[0].code() in _NO_ANSWER else said


def _new_topic(topic: Topic[Any], run: str, partitions: int, replication: int) -> NewTopic:
    is_dead_letters = topic is DEAD_LETTERS
    return NewTopic(
        topic.of(run),
        num_partitions=1 if topic.single_partition else partitions,
        replication_factor=replication,
        config={
            **_RETENTION[topic.retention],
            # The broker's clock: the clocks of the machines that publish differ.
            "message.timestamp.type": "LogAppendTime",
            "min.insync.replicas": "2" if replication >= 3 else "1",
            # A replica that is behind must not become the leader: confirmed records would be lost.
            "unclean.leader.election.enable": "false",
            "max.message.bytes": str(MAX_MESSAGE_BYTES if is_dead_letters else TOPIC_BYTES),
        },
    )
