"""A topic that gets the rollouts of finished batches, each row as a JSON object, once.

Kafka's producer repeats nothing by itself, but a process may be killed between a record and the note that the batch is
there. So the ends of the topic are noted before the first record, and a batch that is published again passes over the
rows whose keys came after those ends.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.cloud_events import attributes
from rollstream.bus.deliveries import Deliveries
from rollstream.bus.message import OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.bus.reader import TopicReader
from rollstream.offline.continuous.taken import TakenRows
from rollstream.offline.continuous.topic_source import require_topic
from rollstream.process.crash_points import crash_point
from rollstream.process.settings.base import KafkaSettings
from rollstream.rows.open import open_rows
from rollstream.rows.row import ReadRow
from rollstream.rows.write import json_line
from rollstream.schemas.topics import MAX_RECORD_BYTES

_LOG = logging.getLogger(__name__)
_CLIENT: Final = "collect"


class Sink:
    """Publishes batches to one topic, which must exist."""

    def __init__(self, kafka: KafkaSettings, run: str, topic: str) -> None:
        self._kafka = kafka
        self._run = run
        self._topic = topic
        # Not only after the first batch.
        require_topic(kafka, topic)

    def publish(self, number: int, output: Path, taken: TakenRows) -> int:
        """Publish the rows of a batch that are not there yet; returns their number when all are delivered."""
        begun = taken.sink_ends(number)
        there = set[bytes]()
        if begun is None:
            ends = {partition: end for partition, (_, end) in KafkaAdmin(self._kafka).bounds(self._topic).items()}
            taken.note_sink_ends(number, ends)
        else:
            there = set(self._keys_since(begun, f"{taken.name}/{number}/".encode()))
        deliveries = Deliveries()
        with Publisher(self._kafka, client_id=_CLIENT) as publisher:
            for record in self._records(f"{taken.name}/{number}", output):
                if record.key not in there:
                    publisher.send_blocking(record, deliveries)
                    crash_point("row_published")
            deliveries.wait()
        return deliveries.num_sent

    def _records(self, batch: str, output: Path) -> Iterator[OutRecord]:
        for row in open_rows(output):
            if not isinstance(row, ReadRow):
                continue
            value = json_line(row.fields).rstrip()
            if len(value) > MAX_RECORD_BYTES:
                _LOG.warning(
                    "%s has %d bytes and is not published: the bound is %d; it stays in the file",
                    row.where, len(value), MAX_RECORD_BYTES,
                )  # fmt: skip
                continue
            key = f"{batch}/{row.fields['data_idx']}/{row.fields['sample_idx']}"
            yield OutRecord(
                topic=self._topic, key=key.encode(), value=value, headers=attributes(self._run, "CollectedRollout")
            )

    def _keys_since(self, ends: dict[int, int], batch: bytes) -> Iterator[bytes]:
        """The keys of the batch's records; others may write there too, and as much as they like."""
        start = {(self._topic, partition): end for partition, end in ends.items()}
        with TopicReader(self._kafka, [self._topic], start=start, monitor_group=f"{self._run}.readers") as reader:
            for message in reader.to_end():
                if message.key is not None and message.key.startswith(batch):
                    yield message.key
