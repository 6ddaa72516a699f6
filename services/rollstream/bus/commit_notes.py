"""What a member of a consumer group notes beside the offset that it commits: marks of records in work. Pure.

Kafka keeps a text of up to `offset.metadata.max.bytes`, 4096 by default, with each committed offset. Whoever asks how
far a group is gets it in the same answer. It is the id of the topic (`commits.py` says why), and if records are marked
a space and a note: `mark:offset,offset;mark:offset`. The generators mark a prompt with the oldest weight version that
has sampled of it. The scorers mark nothing. The trainer notes the ids of all topics that it reads, `topic=id,topic=id`:
with a topic go the commits of it, and those of the others still say which one it was.
"""

import re
from collections.abc import Mapping
from typing import Final

MAX_NOTE_BYTES: Final = 1000
_NUMBER: Final = "[0-9]{1,18}"
_MARK: Final = f"{_NUMBER}:{_NUMBER}(?:,{_NUMBER})*"
_NOTE: Final = re.compile(f"{_MARK}(?:;{_MARK})*")


def note_of(marks: Mapping[int, int]) -> str:
    """`marks`: offset → mark. The lowest marks come first; those that do not fit into the bound are left out."""
    note, latest = "", None
    for offset, mark in sorted(marks.items(), key=lambda pair: (pair[1], pair[0])):
        more = f",{offset}" if mark == latest else f"{';' if note else ''}{mark}:{offset}"
        if len(note) + len(more) > MAX_NOTE_BYTES:
            break
        note, latest = note + more, mark
    return note


def ids_note(topic_ids: Mapping[str, str]) -> str:
    return ",".join(f"{topic}={topic_id}" for topic, topic_id in sorted(topic_ids.items()))


def ids_in(note: str) -> dict[str, str]:
    """Topic → id; what is not such a note names none."""
    pairs = (part.partition("=") for part in note.split(","))
    return {topic: topic_id for topic, _, topic_id in pairs if topic and topic_id}


def metadata_of(topic_id: str, note: str) -> str:
    return f"{topic_id} {note}" if note else topic_id


def ended(metadata: str) -> str:
    """As other clients than confluent-kafka must write it.

    confluent-kafka reads up to a NUL, which it writes itself, and without one reads on in memory that is not its own.
    """
    return metadata + "\0"


def topic_id_in(metadata: str | None) -> str:
    """The id of the topic; empty if the metadata is."""
    # confluent-kafka ends what it writes with a NUL, and hides it from whoever reads with it.
    return (metadata or "").removesuffix("\0").partition(" ")[0]


def is_of_topic(metadata: str | None, topic_id: str) -> bool:
    """Whether a commit counts for the topic with this id: not if it names another one.

    One that names none counts. Tools that reset offsets write none, and so did members of older versions: during an
    update nothing that they have done may be done again, or be waited for. Kafka deletes commits with their topic, so
    such a commit is of a topic before only if one of them was late.
    """
    return topic_id_in(metadata) in ("", topic_id)


def note_in(metadata: str | None) -> str:
    """The note; empty without one."""
    return (metadata or "").removesuffix("\0").partition(" ")[2]


def marks_in(note: str) -> dict[int, int]:
    """Offset → mark; empty if it is not such a note: anybody who may commit for the group may have written it."""
    if len(note) > MAX_NOTE_BYTES or not _NOTE.fullmatch(note):
        return {}
    pairs = (part.split(":") for part in note.split(";"))
    return {int(offset): int(mark) for mark, offsets in pairs for offset in offsets.split(",")}
