"""Dead letters: messages that could not be handled. How they are kept, listed and replayed.

The value is the original's, unchanged, so that it can be handled when the cause is repaired. Headers say why it is
here. A process may crash between a dead letter and its commit, and write it twice: its identity is (group, topic,
partition, offset). A replay publishes the message on its topic again, counts that in a header, and leaves a marker in
dead-letters.

The broker bounds what a message takes when it is compressed: 20 MB of zeros are a few kB. Of one that is too large for
dead-letters, the letter has the first 64 KiB and the sha256. It can't be replayed; the original stays where it lies.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate
from typing import Final, NamedTuple

from rollstream.bus.deliveries import DELIVERY_TIMEOUT_SECONDS
from rollstream.bus.message import Headers, Message, OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.bus.run import Run
from rollstream.process.masking import SECRETS
from rollstream.schemas.codec import schema_id_of
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.record import writable
from rollstream.schemas.topics import DEAD_LETTERS, MAX_RECORD_BYTES

MAX_REPLAYS: Final = 3
REPLAYS: Final = "rollstream.replays"
"""Header of a replayed message: how often it was replayed. It keeps no other header of ours."""
KEPT_BYTES: Final = 2**16
"""What is kept of a message's key, of its value and of its headers, if all together are too large."""
_REPLAYED_AT: Final = "replayed_at"
_CUT_FROM: Final = "original.bytes"
_SHA256: Final = "original.sha256"
# dead-letters takes 1 MiB more than other topics: half of it is for the headers that say why.
_MAX_BYTES: Final = MAX_RECORD_BYTES + 2**19
_MAX_ERROR_CHARACTERS: Final = 4000
# Longer than the publisher's own bound, whose error says more.
_PUBLISH_SECONDS: Final = DELIVERY_TIMEOUT_SECONDS + 10
_OWN: Final = (
    "original.topic", "original.partition", "original.offset", "original.timestamp", "consumer.group", "error.class",
    "error.message", "attempts", "failed_at", "schema_id", _REPLAYED_AT, _CUT_FROM, _SHA256,
)  # fmt: skip


class Identity(NamedTuple):
    """Identifies a dead letter: the consumer group that could not handle it, and the message's place."""

    group: str
    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.group}/{self.topic}/{self.partition}/{self.offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A dead letter as it was read. `timestamp_ms` is the original's; `replays` counts its replays so far.

    `cut_from_bytes`: the size of the original's value, if the letter has only its beginning.
    """

    identity: Identity
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    error_class: str
    error_message: str
    attempts: int
    failed_at: str
    schema_id: int | None
    replays: int
    replayed_at: str | None = None
    cut_from_bytes: int | None = None


def dead_letter(
    message: Message, *, topic: str, group: str, error: Exception, attempts: int, failed_at: datetime
) -> OutRecord:
    """`message`, or what fits of it, as a record for the dead-letters topic `topic`, with why in headers. Pure."""
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


def parse(message: Message) -> DeadLetter | None:
    """A message of a dead-letters topic as a dead letter; None if it does not have our headers."""
    texts = {name: value.decode("utf-8", "replace") for name, value in message.headers if value is not None}
    try:
        return DeadLetter(
            identity=Identity(
                texts["consumer.group"],
                texts["original.topic"],
                int(texts["original.partition"]),
                int(texts["original.offset"]),
            ),
            key=message.key,
            value=message.value,
            headers=_original_headers(message.headers),
            timestamp_ms=int(texts["original.timestamp"]),
            error_class=texts["error.class"],
            error_message=texts["error.message"],
            attempts=int(texts["attempts"]),
            failed_at=texts["failed_at"],
            schema_id=int(texts["schema_id"]) if texts.get("schema_id") else None,
            replays=_replays(texts.get(REPLAYS, "")),
            replayed_at=texts.get(_REPLAYED_AT),
            cut_from_bytes=int(texts[_CUT_FROM]) if _CUT_FROM in texts else None,
        )
    except (KeyError, ValueError):
        return None


def distinct(messages: Iterable[Message]) -> list[DeadLetter]:
    """The dead letters among `messages`, each identity once, oldest first; `replayed_at` comes from their markers."""
    parsed = [letter for letter in map(parse, messages) if letter is not None]
    replayed_at = {letter.identity: letter.replayed_at for letter in parsed if letter.replayed_at is not None}
    letters: dict[Identity, DeadLetter] = {}
    for letter in sorted(parsed, key=lambda one: one.failed_at):
        if letter.replayed_at is None:
            letters.setdefault(letter.identity, replace(letter, replayed_at=replayed_at.get(letter.identity)))
    return list(letters.values())


def list_dead_letters(run: Run) -> list[DeadLetter]:
    """Every dead letter of the run."""
    with run.reader(DEAD_LETTERS) as reader:
        return distinct(reader.to_end())


def replay(publisher: Publisher, run: Run, letter: DeadLetter, *, now: datetime | None = None) -> None:
    """Publish the message on its topic again, then the marker; each is confirmed. Raises as `check_replayable` does."""
    check_replayable(letter)
    # The marker comes second: a crash between the two may replay twice, but never marks what was not replayed.
    for record in replay_records(letter, dead_letters=run.topic(DEAD_LETTERS), now=now or datetime.now(UTC)):
        publisher.publish_soon(record).result(_PUBLISH_SECONDS)


def check_replayable(letter: DeadLetter) -> None:
    """Raise `ConfigurationError` with `why_not_replayable`, if the letter is not."""
    if why := why_not_replayable(letter):
        raise ConfigurationError(why)


def why_not_replayable(letter: DeadLetter) -> str | None:
    """Why the letter can't be replayed: it was already, it came back too often, or it is cut. None if it can."""
    if letter.replayed_at is not None:
        return f"{letter.identity} was replayed at {letter.replayed_at}; nothing is left to replay"
    if letter.cut_from_bytes is not None:
        return (
            f"{letter.identity} holds only {len(letter.value or b'')} of {letter.cut_from_bytes} bytes: the original "
            "lies at that topic, partition and offset for as long as its retention lasts; submit it anew, smaller"
        )
    if letter.replays >= MAX_REPLAYS:
        return (
            f"{letter.identity} was put back {letter.replays} times and came back each time, the limit is "
            f"{MAX_REPLAYS}: fix what it says ({letter.error_class}: {letter.error_message}) and submit it anew"
        )
    return None


def replay_records(letter: DeadLetter, *, dead_letters: str, now: datetime) -> tuple[OutRecord, OutRecord]:
    """The message to publish on its topic again, and the marker of the replay. Pure."""
    counter = ((REPLAYS, str(letter.replays + 1).encode()),)
    kept = tuple(header for header in letter.headers if header[0] != REPLAYS)
    back = OutRecord(topic=letter.identity.topic, key=letter.key, value=letter.value, headers=kept + counter)
    marker = {
        "original.topic": letter.identity.topic,
        "original.partition": str(letter.identity.partition),
        "original.offset": str(letter.identity.offset),
        "original.timestamp": str(letter.timestamp_ms),
        "consumer.group": letter.identity.group,
        "error.class": letter.error_class,
        "error.message": letter.error_message,
        "attempts": str(letter.attempts),
        "failed_at": letter.failed_at,
        _REPLAYED_AT: now.isoformat(),
    }
    return back, OutRecord(topic=dead_letters, key=letter.key, value=None, headers=_encoded(marker))


def _fitting(message: Message) -> tuple[Message, dict[str, str]]:
    """The message without headers of ours, cut if it is too large for dead-letters, and the headers that say so."""
    headers = _original_headers(message.headers)
    key, value = message.key or b"", message.value or b""
    sizes = list(accumulate(len(name.encode()) + len(text or b"") for name, text in headers))
    if len(key) + len(value) + max(sizes, default=0) <= _MAX_BYTES:
        return message._replace(headers=headers), {}
    cut = {_CUT_FROM: str(len(value)), _SHA256: hashlib.sha256(value).hexdigest()}
    first_headers = headers[: bisect_right(sizes, KEPT_BYTES)]
    return message._replace(key=key[:KEPT_BYTES], value=value[:KEPT_BYTES], headers=first_headers), cut


def _replays(text: str) -> int:
    """The counter in a header, which any client may have written: what is no count of ours says nothing."""
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _original_headers(headers: Headers) -> Headers:
    return tuple(header for header in headers if header[0] not in _OWN)


def _encoded(texts: dict[str, str]) -> Headers:
    return tuple((name, writable(text).encode()) for name, text in texts.items())
