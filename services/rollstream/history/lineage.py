"""Finds what belongs to one rollout or one optimizer step in the records of a run's topics. Pure.

prompt → generator, attempts and spans → scorer and reward → step → weight version. Records that retention has deleted
are missing; nothing is guessed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rollstream.history.ledger import Survivors
from rollstream.schemas.ids import group_of
from rollstream.schemas.ledger import ClosedGroup, EntryKind, LedgerEntry, TrainedRollout
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.record import Record
from rollstream.schemas.rollout import RolloutGenerated
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.weights import WeightsPublished

R_co = TypeVar("R_co", bound=Record, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRecord(Generic[R_co]):
    """A record and its place on Kafka."""

    topic: str
    partition: int
    offset: int
    record: R_co


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStory:
    """All that the topics hold about one rollout.

    `trained` and `step` are of the surviving step that trained on it. `closed` says how its group closed on the
    surviving branch. `cut_steps` trained on it and were cut by a restart or rollback. `policy_lag` is the
    largest of the trained attempt's spans: optimizer steps from its version to the one that the step started from.
    """

    rollout_id: str
    prompt: FoundRecord[PromptSubmitted] | None
    attempts: tuple[FoundRecord[RolloutGenerated], ...]
    scored: tuple[FoundRecord[RolloutScored], ...]
    closed: ClosedGroup | None
    closing_entry: LedgerEntry | None
    trained: TrainedRollout | None
    step: LedgerEntry | None
    version: WeightsPublished | None
    policy_lag: int | None
    cut_steps: tuple[LedgerEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStory:
    """A surviving step: its entry, its weight version, and each rollout that it trained on, with its policy lag."""

    step: LedgerEntry
    version: WeightsPublished | None
    rollouts: tuple[tuple[TrainedRollout, RolloutScored | None, int | None], ...]
    cut_steps: tuple[LedgerEntry, ...]


def trace_rollout(
    rollout_id: str,
    *,
    found: Iterable[FoundRecord[Record]],
    entries: Sequence[LedgerEntry],
    survivors: Survivors,
    versions: Iterable[WeightsPublished],
) -> RolloutStory:
    """The lineage of `rollout_id` among `found`; `survivors` is the surviving branch of `entries`."""
    group = group_of(rollout_id)
    records = list(found)
    attempts = [_typed(one, RolloutGenerated) for one in records if isinstance(one.record, RolloutGenerated)]
    scored = [_typed(one, RolloutScored) for one in records if isinstance(one.record, RolloutScored)]
    prompts = [_typed(one, PromptSubmitted) for one in records if isinstance(one.record, PromptSubmitted)]
    mine = tuple(one for one in scored if one.record.rollout.rollout_id == rollout_id)
    trained = survivors.trained.get(rollout_id)
    step = next((entry for entry in survivors.chain if any(one is trained for one in entry.trained)), None)
    return RolloutStory(
        rollout_id=rollout_id,
        prompt=next((one for one in prompts if one.record.group_id == group), None),
        attempts=tuple(one for one in attempts if one.record.rollout_id == rollout_id),
        scored=mine,
        closed=survivors.closed.get(group),
        closing_entry=_closing(survivors, group),
        trained=trained,
        step=step,
        version=_version_of(step, versions),
        policy_lag=_trained_lag(mine, trained, step, survivors),
        cut_steps=tuple(
            entry
            for entry in _cut(entries, survivors)
            if any(rollout.rollout_id == rollout_id for rollout in entry.trained)
        ),
    )


def surviving_step(number: int, survivors: Survivors) -> LedgerEntry | None:
    return next((e for e in survivors.chain if e.kind is EntryKind.STEP and e.step == number), None)


def trace_step(
    step: LedgerEntry,
    *,
    found: Iterable[FoundRecord[Record]],
    entries: Sequence[LedgerEntry],
    survivors: Survivors,
    versions: Iterable[WeightsPublished],
) -> StepStory:
    """The lineage of `step`, a surviving entry; `found` holds the records of `scored` that it names."""
    at = {(one.partition, one.offset): one.record for one in found if isinstance(one.record, RolloutScored)}
    rollouts = []
    for trained in step.trained:
        record = at.get((trained.partition, trained.offset))
        rollouts.append((trained, record, None if record is None else _lag(record.rollout, step, survivors)))
    return StepStory(
        step=step,
        version=_version_of(step, versions),
        rollouts=tuple(rollouts),
        cut_steps=tuple(
            entry for entry in _cut(entries, survivors) if entry.kind is EntryKind.STEP and entry.step == step.step
        ),
    )


def _typed(one: FoundRecord[Record], kind: type[R_co]) -> FoundRecord[R_co]:
    if not isinstance(one.record, kind):
        raise TypeError(f"{one.topic}/{one.partition}/{one.offset} is no {kind.__name__}")
    return FoundRecord(topic=one.topic, partition=one.partition, offset=one.offset, record=one.record)


def _closing(survivors: Survivors, group: str) -> LedgerEntry | None:
    return next((e for e in survivors.chain if any(closed.group_id == group for closed in e.closed)), None)


def _cut(entries: Sequence[LedgerEntry], survivors: Survivors) -> list[LedgerEntry]:
    # By identity: two entries may be equal in all fields, and only one of them may be cut.
    kept = {id(entry) for entry in survivors.chain}
    return [entry for entry in entries if id(entry) not in kept]


def _version_of(step: LedgerEntry | None, versions: Iterable[WeightsPublished]) -> WeightsPublished | None:
    if step is None:
        return None
    return next((version for version in versions if version.weight_version == step.weight_version), None)


def _trained_lag(
    scored: tuple[FoundRecord[RolloutScored], ...],
    trained: TrainedRollout | None,
    step: LedgerEntry | None,
    survivors: Survivors,
) -> int | None:
    if trained is None or step is None:
        return None
    place = (trained.partition, trained.offset)
    record = next((one.record for one in scored if (one.partition, one.offset) == place), None)
    return None if record is None else _lag(record.rollout, step, survivors)


def _lag(rollout: RolloutGenerated, step: LedgerEntry, survivors: Survivors) -> int | None:
    if step.parent_version is None:
        return None
    return survivors.versions.policy_lag(rollout.weight_versions, step.parent_version)
