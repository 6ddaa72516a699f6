"""`LedgerEntry`: one entry of the ledger, the topic that says what counts.

An optimizer step or a closed group counts only if an entry on the surviving branch says so.

A group's life from its prompt to its entry here is drawn in `trainer/intake/groups.py`.
"""

from enum import StrEnum
from typing import Final

from pydantic import Field

from rollstream.schemas.record import Count, Id, Name, Record, Reward, Sequence, Symbol, Text, Timestamp

NON_FINITE_REASON: Final = "non_finite"
"""Reason of a dropped group: its step had a non-finite loss or gradient, and was skipped."""
NO_SPREAD_REASON: Final = "no_spread"
"""Reason of a dropped group: nothing is learned from it, most often since all its samples have the same reward."""
UPDATES_SKIPPED: Final = "updates_skipped"
"""Metric of a step: of its optimizer updates, how many were skipped after a non-finite loss or gradient."""
TRAINED_AT_LAG: Final = "trained_tokens_at_lag/"
"""Begin of metrics of a step: tokens that it trained on. The policy lag of the weights that sampled them follows."""
REWARD_COMPONENT: Final = "reward_component/"
"""Begin of metrics of a step: the mean of one reward function, whose name follows."""
MOST_REWARD_COMPONENTS: Final = 64
"""Reward functions that are reported. A rubric has a few, but whoever writes to `scored` may name any."""
MISSING_RATIO: Final = "missing_ratio/"
"""Begin of metrics of a step: the share of samples that have no reward for this failure code, which follows."""


class EntryKind(StrEnum):
    """What an entry records."""

    UNKNOWN = "UNKNOWN"
    STEP = "step"
    """One optimizer step and the weight version that it made."""
    DROPS = "drops"
    """Groups dropped while no step is due, so that producers get their credit back."""
    RESTART = "restart"
    """A trainer started (parent: the restored version), or left a checkpoint at its end (the version then)."""
    ROLLBACK = "rollback"
    """An operator went back to an older version, the parent of the new one. `incarnation` is then `rollback-…`."""
    SKIP = "skip"
    """An operator repaired the run: readers pass over the records that this entry names."""


class GroupOutcome(StrEnum):
    """How a group closed."""

    UNKNOWN = "UNKNOWN"
    TRAINED = "trained"
    DROPPED = "dropped"


class TrainedRollout(Record):
    """A rollout whose reward a step used, and where its record lies in `scored`.

    Truncated ones are among them, though their tokens are not trained on.

    Example:
        trained = TrainedRollout(
            rollout_id=rollout.rollout_id, attempt_id=rollout.attempt_id, partition=1, offset=4711
        )
    """

    rollout_id: Name = Field(description="Id of the sample")
    attempt_id: Id = Field(description="Which attempt")
    subject: Name = Field(default="", description="HMAC of the id of the person who asked; empty: not known")
    partition: Count = Field(description="Partition in scored")
    offset: Count = Field(description="Offset in scored")


class ClosedGroup(Record):
    """A group that is closed, and how.

    Example:
        closed = ClosedGroup(group_id=rollout.group_id, outcome=GroupOutcome.TRAINED, reward_mean=0.25)
        dropped = ClosedGroup(
            group_id=group_id("demo", "sort_digits/18", 0),
            outcome=GroupOutcome.DROPPED,
            reason="no_spread",
            reward_mean=1.0,
        )
    """

    group_id: Id = Field(description="Id of the group")
    outcome: Symbol[GroupOutcome] = Field(description="trained or dropped")
    reason: Name = Field(default="", description="Why it was dropped, empty when trained")
    reward_mean: Reward | None = Field(
        default=None, description="Mean reward of its completed samples, null if there are none or nobody knows"
    )


class SkippedRecord(Record):
    """A record that readers pass over: it can't be read, contradicts others, or was written by a stranger.

    Example:
        skipped = SkippedRecord(topic="ledger", partition=0, offset=17, reason="not in the wire format")
    """

    topic: Name = Field(description="ledger or weights, without the run's name")
    partition: Count = Field(description="Partition of that topic")
    offset: Count = Field(description="Offset in that topic")
    reason: Text = Field(default="", description="What was wrong with it, for people")


class LedgerEntry(Record):
    """One entry of the ledger; its key is the run.

    Example:
        LedgerEntry(
            kind=EntryKind.STEP,
            incarnation="9f3c",
            step=5,
            weight_version=5,
            parent_version=4,
            trained=(trained,),
            closed=(closed, dropped),
            metrics={"loss": 0.5, "reward_mean": 0.75},
            started_at=utc_now(),
            finished_at=utc_now(),
        )
        LedgerEntry(
            kind=EntryKind.SKIP,
            incarnation="repair-51aa",
            step=5,
            weight_version=5,
            skipped=(skipped,),
            started_at=utc_now(),
            finished_at=utc_now(),
        )
    """

    kind: Symbol[EntryKind] = Field(description="step, drops, restart, rollback or skip")
    incarnation: Name = Field(description="Id of the trainer process that wrote it")
    step: Count = Field(description="Optimizer steps on the surviving branch up to here")
    weight_version: Count = Field(description="Version after this entry; for drops and skip the current one")
    parent_version: Count | None = Field(default=None, description="Version before it; null for drops, skip, version 0")
    checkpoint: str | None = Field(default=None, description="Uri of the checkpoint that this entry names")
    trained: Sequence[TrainedRollout] = Field(default=(), description="Rollouts that this step trained on")
    closed: Sequence[ClosedGroup] = Field(default=(), description="Groups that this entry closes")
    skipped: Sequence[SkippedRecord] = Field(default=(), description="Records that readers pass over from now on")
    metrics: dict[str, float] = Field(default_factory=dict, description="What the step reports, by name")
    started_at: Timestamp = Field(description="UTC")
    finished_at: Timestamp = Field(description="UTC")
