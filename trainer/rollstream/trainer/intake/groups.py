"""A group of scored samples while it is open, and every reason why one closes without being trained on.

    prompt             a `PromptSubmitted` on `prompts`; its group opens with it, or with the first of its samples
      │
    incomplete         samples arrive from `scored`, in any order, some more than once (`assembler.py`)
      │ └─▶ dropped    not_for_training, conflict, overflow, lost, expired; failed or unsupported_sampling at once, if
      │                a number of its prompt is out of bounds
      │
    complete           every sample is there, whatever its status (`admission.py` decides)
      │ └─▶ dropped    failed, unresolved, unsupported_sampling, no_consent, no_tokens, not_plain,
      │                tokenizer_mismatch, out_of_bounds, unknown_version, too_old, untrainable, all_truncated,
      │                no_spread, except of a group of one
      │
    admitted           it waits for a step, and is admitted once more when the step takes it (`intake.py`); a group of
      │                one also waits for another one of its environment (`waiting.py`)
      │ └─▶ dropped    too_old, as steps went on; non_finite, if the step was skipped; conflict, by a late record; of a
      │                group of one no_spread, if the step's others have its reward, or overflow, if it waits alone
      │
    trained            its samples are part of an optimizer step (`../loop.py`)
      │
    closed             a `LedgerEntry` names it, as trained or as dropped with the reason: its credit comes back
      │
      └─▶ incomplete   a restart or a rollback cut that entry (`history/ledger.py`): the group is open again,
                       and the next trainer reads its records again; if it was non_finite, that restart closes it

A trained or dropped group is closed once its entry is committed. If the trainer is killed before, the next one finds
it open.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean
from typing import NamedTuple

from rollstream.bus.message import Partition
from rollstream.process.tracing.context import TraceContext
from rollstream.schemas.ledger import NO_SPREAD_REASON, NON_FINITE_REASON, ClosedGroup, GroupOutcome
from rollstream.schemas.rollout import Status
from rollstream.schemas.scored import RolloutScored


class DropReason(StrEnum):
    """Why a group closed without being trained on; the `reason` of a dropped group in the ledger."""

    NOT_FOR_TRAINING = "not_for_training"
    """Its prompt's purpose is not `train`."""
    CONFLICT = "conflict"
    """Its records disagree on what was asked or on how many samples there are."""
    OVERFLOW = "overflow"
    """Incomplete groups took more memory than their bound; this was the oldest. Or too many groups of one wait, each as
    the only one of its environment."""
    LOST = "lost"
    """Every stage before this one is done with it, and samples are missing."""
    EXPIRED = "expired"
    """Its records expired on their topic before they were read, and a person accepted the loss. Or its prompt is so old
    that groups of its time are forgotten: it may have closed before. A producer whose clock is weeks behind gets this
    for all of its groups."""
    FAILED = "failed"
    """More than half of its samples are not completed, at least half of these failed; or a number of its prompt is out
    of bounds."""
    UNRESOLVED = "unresolved"
    """More than half of its samples are not completed, more than half of these unresolved."""
    UNSUPPORTED_SAMPLING = "unsupported_sampling"
    """Its prompt's sampling (e.g. top_k) changes the distribution, so that the logprobs are not the policy's; or no
    engine samples at its temperature."""
    NO_TOKENS = "no_tokens"
    """A turn has text but no tokens: a server that speaks only text generated it."""
    NO_CONSENT = "no_consent"
    """It was served to a client whose answers may not train."""
    NOT_PLAIN = "not_plain"
    """None of its turns may train (`Turn.may_train`): e.g. all were sampled with penalties."""
    TOKENIZER_MISMATCH = "tokenizer_mismatch"
    """A generator's tokenizer or chat template is not the trainer's, or the generator does not know its tokenizer."""
    UNKNOWN_VERSION = "unknown_version"
    """A span names a weight version that this run never published."""
    TOO_OLD = "too_old"
    """Its policy lag exceeds max_policy_lag, or max_served_lag if it was served to a client."""
    UNTRAINABLE = "untrainable"
    """A turn extends tokens that do not exist, or its samples are too long together; or no turn of it trains."""
    OUT_OF_BOUNDS = "out_of_bounds"
    """Its token ids, length or temperature are beyond what a step computes with (`training/learning/bounds.py`)."""
    ALL_TRUNCATED = "all_truncated"
    """Every completed sample ended at its token limit."""
    NO_SPREAD = NO_SPREAD_REASON
    """The advantage is 0 on all that trains, most often since all samples have the same reward: nothing to learn
    from. Of a group of one: since all groups of one of its environment in its step have the same reward."""
    NON_FINITE = NON_FINITE_REASON
    """Its step had a non-finite loss or gradient and was skipped. A restart that cuts this closes it again."""


class LogPlace(NamedTuple):
    """Where a record lies."""

    partition: Partition
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedSample:
    """A scored sample, where it lies in `scored`, its size there in bytes, and the span of its scoring, if traced."""

    scored: RolloutScored
    place: LogPlace
    num_bytes: int
    trace: TraceContext | None = None

    @property
    def is_completed(self) -> bool:
        """Whether it has a reward."""
        return self.scored.scoring.status is Status.COMPLETED


@dataclass(slots=True, kw_only=True)
class Group:
    """An open group. `samples`: sample_index → the attempt that is kept. `places`: where all its records lie.

    A group that is only expected (`Assembler.expect`) has an empty hash and size 0 until one of its records comes.
    `trace`: the context of its first record, if spans are exported.
    """

    group_id: str
    content_hash: str
    group_size: int
    prompt_place: LogPlace | None = None
    samples: dict[int, PlacedSample] = field(default_factory=dict)
    places: list[LogPlace] = field(default_factory=list)
    trace: TraceContext | None = None

    @property
    def is_complete(self) -> bool:
        """Whether every sample is there, whatever its status."""
        return 0 < self.group_size == len(self.samples)

    @property
    def is_one(self) -> bool:
        """Whether it has one sample, which is compared with those of other groups."""
        return self.group_size == 1

    @property
    def environment(self) -> str:
        """Of its prompt; there must be a sample."""
        return next(iter(self.samples.values())).scored.rollout.prompt.environment

    @property
    def is_served(self) -> bool:
        """Whether its samples are answers to clients. Those wait for feedback, so they may be older."""
        return bool(self.samples) and all(one.scored.rollout.served is not None for one in self.samples.values())

    @property
    def num_bytes(self) -> int:
        return sum(sample.num_bytes for sample in self.samples.values())

    @property
    def reward_mean(self) -> float | None:
        """Mean reward of its completed samples; None if there are none."""
        rewards = [sample.scored.scoring.reward for sample in self.samples.values() if sample.is_completed]
        known = [reward for reward in rewards if reward is not None]
        return fmean(known) if known else None

    def in_order(self) -> list[PlacedSample]:
        """Its samples by sample_index."""
        return [self.samples[index] for index in sorted(self.samples)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedGroup:
    """A group that closed without being trained on, with the samples that it had."""

    group: Group
    reason: DropReason

    def closed(self) -> ClosedGroup:
        """What the ledger says of it."""
        return ClosedGroup(
            group_id=self.group.group_id,
            outcome=GroupOutcome.DROPPED,
            reason=self.reason.value,
            reward_mean=self.group.reward_mean,
        )
