"""`Run`: one run on its cluster. It gives topic names, codecs, readers, publishers and encoded records.

Code that has a `Run` needs no topic names and no registry:

    run = Run(settings)
    with run.publisher("client") as publisher:
        publisher.publish_soon(run.out_record(PROMPTS, prompt)).result()
    for scored in run.read(SCORED):
        ...
"""

import copy
import logging
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final, Self, TypeVar

from rollstream.bus.admin import CommittedOffsets, KafkaAdmin
from rollstream.bus.clients import BROKER_ANSWERS_SECONDS, cluster_topics
from rollstream.bus.cloud_events import attributes
from rollstream.bus.message import Headers, KafkaMessage, OutRecord, Partition
from rollstream.bus.places import PlaceReader
from rollstream.bus.publisher import Publisher
from rollstream.bus.reader import TopicReader
from rollstream.process.settings.base import StageSettings
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import BrokerError, ConfigurationError, DecodeError
from rollstream.schemas.ids import checked_run
from rollstream.schemas.record import Record
from rollstream.schemas.registry import PackagedRegistry, SchemaRegistry
from rollstream.schemas.topics import Topic

R = TypeVar("R", bound=Record)

_LOG = logging.getLogger(__name__)
_START_SECONDS: Final = 30.0


class Run:
    """A run: a topic prefix on a cluster, and the schema registry for its records."""

    def __init__(self, settings: StageSettings) -> None:
        self.name = settings.run
        self.model = settings.model
        self.kafka = settings.kafka
        self._registry_url = settings.registry_url
        self._codecs: dict[str, AvroCodec[Any]] = {}

    def sibling(self, name: str) -> Self:
        """Another run on the same cluster; its records are read with this run's registry."""
        other = copy.copy(self)
        other.name = checked_run(name)
        return other

    def topic(self, topic: Topic[Any]) -> str:
        """The topic's name on the cluster."""
        return topic.of(self.name)

    def group(self, members: str) -> str:
        """Name of a consumer group or transactional id of this run, e.g. `demo.generators`."""
        return f"{self.name}.{members}"

    def codec(self, topic: Topic[R]) -> AvroCodec[R]:
        """The codec of the topic's records; it is made at the first call and kept."""
        if topic.name not in self._codecs:
            self._codecs[topic.name] = AvroCodec(topic, self._registry)
        return self._codecs[topic.name]

    def make_codecs(self, *topics: Topic[Any]) -> None:
        """Make these topics' codecs now, so that a process whose registry does not answer fails at its start."""
        for topic in topics:
            self.codec(topic)

    def out_record(self, topic: Topic[R], record: R, headers: Headers = ()) -> OutRecord:
        """`record`, encoded and keyed for its topic, with its CloudEvents attributes; raises `EncodeError`."""
        key = self.name if topic.key_of is None else topic.key_of(record)
        return self.out_encoded(topic, key.encode(), self.codec(topic).encode(record), headers)

    def out_encoded(self, topic: Topic[R], key: bytes, value: bytes, headers: Headers = ()) -> OutRecord:
        """The same for a record that was encoded before."""
        assert topic.record is not None, "a topic of raw bytes has no type of event"
        event = attributes(self.name, topic.record.__name__)
        return OutRecord(topic=self.topic(topic), key=key, value=value, headers=(*event, *headers))

    def publisher(self, client_id: str) -> Publisher:
        """A publisher for this cluster; use it as a context manager."""
        return Publisher(self.kafka, client_id=client_id)

    def reader(
        self,
        *topics: Topic[Any],
        start: Mapping[Partition, int] | None = None,
        monitor_group: str | None = None,
        follows: bool = False,
        only: int | None = None,
    ) -> TopicReader:
        """A reader of these topics, from their start unless told otherwise; use it as a context manager.

        `follows`: it reads on for long after their end. `only`: this partition of each alone.
        """
        names = [self.topic(topic) for topic in topics]
        return TopicReader(self.kafka, names, start=start, monitor_group=monitor_group, follows=follows, only=only)

    def place_reader(self) -> PlaceReader:
        """A reader of single messages; use it as a context manager."""
        return PlaceReader(self.kafka, self.group("readers"))

    def read_with_messages(self, topic: Topic[R]) -> Iterator[tuple[KafkaMessage, R]]:
        """Every readable record up to the topic's end, each with the message that it came in.

        An unreadable record is logged and skipped: the stages put it into dead-letters. `history/passing.py` reads the
        two topics where every record counts.
        """
        with self.reader(topic) as reader:
            for message in reader.to_end():
                record = self.decoded(topic, message)
                if record is not None:
                    yield message, record

    def read(self, topic: Topic[R]) -> Iterator[R]:
        """The same records without their messages, see `read_with_messages`."""
        return (record for _, record in self.read_with_messages(topic))

    def decoded(self, topic: Topic[R], message: KafkaMessage) -> R | None:
        """The record in `message`; None if it can't be read, see `read_with_messages`."""
        try:
            return self.codec(topic).decode(message.checked_value())
        except DecodeError as error:
            _LOG.warning("skipped an unreadable record: %s", error, extra=message.place())
            return None

    def bounds(self, topic: Topic[Any]) -> dict[Partition, tuple[int, int]]:
        """First and next offset of each partition of the topic at this moment."""
        name = self.topic(topic)
        return {(name, number): bounds for number, bounds in self.admin().bounds(name).items()}

    def ends(self, topic: Topic[Any]) -> dict[Partition, int]:
        """The next offset of each partition at this moment. A reader that starts there sees only later records."""
        return {partition: end for partition, (_, end) in self.bounds(topic).items()}

    def committed_by(self, members: str) -> CommittedOffsets:
        """What a consumer group of this run has committed, for those who ask again and again; the caller closes it."""
        return CommittedOffsets(self.kafka, self.group(members))

    def require_topics(self, *topics: Topic[Any], can_wait: bool = True) -> None:
        """Raise `ConfigurationError` naming the topics that are missing, `BrokerError` if no broker answers in 30 s.

        For the start of a stage: before it loads what takes long. If it can't wait, the broker has 5 s.
        """
        try:
            there = cluster_topics(self.kafka)
        except BrokerError as error:
            if not can_wait:
                raise
            left = _START_SECONDS - BROKER_ANSWERS_SECONDS
            _LOG.warning("%s; waiting for %g s more", error, left)
            there = cluster_topics(self.kafka, left)
        missing = [self.topic(topic) for topic in topics if self.topic(topic) not in there]
        if missing:
            raise ConfigurationError(f"no topics {', '.join(missing)}: make them with `rollstream topics create`")

    def admin(self) -> KafkaAdmin:
        return KafkaAdmin(self.kafka)

    @cached_property
    def _registry(self) -> SchemaRegistry:
        if self._registry_url is None:
            return PackagedRegistry()
        # Imported here: its HTTP client is needed only by runs that have a registry.
        from rollstream.schemas.registry_url import ConfluentRegistry

        return ConfluentRegistry(self._registry_url.get_secret_value(), run=self.name)
