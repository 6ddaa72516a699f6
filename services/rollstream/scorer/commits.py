"""The scorers' commits: each says of which topic it is, as those of the generators do; see `bus/commits.py`.

Faust commits without metadata, and begins at whatever is committed. `app.py` puts these two between. Commits are of
aiokafka's kind: partition → offset and metadata.
"""

from collections.abc import Mapping
from typing import Any

from rollstream.bus.commit_notes import is_of_topic, metadata_of
from rollstream.bus.commits import warn_of_stranger
from rollstream.bus.topic_watch import TopicWatch


def noted(commits: Mapping[Any, Any], watch: TopicWatch) -> dict[Any, Any]:
    """The same commits with the ids of their topics."""
    return {
        partition: commit._replace(metadata=metadata_of(watch.topic_id(partition.topic), ""))
        for partition, commit in commits.items()
    }


def counted(commits: Mapping[Any, Any], watch: TopicWatch) -> dict[Any, int]:
    """The offsets of those commits that are of the topics that are read."""
    offsets = {}
    for partition, commit in commits.items():
        if is_of_topic(commit.metadata, watch.topic_id(partition.topic)):
            offsets[partition] = commit.offset
        else:
            warn_of_stranger((partition.topic, partition.partition))
    return offsets
