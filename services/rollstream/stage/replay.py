"""Replays dead letters: which may be replayed, and what a replay publishes.

A letter is a stranger's word: whoever may write to dead-letters may name any topic and any bytes in one, while a replay
has the rights of an operator. So a replay goes only to a topic of the run that the letter's consumer group reads, and
what it publishes is not what the letter holds: it is the message that lies at the letter's place. If other bytes lie
there, the letter is forged. In the same way a marker counts only if the copy that it names lies on the topic.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, NamedTuple

from rollstream.bus.deliveries import DELIVERY_TIMEOUT_SECONDS
from rollstream.bus.message import KafkaMessage, OutRecord, Partition
from rollstream.bus.places import MessagePlace, PlaceReader
from rollstream.bus.publisher import Publisher
from rollstream.bus.run import Run
from rollstream.schemas.errors import BrokerError, ConfigurationError
from rollstream.schemas.topics import (
    DEAD_LETTERS,
    EVAL_PROMPTS,
    EVAL_ROLLOUTS,
    FEEDBACK,
    INGEST_PROMPTS,
    PROMPTS,
    ROLLOUTS,
    SCORED,
    SERVE_PROMPTS,
    SERVE_ROLLOUTS,
    SERVE_SCORED,
    Topic,
)
from rollstream.stage.dead_letters import (
    REPLAYS,
    DeadLetter,
    Doubt,
    Fingerprint,
    Replay,
    distinct,
    fingerprint,
    marker,
    num_replays,
    original_headers,
)

MAX_REPLAYS: Final = 3
READ_BY: Final[Mapping[str, tuple[Topic[Any], ...]]] = {
    "generators": (PROMPTS, EVAL_PROMPTS, SERVE_PROMPTS),
    "scorers": (ROLLOUTS, EVAL_ROLLOUTS, SERVE_ROLLOUTS),
    "trainer": (SCORED,),
    "feedback": (FEEDBACK, SERVE_SCORED),
    "ingest": (INGEST_PROMPTS,),
}
"""Whose messages each consumer group of a run puts into dead-letters; producers have the name of one for that."""
# Longer than the publisher's own bound, whose error says more.
_PUBLISH_SECONDS: Final = DELIVERY_TIMEOUT_SECONDS + 10
_MOST_FAILURES: Final = 3
"""Deliveries that fail one after the other: then it is the broker, not the letters."""


class Outcome(NamedTuple):
    """What became of a letter: `refusal` says why it was not replayed, None if it was."""

    letter: DeadLetter
    refusal: str | None


def list_dead_letters(run: Run) -> list[DeadLetter]:
    """Every dead letter of the run, with a `doubt` where its word does not hold."""
    with run.reader(DEAD_LETTERS) as reader:
        letters = distinct(reader.to_end())
    with run.place_reader() as places:
        originals = _Originals(run, places, letters)
        # In the order of places, which is read quickest.
        judged = [_judged(letter, originals) for letter in sorted(letters, key=lambda letter: letter.identity)]
    return sorted(judged, key=lambda letter: letter.failed_at)


def replayed(publisher: Publisher, run: Run, letters: Iterable[DeadLetter]) -> Iterator[Outcome]:
    """Replay the letters one after the other; one that can't be replayed does not keep the others back.

    Raises `BrokerError` once nothing can be delivered any more.
    """
    letters = list(letters)
    num_failures = 0
    with run.place_reader() as places:
        originals = _Originals(run, places, letters)
        for letter in letters:
            try:
                refusal = _replay(publisher, run, letter, originals)
                num_failures = 0
            except BrokerError as error:
                num_failures += 1
                if num_failures >= _MOST_FAILURES:
                    raise
                refusal = f"{letter.identity} could not be published: {error}"
            yield Outcome(letter, refusal)


def why_not_replayable(letter: DeadLetter) -> str | None:
    """Why a letter can't be replayed, as far as the letter itself and its doubt tell; None if it can."""
    if letter.replayed_at is not None:
        return f"{letter.identity} was replayed at {letter.replayed_at}; nothing is left to replay"
    if letter.doubt is not None:
        return f"{letter.identity} is {letter.doubt.kind}: {letter.doubt.why}"
    if letter.cut_from_bytes is not None:
        return (
            f"{letter.identity} holds only {letter.num_bytes} of {letter.cut_from_bytes} bytes: the original "
            "lies at that topic, partition and offset for as long as its retention lasts; submit it anew, smaller"
        )
    if letter.replays >= MAX_REPLAYS:
        return (
            f"{letter.identity} was put back {letter.replays} times and came back each time, the limit is "
            f"{MAX_REPLAYS}: fix what it says ({letter.error_class}: {letter.error_message}) and submit it anew"
        )
    return None


def replay_record(original: KafkaMessage) -> OutRecord:
    """The message to publish on its topic again: the same, with one replay more in its counter. Pure."""
    headers = original_headers(original.headers)
    counter = ((REPLAYS, str(num_replays(original.headers) + 1).encode()),)
    kept = tuple(header for header in headers if header[0] != REPLAYS)
    return OutRecord(topic=original.topic, key=original.key, value=original.value, headers=kept + counter)


def doubt_of(
    letter: DeadLetter, *, run: str, bounds: tuple[int, int] | None, lying: Callable[[], KafkaMessage | None]
) -> Doubt | None:
    """Why the letter's word does not hold; None if it does. Pure.

    `bounds`: first and next offset of the partition that it names, None if there is none. `lying` gives the message at
    its place; it is asked only if there may be one.
    """
    identity = letter.identity
    read = [topic.of(run) for name, topics in READ_BY.items() if identity.group == f"{run}.{name}" for topic in topics]
    if identity.topic not in read:
        return Doubt("foreign", f"group {identity.group} of run {run} reads {' and '.join(read) or 'nothing'}")
    if bounds is None or not 0 <= identity.offset < bounds[1]:
        return Doubt("forged", f"nothing was ever there: {_holds(bounds)}")
    if identity.offset < bounds[0]:
        return Doubt("expired", f"its message is gone, and nothing else proves it: {_holds(bounds)}")
    message = lying()
    if message is None:
        return Doubt("forged", "no message lies there")
    if fingerprint(message.value) != letter.fingerprint:
        lies, said = _shown(fingerprint(message.value)), _shown(letter.fingerprint)
        return Doubt("forged", f"other bytes lie there: {lies}; the letter has {said}")
    return None


class _Originals:
    """The messages that letters name."""

    def __init__(self, run: Run, places: PlaceReader, letters: Iterable[DeadLetter]) -> None:
        self.run = run.name
        self._places = places
        self.bounds: dict[Partition, tuple[int, int]] = {}
        named = {letter.identity.topic for letter in letters}
        for topic in (topic for topics in READ_BY.values() for topic in topics if run.topic(topic) in named):
            with suppress(ConfigurationError):  # there is no such topic any more
                self.bounds |= run.bounds(topic)

    def at(self, place: MessagePlace) -> KafkaMessage | None:
        return self._places.message_at(place)


def _judged(letter: DeadLetter, originals: _Originals) -> DeadLetter:
    """The letter with what its message and its markers' copies show: its own word counts for neither."""
    place = MessagePlace(*letter.identity[1:])
    lying = cache(lambda: originals.at(place))
    bounds = originals.bounds.get((place.topic, place.partition))
    doubt = doubt_of(letter, run=originals.run, bounds=bounds, lying=lying)
    original = lying() if doubt is None else None
    if original is None:
        return replace(letter, doubt=doubt)
    counted = replace(letter, replays=num_replays(original.headers))
    said = sorted(letter.said_replays, key=lambda replay: replay[1:])
    return replace(counted, replayed_at=next((one.at for one in said if _holds_copy(counted, one, originals)), None))


def _holds_copy(letter: DeadLetter, replay: Replay, originals: _Originals) -> bool:
    """Whether what a replay of the letter publishes lies where a marker says."""
    place = MessagePlace(letter.identity.topic, replay.partition, replay.offset)
    first, end = originals.bounds.get((place.topic, place.partition), (0, 0))
    copy = originals.at(place) if first <= place.offset < end else None
    is_same = copy is not None and fingerprint(copy.value) == letter.fingerprint
    return copy is not None and is_same and num_replays(copy.headers) == letter.replays + 1


def _replay(publisher: Publisher, run: Run, letter: DeadLetter, originals: _Originals) -> str | None:
    """Publish the message on its topic again, then the marker; each is confirmed. Returns why not, if it may not be."""
    if refusal := why_not_replayable(letter):
        return refusal
    # It is looked at again: since it was listed, its message may have expired.
    original = originals.at(MessagePlace(*letter.identity[1:]))
    if original is None or fingerprint(original.value) != letter.fingerprint:
        return f"{letter.identity} is not there any more; nothing else proves it"
    copy = publisher.publish_soon(replay_record(original)).result(_PUBLISH_SECONDS)
    # The marker comes second: a crash between the two may replay twice, but never marks what was not replayed.
    replay = Replay(datetime.now(UTC).isoformat(), copy.partition, copy.offset)
    publisher.publish_soon(marker(letter, replay, topic=run.topic(DEAD_LETTERS))).result(_PUBLISH_SECONDS)
    return None


def _holds(bounds: tuple[int, int] | None) -> str:
    return "there is no such partition" if bounds is None else f"the partition holds {bounds[0]} to {bounds[1]}"


def _shown(print_: Fingerprint) -> str:
    return "a null value" if print_ is None else f"{print_[0]} bytes with sha256 {print_[1][:12]}…"
