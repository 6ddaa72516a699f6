"""A loop that lives while a stranger writes to its topics: what became of each record, and of the loop."""

import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from rollstream.bus.message import KafkaMessage
from rollstream.bus.reader import TopicReader
from rollstream.engines.identity import chat_template_sha256, tokenizer_sha256
from rollstream.schemas.topics import (
    DEAD_LETTERS,
    EVAL_PROMPTS,
    EVAL_ROLLOUTS,
    EVAL_SCORED,
    LEDGER,
    PROMPTS,
    ROLLOUTS,
    SCORED,
    SERVE_PROMPTS,
    SERVE_ROLLOUTS,
    SERVE_SCORED,
)
from tests.chaos.accounting import Sent
from tests.chaos.records import decoded, encoded_prompt
from tests.harness.loops import Loop, a_loop
from tests.harness.running import a_run
from tests.hostile.hostile import Context, Hostile

SECRET: Final = "kX7-hostile-secret-Qz"
_SECRET_BYTES: Final = 7_919_337
ANSWER_SECONDS: Final = 120.0
_MOST_RESTARTS: Final = 5
"""A record that kills a process is given up after so many starts."""
_MOST_GROWTH_BYTES: Final = 400 * 2**20
_ANSWERS: Final = {
    PROMPTS.name: LEDGER.name,
    SCORED.name: LEDGER.name,
    ROLLOUTS.name: SCORED.name,
    EVAL_PROMPTS.name: EVAL_SCORED.name,
    EVAL_ROLLOUTS.name: EVAL_SCORED.name,
    SERVE_PROMPTS.name: SERVE_SCORED.name,
    SERVE_ROLLOUTS.name: SERVE_SCORED.name,
}
"""Where it shows what became of a record that can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """What a record of the corpus is called, the group that it names, and where it lies."""

    name: str
    group: str | None
    place: tuple[str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Of each stage: how often it was started again, and the bytes that it takes with its children."""

    restarts: dict[str, int]
    memory: dict[str, int]


@dataclass(kw_only=True)
class Living:
    """A whole loop, and a directory outside of it that nobody may touch."""

    loop: Loop
    model: Path
    outside: Path
    letters: TopicReader
    buried: set[tuple[str, int, int]] = field(default_factory=set)
    """Places of records that are in dead-letters."""

    def context(self) -> Context:
        """What a stranger knows now."""
        return Context(
            run=self.loop.run.name,
            outside=self.outside,
            weight_version=self.loop.outside.records("weights")[-1]["weight_version"],
            tokenizer_sha256=tokenizer_sha256(self.model),
            chat_template_sha256=chat_template_sha256(self.model),
        )

    def feed(self, records: Iterable[Hostile]) -> list[Fed]:
        """Write the records, and what belongs beside them."""
        fed: list[tuple[str, str | None, str] | None] = []

        def sent() -> Iterator[Sent]:
            for record in records:
                key = uuid.uuid4().bytes
                fed.append((str(record), _group(record), record.topic))
                yield Sent(topic=record.topic, value=record.value, key=key, headers=record.headers)
                for value in record.beside:
                    fed.append(None)
                    yield Sent(topic=record.topic, value=value, key=key)

        places = self.loop.outside.put_all(sent())
        found = (one for one in zip(fed, places, strict=True) if one[0] is not None)
        return [Fed(name=name, group=group, place=(topic, *place)) for (name, group, topic), place in found]

    def unanswered(self, fed: Sequence[Fed]) -> list[str]:
        """The records that are neither in dead-letters nor ended with a reason, so far."""
        self._read_letters()
        groups = {topic: self._groups(topic) for topic in {*_ANSWERS.values()}}
        left = []
        for one in fed:
            topic = _ANSWERS.get(one.place[0])
            if topic is not None and one.place not in self.buried and one.group not in groups[topic]:
                left.append(one.name)
        return left

    def until_answered(self, fed: Sequence[Fed]) -> None:
        """Wait until each record is in dead-letters, or closed with its reason."""
        left: list[str] = []

        def is_answered() -> bool:
            left[:] = self.unanswered(fed)
            return not left

        try:
            self.loop.until(is_answered, "every record to end", ANSWER_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{len(left)} of {len(fed)} records have not ended: {left[:20]}") from error

    def state(self) -> State:
        """How it is now, to compare with later."""
        return State(
            restarts={name: stage.restarts for name, stage in self.loop.stages.items()},
            memory={name: _rss(stage.process.pid) for name, stage in self.loop.stages.items()},
        )

    def check_that_it_goes_on(self, before: State) -> None:
        """A good prompt gets through, a new version is made and loaded, no stage restarts for ever or grows."""
        group, evaluated = uuid.uuid4().hex, uuid.uuid4().hex
        steps, applied, outside = self.loop.outside.steps(), self._applied(), self.loop.outside
        outside.put("prompts", encoded_prompt("31=", group_id=group, environment="sort_digits", purpose="train"))
        asked = encoded_prompt("31=", group_id=evaluated, environment="sort_digits", purpose="evaluate")
        outside.put("eval-prompts", asked)

        def missing() -> list[str]:
            signs = {
                "a good prompt to close": group in self._groups(LEDGER.name),
                "its evaluation": evaluated in self._groups(EVAL_SCORED.name),
                "a step": outside.steps() > steps,
                "a newer version to be loaded": self._applied() > applied,
            }
            return [sign for sign, is_there in signs.items() if not is_there]

        try:
            self.loop.until(lambda: not missing(), "signs of life", ANSWER_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"waited {ANSWER_SECONDS:g} s for {missing()}") from error
        now = self.state()
        more = {name: count - before.restarts.get(name, 0) for name, count in now.restarts.items()}
        assert max(more.values()) <= _MOST_RESTARTS, f"restarts: {more}"
        grown = {name: size - before.memory.get(name, size) for name, size in now.memory.items()}
        assert max(grown.values()) <= _MOST_GROWTH_BYTES, f"bytes more than before: {grown}"

    def check_that_nothing_leaked(self) -> None:
        """Nothing outside of the run was written, and nobody tells what is in the files there."""
        assert sorted(path.name for path in self.outside.iterdir()) == ["fifo", "secret.txt"]
        digest = hashlib.sha256((self.outside / "secret.txt").read_bytes()).hexdigest()
        for process in self.loop.run.running:
            said = process.said()
            told = [what for what in (SECRET, digest, str(_SECRET_BYTES)) if what in said]
            assert not told, f"{process.log} tells {told}"

    def _groups(self, topic: str) -> set[str]:
        """The groups that a topic says something final of."""
        if topic == LEDGER.name:
            return {group["group_id"] for entry in self.loop.outside.ledger() for group in entry["closed"]}
        return {record["rollout"]["group_id"] for record in self.loop.outside.records(topic)}

    def _applied(self) -> int:
        applied = (one for one in self.loop.outside.records("weights-applied") if one["outcome"] == "applied")
        return max((one["weight_version"] for one in applied if one["generator_id"] == "generator"), default=-1)

    def _read_letters(self) -> None:
        while messages := self.letters.poll(timeout_seconds=0.1):
            self.buried |= {place for message in messages if (place := _original(message)) is not None}


def _original(message: KafkaMessage) -> tuple[str, int, int] | None:
    headers = dict(message.headers)
    try:
        topic = headers["original.topic"].decode().rpartition(".")[2]
        return topic, int(headers["original.partition"]), int(headers["original.offset"])
    except (KeyError, ValueError):
        return None


def _group(record: Hostile) -> str | None:
    """The group that the bytes name, to a reader who checks nothing else."""
    if record.topic not in _ANSWERS:
        return None
    fields: dict[str, Any] | None = decoded(record.topic, record.value)
    if fields is None:
        return None
    group: str = fields.get("rollout", fields)["group_id"]
    return group


def _rss(pid: int) -> int:
    try:
        process = psutil.Process(pid)
        return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))
    except psutil.Error:
        return 0  # it has ended, or a child of it


@contextmanager
def a_living_loop(kafka: str, name: str, directory: Path, redis_url: str, model: Path) -> Iterator[Living]:
    """All four stages, which have made a first step; groups that lack samples close soon."""
    outside = directory / "outside"
    outside.mkdir(parents=True)
    (outside / "secret.txt").write_text((SECRET * 400_000)[:_SECRET_BYTES])
    os.mkfifo(outside / "fifo")
    inside = directory / "inside"
    inside.mkdir()
    with (
        a_run(kafka, name, inside, redis_url=redis_url) as run,
        a_loop(run, model, token_seconds=0.05) as loop,
        run.on_bus.reader(DEAD_LETTERS) as letters,
    ):
        loop.configure("trainer", lost_after_seconds=1.5)
        loop.configure("generator", evaluation_hold_seconds=2.0, sample_deadline_seconds=20.0)
        loop.configure("scorer", sample_deadline_seconds=3.0)
        loop.start("trainer", "scorer", "producer")
        loop.start("generator", name="generator")
        loop.until_step(1)
        yield Living(loop=loop, model=model, outside=outside, letters=letters)
