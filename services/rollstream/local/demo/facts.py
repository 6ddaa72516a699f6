"""Reads from a finished run's topics what the demo's summary is computed from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from rollstream.bus.message import KafkaMessage, Partition
from rollstream.bus.run import Run
from rollstream.schemas.ledger import LedgerEntry
from rollstream.schemas.prompt import PromptSubmitted, Purpose
from rollstream.schemas.record import Record
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import DEAD_LETTERS, PROMPTS, SCORED, WEIGHTS, WEIGHTS_APPLIED, Topic
from rollstream.schemas.weights import ApplyOutcome

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFact:
    """The parts of one `scored` record that the summary needs. `lies_at` is its (partition, offset)."""

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
    """When the first training group was submitted."""
    samples: tuple[SampleFact, ...]
    ledger: tuple[LedgerEntry, ...]
    published: frozenset[int]
    applied: frozenset[int]
    dead_letters: int


class FactsReader:
    """Reads the topics from start to end, each record once: `read_on` goes on where its last call ended.

    Records that can't be decoded are left out; dead letters are counted. For one thread at a time.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._next: dict[Partition, int] = {}
        self._prompts: list[PromptSubmitted] = []
        self._samples: list[SampleFact] = []
        self._published: set[int] = set()
        self._applied: set[int] = set()
        self._dead_letters = 0

    def read_on(self) -> None:
        """Read what has come on the topics, but for the ledger."""
        self._prompts += [prompt for _, prompt in self._records(PROMPTS) if prompt.purpose is Purpose.TRAIN]
        self._samples += [_sample(message, scored) for message, scored in self._records(SCORED)]
        self._published |= {record.weight_version for _, record in self._records(WEIGHTS)}
        applied = (record for _, record in self._records(WEIGHTS_APPLIED) if record.outcome is ApplyOutcome.APPLIED)
        self._applied |= {record.weight_version for record in applied}
        self._dead_letters += sum(1 for _ in self._messages(DEAD_LETTERS))

    def facts(self, ledger: Sequence[LedgerEntry]) -> RunFacts:
        """All that was read, with the entries of the ledger."""
        return RunFacts(
            submitted=frozenset(prompt.group_id for prompt in self._prompts),
            started_at=min((prompt.submitted_at for prompt in self._prompts), default=None),
            samples=tuple(self._samples),
            ledger=tuple(ledger),
            published=frozenset(self._published),
            applied=frozenset(self._applied),
            dead_letters=self._dead_letters,
        )

    def _records(self, topic: Topic[R]) -> Iterator[tuple[KafkaMessage, R]]:
        for message in self._messages(topic):
            record = self._run.decoded(topic, message)
            if record is not None:
                yield message, record

    def _messages(self, topic: Topic[Any]) -> Iterator[KafkaMessage]:
        with self._run.reader(topic, start=self._next) as reader:
            yield from reader.to_end()
            self._next |= reader.positions()


def _sample(message: KafkaMessage, scored: RolloutScored) -> SampleFact:
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
