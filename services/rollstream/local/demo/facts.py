"""Reads from a finished run's topics what the demo's summary is computed from."""

from dataclasses import dataclass
from datetime import datetime

from rollstream.bus.message import Message
from rollstream.bus.run import Run
from rollstream.history.passing import read_entries
from rollstream.schemas.ledger import LedgerEntry
from rollstream.schemas.prompt import Purpose
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import DEAD_LETTERS, PROMPTS, SCORED, WEIGHTS, WEIGHTS_APPLIED
from rollstream.schemas.weights import ApplyOutcome


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


def read_facts(run: Run) -> RunFacts:
    """Read the run's topics from start to end. Records that can't be decoded are left out; dead letters are counted."""
    prompts = [prompt for prompt in run.read(PROMPTS) if prompt.purpose is Purpose.TRAIN]
    applied = [record for record in run.read(WEIGHTS_APPLIED) if record.outcome is ApplyOutcome.APPLIED]
    with run.reader(DEAD_LETTERS) as letters:
        num_letters = sum(1 for _ in letters.to_end())
    return RunFacts(
        submitted=frozenset(prompt.group_id for prompt in prompts),
        started_at=min((prompt.submitted_at for prompt in prompts), default=None),
        samples=tuple(_sample(message, scored) for message, scored in run.read_with_messages(SCORED)),
        ledger=tuple(read_entries(run)),
        published=frozenset(record.weight_version for record in run.read(WEIGHTS)),
        applied=frozenset(record.weight_version for record in applied),
        dead_letters=num_letters,
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
