"""What a finished run left on its topics, read by a reader that shares nothing with the stages but the schemas."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from rollstream.bus.message import Message
from rollstream.bus.reader import TopicReader
from rollstream.process.settings import StageSettings
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import DecodeError
from rollstream.schemas.ledger import LedgerEntry
from rollstream.schemas.prompt import Purpose
from rollstream.schemas.record import Record
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import DEAD_LETTERS, LEDGER, PROMPTS, SCORED, WEIGHTS, WEIGHTS_APPLIED, Topic
from rollstream.schemas.weights import ApplyOutcome

R = TypeVar("R", bound=Record)
_READ_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFact:
    """One record of `scored`, reduced; `lies_at` is its (partition, offset)."""

    rollout_id: str
    attempt_id: str
    group_id: str
    group_size: int
    reward: float | None
    num_tokens: int
    weight_versions: tuple[int, ...]
    lies_at: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Everything that the summary is computed from."""

    submitted: frozenset[str]
    """Ids of the training groups on `prompts`."""
    started_at: datetime | None
    """When the first of them was submitted."""
    samples: tuple[SampleFact, ...]
    ledger: tuple[LedgerEntry, ...]
    published: frozenset[int]
    applied: frozenset[int]
    dead_letters: int


def read_facts(settings: StageSettings) -> RunFacts:
    """Read every topic of the run from its start to its end."""
    prompts = [prompt for _, prompt in _records(settings, PROMPTS) if prompt.purpose is Purpose.TRAIN]
    applied = [record for _, record in _records(settings, WEIGHTS_APPLIED)]
    return RunFacts(
        submitted=frozenset(prompt.group_id for prompt in prompts),
        started_at=min((prompt.submitted_at for prompt in prompts), default=None),
        samples=tuple(_sample(message, scored) for message, scored in _records(settings, SCORED)),
        ledger=tuple(entry for _, entry in _records(settings, LEDGER)),
        published=frozenset(record.weight_version for _, record in _records(settings, WEIGHTS)),
        applied=frozenset(record.weight_version for record in applied if record.outcome is ApplyOutcome.APPLIED),
        dead_letters=sum(1 for _ in _messages(settings, DEAD_LETTERS.of(settings.run))),
    )


def _sample(message: Message, scored: RolloutScored) -> SampleFact:
    rollout = scored.rollout
    return SampleFact(
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt_id,
        group_id=rollout.group_id,
        group_size=rollout.group_size,
        reward=scored.scoring.reward,
        num_tokens=rollout.num_completion_tokens,
        weight_versions=rollout.weight_versions,
        lies_at=(message.partition, message.offset),
    )


def _records(settings: StageSettings, topic: Topic[R]) -> Iterator[tuple[Message, R]]:
    codec = AvroCodec(topic, settings.registry())
    for message in _messages(settings, topic.of(settings.run)):
        try:
            yield message, codec.decode(message.value)
        except DecodeError:
            continue  # a dead letter, counted there


def _messages(settings: StageSettings, topic: str) -> Iterator[Message]:
    with TopicReader(settings.kafka, [topic]) as reader:
        yield from reader.read_to_end(_READ_SECONDS)
