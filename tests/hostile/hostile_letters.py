"""Dead letters that no stage wrote: each would have an operator write something, or end who lists them."""

from collections.abc import Iterator
from typing import Any, Final

from rollstream.schemas.topics import DEAD_LETTERS, PROMPTS, TOPICS, Topic
from tests.hostile.hostile import Context, Family, Hostile

_NUMBERS: Final = (
    "-1", "-9223372036854775808", "9223372036854775807", "9223372036854775808", "9" * 40, "9" * 5000, "1e3", "1.0",
    "0x7", "", " ", "x", "NaN", "\u0663", "\x00", "+1", "1_000",
)  # fmt: skip
_TEXTS: Final = (
    "", "\x1b[2J", "[bold red]x[/nope]", "a\x00b", "../../etc/passwd", "x" * 100_000, "\u202etxet", "\r\nreplayed x",
)  # fmt: skip
_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "original.partition": _NUMBERS,
    "original.offset": _NUMBERS,
    "original.timestamp": _NUMBERS,
    "attempts": _NUMBERS,
    "schema_id": _NUMBERS,
    "rollstream.replays": _NUMBERS,
    "original.bytes": _NUMBERS,
    "original.topic": _TEXTS,
    "consumer.group": _TEXTS,
    "error.class": _TEXTS,
    "error.message": _TEXTS,
    "failed_at": _TEXTS,
    "replayed_at": _TEXTS,
    "replayed.partition": _NUMBERS,
    "replayed.offset": _NUMBERS,
    "original.sha256": _TEXTS,
}
_GROUPS: Final = ("generators", "scorers", "trainer", "trainer-presence", "readers", "")


def a_letter(context: Context, **headers: str) -> dict[str, str]:
    """The headers of a letter of the generators about a place where nothing lies."""
    return {
        "original.topic": PROMPTS.of(context.run),
        "original.partition": "0",
        "original.offset": str(10**6),
        "original.timestamp": "0",
        "consumer.group": f"{context.run}.generators",
        "error.class": "DecodeError",
        "error.message": "unreadable",
        "attempts": "1",
        "failed_at": "2026-03-01T12:00:00+00:00",
        "schema_id": "1",
        **headers,
    }


def forged_letters(context: Context, topic: Topic[Any]) -> Iterator[Hostile]:
    """Letters that name each topic for each group, that lack a header, and that have strange words in each."""
    if topic is not DEAD_LETTERS:
        return
    targets = [one.of(context.run) for one in TOPICS] + ["other.prompts", "__consumer_offsets", "payments"]
    made: dict[str, dict[str, str]] = {}
    for group in _GROUPS:
        for target in targets:
            where = target.replace(f"{context.run}.", "")
            headers = {"original.topic": target, "consumer.group": f"{context.run}.{group}"}
            made[f"{where} for {group or 'no group'}"] = a_letter(context, **headers)
    for name, words in _FIELDS.items():
        for word in words:
            made[f"{name} {word[:20]!r} of {len(word)}"] = a_letter(context, **{name: word})
    for name in a_letter(context):
        made[f"without {name}"] = {key: value for key, value in a_letter(context).items() if key != name}
    for name, headers in made.items():
        yield Hostile(topic=topic.name, family="forged_letters", name=name, value=b"evil", headers=headers)


LETTERS: Final[dict[str, Family]] = {"forged_letters": forged_letters}
