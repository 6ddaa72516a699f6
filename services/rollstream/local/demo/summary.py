"""Computes the figures of a finished run from its topics. Pure."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from rollstream.history.ledger import Survivors, surviving
from rollstream.local.demo.facts import RunFacts, SampleFact
from rollstream.schemas.ledger import EntryKind, GroupOutcome, LedgerEntry


class RunSummary(BaseModel):
    """The content of `summary.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int
    learning_rate: float
    reward_first: float = Field(description="Mean reward of every scored sample of groups closed in the first tenth")
    reward_last: float = Field(description="The same for the last tenth of the steps")
    eval_before: float = Field(description="Mean reward on held-out prompts, greedy, before the first step")
    eval_after: float = Field(description="The same after the last step")
    eval_prompts: int
    steps: int
    groups_submitted: int
    groups_trained: int
    groups_dropped: dict[str, int] = Field(description="By reason")
    groups_in_flight: int = Field(description="Groups on prompts that no surviving ledger entry closes")
    groups_lost: int = Field(
        description="Closed as lost, or without all samples and not closed after the stages had finished"
    )
    rollouts_trained: int
    rollouts_trained_twice: int = Field(description="Rollouts in more than one surviving step")
    duplicate_records: int = Field(description="Records of scored beyond the first of their rollout")
    dead_letters: int
    policy_lag_max: int
    policy_lag_mean: float
    rollouts_with_two_versions: int
    weight_versions_published: int
    weight_versions_applied: int
    tokens_per_second: float = Field(description="Completion tokens on scored per second of the loop")
    steps_per_minute: float
    loop_seconds: float = Field(description="From the first prompt to the end of the last step")
    killed: str | None = Field(default=None, description="Stage that the demo killed")

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.model_dump(), indent=2) + "\n")


class Measured(BaseModel):
    """What the topics do not hold: the run's options, and the results of the two evaluations."""

    model_config = ConfigDict(frozen=True)

    seed: int
    learning_rate: float
    eval_before: float
    eval_after: float
    eval_prompts: int
    killed: str | None = None


def summarize(facts: RunFacts, measured: Measured) -> RunSummary:
    survivors = surviving(facts.ledger)
    steps = [entry for entry in survivors.chain if entry.kind is EntryKind.STEP]
    first, last = _tenths(survivors.chain, survivors.step)
    samples = {sample.lies_at: sample for sample in facts.samples}
    lags = _lags(steps, samples, survivors)
    seconds = _loop_seconds(facts.started_at, steps)
    trained = Counter(rollout.rollout_id for entry in steps for rollout in entry.trained)
    open_groups = facts.submitted - set(survivors.closed)
    dropped = Counter(group.reason for group in survivors.closed.values() if group.outcome is GroupOutcome.DROPPED)
    return RunSummary(
        **measured.model_dump(),
        reward_first=_mean_reward(facts.samples, first),
        reward_last=_mean_reward(facts.samples, last),
        steps=survivors.step,
        groups_submitted=len(facts.submitted),
        groups_trained=sum(group.outcome is GroupOutcome.TRAINED for group in survivors.closed.values()),
        groups_dropped=dict(sorted(dropped.items())),
        groups_in_flight=len(open_groups),
        groups_lost=num_incomplete(facts.samples, open_groups) + dropped["lost"],
        rollouts_trained=len(trained),
        rollouts_trained_twice=sum(1 for count in trained.values() if count > 1),
        duplicate_records=len(facts.samples) - len({sample.rollout_id for sample in facts.samples}),
        dead_letters=facts.dead_letters,
        policy_lag_max=max(lags, default=0),
        policy_lag_mean=sum(lags) / max(1, len(lags)),
        rollouts_with_two_versions=sum(1 for sample in facts.samples if len(sample.weight_versions) > 1),
        weight_versions_published=len(facts.published),
        weight_versions_applied=len(facts.applied & facts.published),
        tokens_per_second=sum(sample.num_tokens for sample in facts.samples) / seconds,
        steps_per_minute=60 * survivors.step / seconds,
        loop_seconds=seconds,
    )


def _tenths(chain: Iterable[LedgerEntry], num_steps: int) -> tuple[set[str], set[str]]:
    """Groups closed in the first and in the last tenth of the steps, including dropped groups."""
    tenth = max(1, math.ceil(num_steps / 10))
    first: set[str] = set()
    last: set[str] = set()
    for entry in chain:
        # Drops between two steps belong to the step that is being gathered.
        step = entry.step + (entry.kind is EntryKind.DROPS)
        if entry.kind in (EntryKind.STEP, EntryKind.DROPS):
            closed = {group.group_id for group in entry.closed}
            if step <= tenth:
                first |= closed
            if num_steps - tenth < step <= num_steps:
                last |= closed
    return first, last


def _mean_reward(samples: Iterable[SampleFact], groups: set[str]) -> float:
    rewards = {s.rollout_id: s.reward for s in samples if s.group_id in groups and s.reward is not None}
    return sum(rewards.values()) / len(rewards) if rewards else math.nan


def _lags(
    steps: Iterable[LedgerEntry], samples: Mapping[tuple[int, int], SampleFact], survivors: Survivors
) -> list[int]:
    """The policy lag of each trained rollout, from the version that its step started with; -1 if it is unknown."""
    lags = []
    for entry in steps:
        for rollout in entry.trained:
            versions = samples[rollout.partition, rollout.offset].weight_versions
            lag = survivors.versions.policy_lag(versions, entry.parent_version or 0)
            lags.append(-1 if lag is None else lag)
    return lags


def _loop_seconds(started_at: datetime | None, steps: list[LedgerEntry]) -> float:
    if not steps or started_at is None:
        return math.nan
    return (steps[-1].finished_at - started_at).total_seconds()


def num_incomplete(samples: Iterable[SampleFact], open_groups: Set[str]) -> int:
    """Open groups that do not have all their samples on `scored`."""
    seen: dict[str, set[str]] = {group: set() for group in open_groups}
    sizes: dict[str, int] = {}
    for sample in samples:
        if sample.group_id in seen:
            seen[sample.group_id].add(sample.rollout_id)
            sizes[sample.group_id] = sample.group_size
    return sum(1 for group, rollouts in seen.items() if len(rollouts) < sizes.get(group, 1))
