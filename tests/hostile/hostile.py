"""A corpus of records that a stranger may send: for every topic, in families, always the same for the same context.

Each is its own prompt, rollout, version or entry, so that what became of it can be told from what became of others.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from rollstream.schemas.ids import rollout_id
from rollstream.schemas.ledger import EntryKind
from rollstream.schemas.prompt import PromptSource, Purpose
from rollstream.schemas.record import Record
from rollstream.schemas.registry import manifest
from rollstream.schemas.topics import (
    EVAL_PROGRESS,
    EVAL_PROMPTS,
    EVAL_ROLLOUTS,
    EVAL_SCORED,
    FEEDBACK,
    INGEST_PROMPTS,
    LEDGER,
    PRODUCERS,
    PROGRESS,
    PROMPTS,
    ROLLOUTS,
    SCORED,
    SERVE_PROMPTS,
    SERVE_ROLLOUTS,
    SERVE_SCORED,
    WEIGHTS,
    WEIGHTS_APPLIED,
    Topic,
)
from tests.harness.builders import (
    a_feedback,
    a_generated,
    a_generator,
    a_progress,
    a_prompt,
    a_rollout,
    a_turn,
    a_turn_progress,
    an_entry,
    applied,
    published,
)
from tests.hostile import wire

ASKED: Final = (PROMPTS, EVAL_PROMPTS, SERVE_PROMPTS, INGEST_PROMPTS)
GENERATED: Final = (ROLLOUTS, EVAL_ROLLOUTS, SERVE_ROLLOUTS)
OF_SCORERS: Final = (SCORED, EVAL_SCORED, SERVE_SCORED)
_PURPOSES: Final = {
    **dict.fromkeys((EVAL_PROMPTS.name, EVAL_ROLLOUTS.name, EVAL_SCORED.name), Purpose.EVALUATE),
    **dict.fromkeys((SERVE_PROMPTS.name, SERVE_ROLLOUTS.name, SERVE_SCORED.name), Purpose.SERVE),
}
_UNUSED_VERSION: Final = 10**6
"""Versions of the corpus begin here: no trainer of a test comes so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a stranger knows of the run, and the places outside of it that no stage may touch."""

    run: str
    outside: Path
    """A directory that is none of the run's: `secret.txt` and `fifo` lie there, `touched` must never appear."""
    weight_version: int = 0
    tokenizer_sha256: str = ""
    chat_template_sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """One record. `name` says what is wrong with it; `beside`: good records of the same group, which make it train."""

    topic: str
    family: str
    name: str
    value: bytes | None
    headers: dict[str, str] = field(default_factory=dict)
    beside: tuple[bytes, ...] = ()

    def __str__(self) -> str:
        return f"{self.family} on {self.topic}: {self.name}"


Family = Callable[[Context, Topic[Any]], Iterator[Hostile]]


def example(context: Context, topic: Topic[Any], about: str) -> wire.Fields:
    """A good record of the topic, of a group or version that `about` alone has."""
    return wire.fields_of(_record(context, topic, about))


def _record(context: Context, topic: Topic[Any], about: str) -> Record:
    number = int.from_bytes(hashlib.sha256(f"{topic.name}/{about}".encode()).digest()[:4], "big")
    if topic is WEIGHTS:
        return published(_UNUSED_VERSION + number, uri=(context.outside / "weights").as_uri())
    if topic is WEIGHTS_APPLIED:
        return applied(_UNUSED_VERSION, generator_id=f"stranger-{number}")
    if topic is PRODUCERS:
        return a_progress(f"stranger-{number}", source=f"hostile-{number}")
    if topic is LEDGER:
        version = _UNUSED_VERSION + number
        return an_entry(EntryKind.STEP, weight_version=version, parent_version=version - 1, incarnation="stranger")
    if topic is FEEDBACK:
        return a_feedback(feedback_id=f"stranger-{number}", response_id=f"hostile-{number}")
    return _of_a_prompt(context, topic, about)


def _of_a_prompt(context: Context, topic: Topic[Any], about: str) -> Record:
    """A prompt of the topic's lane, its sample, or how far that has come."""
    if topic in (PROGRESS, EVAL_PROGRESS):
        return a_turn_progress(rollout_id=f"hostile-{about}-0")
    purpose = _PURPOSES.get(topic.name, Purpose.TRAIN)
    prompt = a_prompt(
        run=context.run,
        prompt_id=f"hostile/{topic.name}/{about}",
        group_size=2 if topic in (*ASKED, SCORED) else 1,
        purpose=purpose,
        weight_version=context.weight_version if purpose is Purpose.EVALUATE else None,
        source=PromptSource(dataset="hostile"),
        producer="stranger",
    )
    if topic in ASKED:
        return prompt
    sample: dict[str, Any] = {
        "prompt": prompt,
        "turns": (a_turn(spans=[(context.weight_version, 0, 6)]),),
        "generator": a_generator(
            tokenizer_sha256=context.tokenizer_sha256, chat_template_sha256=context.chat_template_sha256
        ),
    }
    return a_generated(0, **sample) if topic in GENERATED else a_rollout(0.0, 0, **sample)


def _sibling(fields: wire.Fields) -> bytes:
    """On `scored` the second sample of the group, with another reward: so the first one trains, if it is let in."""
    rollout = {**fields["rollout"], "sample_index": 1, "attempt_id": "attempt-1"}
    rollout["rollout_id"] = rollout_id(rollout["group_id"], 1)
    scoring = {**fields["scoring"], "reward": 1.0, "components": {"exact_match": 1.0}}
    return wire.encoded(SCORED, {"rollout": rollout, "scoring": scoring})


def one(
    context: Context, topic: Topic[Any], family: str, name: str, change: Callable[[wire.Fields], bytes | None]
) -> Hostile:
    """A record of its own, made by `change` from a good one."""
    about = f"{family}/{name}"
    value = change(example(context, topic, about))
    beside = (_sibling(example(context, topic, about)),) if topic is SCORED else ()
    return Hostile(topic=topic.name, family=family, name=name, value=value, beside=beside)


def _at(topic: Topic[Any], path: wire.Path, value: Any) -> Callable[[wire.Fields], bytes]:
    return lambda fields: wire.with_value(topic, fields, path, value)


# Families. Each gives the records of one topic.


def truncated(context: Context, topic: Topic[Any]) -> Iterator[Hostile]:
    """Cut in the header, and at places all over the record."""
    for part in (*range(5), *(f"{tenth}/10" for tenth in range(1, 10))):

        def cut(fields: wire.Fields, part: int | str = part) -> bytes:
            whole = wire.encoded(topic, fields)
            return whole[: part if isinstance(part, int) else len(whole) * int(part[0]) // 10]

        yield one(context, topic, "truncated", f"after {part}", cut)


def single_bits(context: Context, topic: Topic[Any]) -> Iterator[Hostile]:
    """One bit is another one, at places all over the record."""
    for place in range(24):

        def flipped(fields: wire.Fields, place: int = place) -> bytes:
            whole = bytearray(wire.encoded(topic, fields))
            position = len(whole) * place // 24
            whole[position] ^= 1 << (place % 8)
            return bytes(whole)

        yield one(context, topic, "single_bits", f"bit {place % 8} at {place}/24", flipped)


def wire_format(context: Context, topic: Topic[Any]) -> Iterator[Hostile]:
    """No record at all, wrong schema ids, and more bytes than the record has."""
    others = {entry.schema_id for entry in manifest()}
    made: dict[str, Callable[[bytes], bytes | None]] = {
        "null": lambda whole: None,
        "empty": lambda whole: b"",
        "text": lambda whole: b"drop table prompts; --",
        "another magic byte": lambda whole: b"\1" + whole[1:],
        "bytes after the record": lambda whole: whole + b"\0",
        "the record twice": lambda whole: whole * 2,
        "a length beyond the bytes": lambda whole: whole[:5] + b"\x80\x80\x80\x80\x80\x80\x80\x80\x01x",
        "a negative length": lambda whole: whole[:5] + b"\x03x",
    }
    for number in (0, 2**31 - 1, 2**32 - 1):
        made[f"schema id {number}"] = lambda whole, number=number: b"\0" + number.to_bytes(4, "big") + whole[5:]
    for number in sorted(others):
        made[f"under schema {number}"] = lambda whole, number=number: b"\0" + number.to_bytes(4, "big") + whole[5:]
    for name, change in made.items():
        yield one(
            context, topic, "wire_format", name,
            lambda fields, change=change: change(wire.encoded(topic, fields)),  # type: ignore[misc]
        )  # fmt: skip


_NUMBERS: Final[dict[str, tuple[Any, ...]]] = {
    "long": (-1, 0, 2**31, 10**6, 10**12, 2**63 - 1, -(2**63)),
    "int": (-1, 0, 2**31 - 1, -(2**31)),
    "double": (float("nan"), float("inf"), float("-inf"), 1e308, -1e308, 1e-300, 5e-324, -1.0),
}


def numbers(context: Context, topic: Topic[Any]) -> Iterator[Hostile]:
    """In each number's place those that are too large, too small, negative or not finite."""
    for path, kind in _own_leaves(context, topic):
        for number in _NUMBERS.get(kind, ()):
            yield one(context, topic, "numbers", f"{_named(path)} {number}", _at(topic, path, number))


def _texts(context: Context) -> dict[str, bytes]:
    return {
        "a lone surrogate": b"\xed\xa0\x80",
        "no UTF-8": b"\xff\xfe",
        "NUL": b"a\0b",
        "markup": b"[bold red]x[/nope] [link=file:///etc/passwd]y[/link]",
        "escape sequences": b"\x1b]0;title\x07\x1b[2J\x1b[31m\r\n",
        "a path": f"../../../../..{context.outside}/secret.txt".encode(),
        "nothing": b"",
        "long": b"x" * 300_000,
    }


def texts(context: Context, topic: Topic[Any]) -> Iterator[Hostile]:
    """In each text's place what can't be encoded, what terminals obey, what leads elsewhere, and what is long."""
    for path, kind in _own_leaves(context, topic):
        if kind == "string":
            for name, text in _texts(context).items():
                yield one(context, topic, "texts", f"{_named(path)} {name}", _at(topic, path, text))


def enums(context: Context, topic: Topic[Any]) -> Iterator[Hostile]:
    """Symbols that nobody knows."""
    for path, kind in _own_leaves(context, topic):
        if kind == "enum":
            for index in (0, 99, -1, 2**31 - 1):
                yield one(context, topic, "enums", f"{_named(path)} symbol {index}", _at(topic, path, index))


def collections(context: Context, topic: Topic[Any]) -> Iterator[Hostile]:
    """Empty lists, lists of one thing a thousand times, and maps of many entries."""
    for path, kind in _own_leaves(context, topic):
        if kind == "array":
            yield one(context, topic, "collections", f"{_named(path)} empty", _at(topic, path, []))

            def repeated(fields: wire.Fields, path: wire.Path = path) -> bytes:
                return wire.with_value(topic, fields, path, [*_held(fields, path)] * 1000)

            yield one(context, topic, "collections", f"{_named(path)} a thousand times", repeated)
        if kind == "map":
            value = next(iter(_held(example(context, topic, "map"), path).values()), "x")
            many = {f"key-{number}": value for number in range(20_000)}
            yield one(context, topic, "collections", f"{_named(path)} of many", _at(topic, path, many))
            yield one(context, topic, "collections", f"{_named(path)} of NUL", _at(topic, path, {"\0": value}))


_TOKENS: Final[dict[str, tuple[str, bytes]]] = {
    "ids that are no whole number of int32": ("token_ids", b"\1\0\0\0\2"),
    "negative ids": ("token_ids", np.full(6, -1, dtype="<i4").tobytes()),
    "ids outside the vocabulary": ("token_ids", np.full(6, 2**31 - 1, dtype="<i4").tobytes()),
    "a prompt outside the vocabulary": ("prompt_token_ids", np.full(6, 10**6, dtype="<i4").tobytes()),
    "no ids": ("token_ids", b""),
    "a prompt of a million tokens": ("prompt_token_ids", np.ones(10**6, dtype="<i4").tobytes()),
    "logprobs that are not numbers": ("behavior_logprobs", np.full(6, np.nan, dtype="<f4").tobytes()),
    "logprobs of infinity": ("behavior_logprobs", np.full(6, -np.inf, dtype="<f4").tobytes()),
    "logprobs above 0": ("behavior_logprobs", np.full(6, 80.0, dtype="<f4").tobytes()),
    "logprobs below all": ("behavior_logprobs", np.full(6, -3e38, dtype="<f4").tobytes()),
    "too few logprobs": ("behavior_logprobs", np.full(5, -0.5, dtype="<f4").tobytes()),
}


def tokens(context: Context, topic: Topic[Any]) -> Iterator[Hostile]:
    """Tokens and logprobs that no model gave."""
    turn: wire.Path = {
        **dict.fromkeys((one.name for one in GENERATED), ("turns", 0)),
        **dict.fromkeys((one.name for one in OF_SCORERS), ("rollout", "turns", 0)),
    }.get(topic.name, ())
    if not turn:
        return
    for name, (part, value) in _TOKENS.items():
        yield one(context, topic, "tokens", name, _at(topic, (*turn, part), value))

    def long_sample(fields: wire.Fields) -> bytes:
        held, count = _held(fields, turn), 200_000
        held["token_ids"] = np.full(count, 5, dtype="<i4").tobytes()
        held["behavior_logprobs"] = np.full(count, -0.5, dtype="<f4").tobytes()
        held["weight_spans"] = [{"weight_version": context.weight_version, "start": 0, "end": count}]
        return wire.encoded(topic, fields)

    yield one(context, topic, "tokens", "200,000 of them", long_sample)


def _own_leaves(context: Context, topic: Topic[Any]) -> list[tuple[wire.Path, str]]:
    """The fields of the topic's record; of the prompt inside a rollout only those that later stages use."""
    used = ("group_id", "group_size", "environment", "purpose", "temperature", "metadata", "max_tokens")
    found = wire.leaves(topic, example(context, topic, "leaves"))
    return [(path, kind) for path, kind in found if "prompt" not in path or path[-1] in used]


def _held(fields: wire.Fields, path: wire.Path) -> Any:
    """What lies at a place."""
    held: Any = fields
    for step in path:
        held = held[step]
    return held


def _named(path: wire.Path) -> str:
    return ".".join(str(step) for step in path)


GENERAL: Final[dict[str, Family]] = {
    family.__name__: family
    for family in (truncated, single_bits, wire_format, numbers, texts, enums, collections, tokens)
}
