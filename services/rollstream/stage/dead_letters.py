"""Dead letters: messages that could not be handled. How they are kept and read; `replay.py` lists and replays them.

The value is the original's, unchanged, so that it can be handled when the cause is repaired. Headers say why it is
here. A process may crash between a dead letter and its commit, and write it twice: its identity is (group, topic,
partition, offset). A replay leaves a marker in dead-letters, which names the copy that it made.

The broker bounds what a message takes when it is compressed: 20 MB of zeros are a few kB. Of one that is too large for
dead-letters, the letter has the first 64 KiB and the sha256. It can't be replayed; the original stays where it lies.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import accumulate
from typing import Final, Literal, NamedTuple

from rollstream.bus.message import Headers, KafkaMessage, OutRecord
from rollstream.process.masking import SECRETS
from rollstream.schemas.codec import schema_id_of
from rollstream.schemas.record import writable
from rollstream.schemas.topics import MAX_RECORD_BYTES

REPLAYS: Final = "rollstream.replays"
"""Header of a replayed message: how often it was replayed. It keeps no other header of ours."""
KEPT_BYTES: Final = 2**16
"""What is kept of a message's key, of its value and of its headers, if all together are too large."""
_REPLAYED_AT: Final = "replayed_at"
_COPY_PARTITION: Final = "replayed.partition"
_COPY_OFFSET: Final = "replayed.offset"
_CUT_FROM: Final = "original.bytes"
_SHA256: Final = "original.sha256"
# dead-letters takes 1 MiB more than other topics: half of it is for the headers that say why.
_MAX_BYTES: Final = MAX_RECORD_BYTES + 2**19
_MAX_ERROR_CHARACTERS: Final = 4000
_OWN: Final = (
    "original.topic", "original.partition", "original.offset", "original.timestamp", "consumer.group", "error.class",
    "error.message", "attempts", "failed_at", "schema_id", _REPLAYED_AT, _COPY_PARTITION, _COPY_OFFSET, _CUT_FROM,
    _SHA256,
)  # fmt: skip


class LetterIdentity(NamedTuple):
    """Identifies a dead letter: the consumer group that could not handle it, and the message's place."""

    group: str
    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.group}/{self.topic}/{self.partition}/{self.offset}"


class Replay(NamedTuple):
    """What a marker says: when a message was put back, and where on its topic the copy lies."""

    at: str
    partition: int
    offset: int


Fingerprint = tuple[int, str] | None
"""Number of bytes and sha256 of a message's value; None for a null value."""


class Doubt(NamedTuple):
    """Why a letter's word does not hold.

    foreign: its consumer group does not read that topic. forged: other bytes lie at its place. expired: nothing lies
    there any more, so nobody can tell.
    """

    kind: Literal["foreign", "forged", "expired"]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A dead letter as it was read. `timestamp_ms` is the original's; `replays` counts its replays so far.

    `said_replays`: what markers say of it; a marker itself has one. `replayed_at`: when, if one of them holds.
    `key` and `value` have the first 64 KiB. `fingerprint` is that of the original's whole value, as the letter says,
    and `num_bytes` is what the letter has of it: less than `cut_from_bytes`, if that is given.
    """

    identity: LetterIdentity
    key: bytes | None
    value: bytes | None
    num_bytes: int | None
    fingerprint: Fingerprint
    timestamp_ms: int
    error_class: str
    error_message: str
    attempts: int
    failed_at: str
    schema_id: int | None
    replays: int
    said_replays: frozenset[Replay] = frozenset()
    replayed_at: str | None = None
    cut_from_bytes: int | None = None
    doubt: Doubt | None = None


def dead_letter(
    message: KafkaMessage, *, topic: str, group: str, error: Exception, failed_at: datetime, attempts: int = 1
) -> OutRecord:
    """`message`, or what fits of it, as a record for the dead-letters topic `topic`, with why in headers. Pure.

    `attempts`: how often it was tried; what can't be read is tried once.
    """
    schema_id = schema_id_of(message.value)
    kept, cut = _fitting(message)
    why = {
        "original.topic": message.topic,
        "original.partition": str(message.partition),
        "original.offset": str(message.offset),
        "original.timestamp": str(message.timestamp_ms),
        "consumer.group": group,
        "error.class": type(error).__name__,
        "error.message": SECRETS.masked(str(error))[:_MAX_ERROR_CHARACTERS],
        "attempts": str(attempts),
        "failed_at": failed_at.isoformat(),
        "schema_id": "" if schema_id is None else str(schema_id),
    }
    return OutRecord(topic=topic, key=kept.key, value=kept.value, headers=kept.headers + _encoded(why | cut))


def parse(message: KafkaMessage) -> DeadLetter | None:
    """A message of a dead-letters topic as a dead letter; None if it does not have our headers."""
    texts = {name: value.decode("utf-8", "replace") for name, value in message.headers if value is not None}
    try:
        cut_from = int(texts[_CUT_FROM]) if _CUT_FROM in texts else None
        return DeadLetter(
            identity=LetterIdentity(
                texts["consumer.group"],
                texts["original.topic"],
                int(texts["original.partition"]),
                int(texts["original.offset"]),
            ),
            key=_beginning(message.key),
            value=_beginning(message.value),
            num_bytes=None if message.value is None else len(message.value),
            fingerprint=fingerprint(message.value) if cut_from is None else (cut_from, texts[_SHA256]),
            timestamp_ms=int(texts["original.timestamp"]),
            error_class=texts["error.class"],
            error_message=texts["error.message"],
            attempts=int(texts["attempts"]),
            failed_at=texts["failed_at"],
            schema_id=int(texts["schema_id"]) if texts.get("schema_id") else None,
            replays=num_replays(message.headers),
            said_replays=_said_replays(texts),
            cut_from_bytes=cut_from,
        )
    except (KeyError, ValueError):
        return None


def fingerprint(value: bytes | None) -> Fingerprint:
    """By what bytes are known again without being kept."""
    return None if value is None else (len(value), hashlib.sha256(value).hexdigest())


def distinct(messages: Iterable[KafkaMessage]) -> list[DeadLetter]:
    """The dead letters among `messages`, each once, oldest first, with what their markers say.

    Letters of one identity with different bytes stay apart: at most one of them tells the truth.
    """
    replays: dict[LetterIdentity, set[Replay]] = {}
    oldest: dict[tuple[LetterIdentity, Fingerprint], DeadLetter] = {}
    for letter in (found for message in messages if (found := parse(message)) is not None):
        known = oldest.get((letter.identity, letter.fingerprint))
        if letter.said_replays:
            replays.setdefault(letter.identity, set()).update(letter.said_replays)
        elif known is None or _rank(letter) < _rank(known):
            oldest[letter.identity, letter.fingerprint] = letter
    letters = (replace(letter, said_replays=frozenset(replays.get(letter.identity, ()))) for letter in oldest.values())
    return sorted(letters, key=lambda letter: letter.failed_at)


def marker(letter: DeadLetter, replay: Replay, *, topic: str) -> OutRecord:
    """What says on the dead-letters topic `topic` that the letter was replayed. Pure."""
    why = {
        "original.topic": letter.identity.topic,
        "original.partition": str(letter.identity.partition),
        "original.offset": str(letter.identity.offset),
        "original.timestamp": str(letter.timestamp_ms),
        "consumer.group": letter.identity.group,
        "error.class": letter.error_class,
        "error.message": letter.error_message[:_MAX_ERROR_CHARACTERS],
        "attempts": str(letter.attempts),
        "failed_at": letter.failed_at,
        _REPLAYED_AT: replay.at,
        _COPY_PARTITION: str(replay.partition),
        _COPY_OFFSET: str(replay.offset),
    }
    return OutRecord(topic=topic, key=letter.key, value=None, headers=_encoded(why))


def num_replays(headers: Headers) -> int:
    """The counter in a header, which any client may have written: what is no count of ours says nothing."""
    text = next((value for name, value in reversed(headers) if name == REPLAYS and value is not None), b"")
    counted = text.decode("utf-8", "replace")
    return int(counted) if counted.isdecimal() and len(counted) < 10 else 0


def original_headers(headers: Headers) -> Headers:
    """The headers that are not ours."""
    return tuple(header for header in headers if header[0] not in _OWN)


def _said_replays(texts: dict[str, str]) -> frozenset[Replay]:
    if _REPLAYED_AT not in texts:
        return frozenset()
    return frozenset({Replay(texts[_REPLAYED_AT], int(texts[_COPY_PARTITION]), int(texts[_COPY_OFFSET]))})


def _rank(letter: DeadLetter) -> tuple[bool, str]:
    """The first of several of the same bytes counts; one that holds them all comes before one that only names them."""
    return letter.cut_from_bytes is not None, letter.failed_at


def _fitting(message: KafkaMessage) -> tuple[KafkaMessage, dict[str, str]]:
    """The message without headers of ours, cut if it is too large for dead-letters, and the headers that say so."""
    headers = original_headers(message.headers)
    key, value = message.key or b"", message.value or b""
    sizes = list(accumulate(len(name.encode()) + len(text or b"") for name, text in headers))
    if len(key) + len(value) + max(sizes, default=0) <= _MAX_BYTES:
        return message._replace(headers=headers), {}
    cut = {_CUT_FROM: str(len(value)), _SHA256: hashlib.sha256(value).hexdigest()}
    first_headers = headers[: bisect_right(sizes, KEPT_BYTES)]
    return message._replace(key=key[:KEPT_BYTES], value=value[:KEPT_BYTES], headers=first_headers), cut


def _beginning(text: bytes | None) -> bytes | None:
    return None if text is None else text[:KEPT_BYTES]


def _encoded(texts: dict[str, str]) -> Headers:
    return tuple((name, writable(text).encode()) for name, text in texts.items())
