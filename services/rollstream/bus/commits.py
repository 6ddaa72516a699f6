"""What a member of a group commits, and where it begins: each commit says of which topic it is.

Kafka keeps commits by the topic's name. A member that has not noticed yet that a topic was made anew commits offsets of
the old one, and whoever read on from there would pass over the first records of the new one. So a commit carries the
topic's id in its metadata (`commit_notes.py`), and one of another id does not count.
"""

import logging
from collections.abc import Mapping, Sequence

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

from rollstream.bus.admin import committed_of, metadata_in, what_it_says
from rollstream.bus.commit_notes import is_of_topic, metadata_of, note_in
from rollstream.bus.message import Partition
from rollstream.bus.offsets import Commit
from rollstream.bus.topic_watch import TopicWatch
from rollstream.schemas.errors import BrokerError

_LOG = logging.getLogger(__name__)


def as_commits(commits: Mapping[Partition, Commit], watch: TopicWatch) -> list[TopicPartition]:
    """Next offsets and marks, as the client commits them."""
    return [
        TopicPartition(topic, number, commit.offset, metadata=metadata_of(watch.topic_id(topic), commit.note))
        for (topic, number), commit in commits.items()
    ]


def confirmed(parts: Sequence[TopicPartition], error: KafkaError | None) -> dict[Partition, Commit]:
    """What the broker has taken of the commits that `as_commits` made; `error`: of all of them."""
    return {
        (part.topic, part.partition): Commit(part.offset, note_in(metadata_in(part)))
        for part in parts
        if (error or part.error) is None
    }


def beginnings(
    client: confluent_kafka.Consumer, partitions: Sequence[TopicPartition], watch: TopicWatch
) -> list[TopicPartition]:
    """Where to begin: at the commit, which the client asks for, or at the start if it is of another topic.

    Raises `BrokerError` if the group's coordinator does not answer.
    """
    try:
        committed = committed_of(client, [TopicPartition(part.topic, part.partition) for part in partitions])
    except confluent_kafka.KafkaException as error:
        raise BrokerError(f"asking where to begin: {what_it_says(error)}") from error
    strange = {
        (part.topic, part.partition)
        for part in committed
        if not is_of_topic(metadata_in(part), watch.topic_id(part.topic))
    }
    for partition in strange:
        warn_of_foreign_commit(partition)
    return [
        TopicPartition(part.topic, part.partition, OFFSET_BEGINNING)
        if (part.topic, part.partition) in strange
        else part
        for part in partitions
    ]


def warn_of_foreign_commit(partition: Partition) -> None:
    """Log that a commit does not count."""
    _LOG.warning("%s/%d is read from its start: what is committed is of a topic of this name before it", *partition)
