"""Whether a complete group is trained on: status, tokenizer, bounds, lag, spread. Pure; every refusal has a reason.

A group is trained on its completed samples if they are at least half of it. The truncated ones among them count in
the baseline alone, unless the rules say otherwise. So does a group of one that is truncated: if it counted nowhere, a
policy could evade a bad reward by running to its limit.

A group has spread if what trains of it has an advantage that is not 0. That is asked of the chosen advantages: with a
constant baseline a group of equal rewards teaches something. What the step's batch adds later changes no 0. A group of
one is compared with others when a step takes it, so only then is its spread judged (`ones.py`).
The truncated samples decide with: of 7 right answers and 1 that was cut off the 7 train, at +1/8 each. So they learn
that to end in time pays, which no reward function said. To compare the rewards of the finished samples alone would
drop such a group instead. That costs the tokens of every prompt whose answers are right or cut off, and they are the
long ones: what a model can do if it ends in time would hardly be trained.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from rollstream.schemas.errors import BadMessageError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.rollout import Status
from rollstream.trainer.intake.groups import DropReason, Group, PlacedSample
from rollstream.training.learning.advantages import group_advantages
from rollstream.training.learning.bounds import ANY_MODEL, ModelBounds, refuse_out_of_bounds
from rollstream.training.learning.samples import TrainedTokens, TrainingSample, training_samples
from rollstream.training.learning.settings import AdvantageSettings
from rollstream.training.learning.turn_credit import turn_advantages

LagScope = Literal["group", "token"]
Credit = Literal["rollout", "turn"]
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """What a group must meet. An empty hash of the trainer's accepts any tokenizer or chat template.

    A generator without a hash of its tokenizer (an `openai_http` engine without `tokenizer_path`) is refused by a
    trainer that has one: nothing says that its token ids are the trainer's.
    """

    max_policy_lag: int
    max_served_lag: int = 64
    """`max_policy_lag` of answers to clients, which wait for feedback."""
    lag_scope: LagScope = "group"
    train_without_spread: bool = False
    train_truncated: bool = False
    credit: Credit = "rollout"
    """Whose scores are compared: rollouts' rewards, or `turn_scores`. Groups of one are compared by their rewards."""
    turn_weights: Mapping[str, float] = field(default_factory=dict)
    advantages: AdvantageSettings = field(default_factory=AdvantageSettings)
    kl_in_reward: bool = False
    """Whether rewards are lowered by a KL divergence, so that a group of equal ones teaches too."""
    tokenizer_sha256: str = ""
    chat_template_sha256: str = ""
    bounds: ModelBounds = ANY_MODEL

    @property
    def compares_ones(self) -> bool:
        """Whether groups of one are compared with each other; not if their baseline is a constant."""
        return self.advantages.advantages != "constant"

    @property
    def trains_flat(self) -> bool:
        """Whether groups whose advantages are all 0 train too."""
        return self.kl_in_reward or self.train_without_spread

    def lag_bound(self, group: Group) -> int:
        """Largest policy lag with which the group trains, in optimizer steps."""
        return self.max_served_lag if group.is_served else self.max_policy_lag


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A group to train on: its completed samples in order of sample_index, as scored and as the learner takes them.

    There are more of the latter where turns branch: a rollout's follow one another.
    """

    group: Group
    scored: tuple[PlacedSample, ...]
    training: tuple[TrainingSample, ...]

    @property
    def has_spread(self) -> bool:
        """Whether anything is learned from it. False of a group of one until it is compared with others."""
        return any(sample.has_gradient for sample in self.training)


def admit(group: Group, rules: AdmissionRules, lag: Callable[[int], int | None]) -> Admitted | DropReason:
    """Admit a complete group, or say why not; `lag`: version → policy lag, None if it was never published."""
    completed = tuple(sample for sample in group.in_order() if sample.is_completed)
    refused = (
        _refused_by_status(group, completed)
        or _refused_by_consent(completed)
        or _refused_by_tokens(completed)
        or _refused_by_tokenizer(completed, rules)
        or _refused_by_bounds(completed, rules)
    )
    if refused:
        return refused
    lags = {version: lag(version) for sample in completed for version in sample.scored.rollout.weight_versions}
    known = {version: steps for version, steps in lags.items() if steps is not None}
    if len(known) < len(lags):
        return DropReason.UNKNOWN_VERSION
    if rules.lag_scope == "group" and max(known.values(), default=0) > rules.lag_bound(group):
        return DropReason.TOO_OLD
    return _admitted(group, completed, rules, known)


def _admitted(
    group: Group, completed: tuple[PlacedSample, ...], rules: AdmissionRules, lags: Mapping[int, int]
) -> Admitted | DropReason:
    rewards = [reward for sample in completed if (reward := sample.scored.scoring.reward) is not None]
    advantages = group_advantages(rewards, rules.advantages)
    recent = frozenset(version for version, steps in lags.items() if steps <= rules.lag_bound(group))
    trained = TrainedTokens(
        versions=None if rules.lag_scope == "group" else recent,
        truncated=rules.train_truncated,
        turn_weights=rules.turn_weights,
    )
    of_turns = _turn_advantages(group, completed, rules)
    if not any(one is None or one for one in of_turns):
        return DropReason.NO_SPREAD
    try:
        training = tuple(
            one
            for sample, advantage, own in zip(completed, advantages, of_turns, strict=True)
            for one in training_samples(
                sample.scored.rollout,
                sample.scored.scoring.reward,
                advantage=float(advantage),
                lag=max((lags[version] for version in sample.scored.rollout.weight_versions), default=0),
                bounds=rules.bounds,
                trained=trained,
                of_turns=own,
            )
        )
    except BadMessageError as error:
        _LOG.debug("group dropped: %s", error)
        return DropReason.UNTRAINABLE
    is_compared_later = group.is_one and rules.compares_ones
    if not any(sample.num_trained_tokens for sample in training):
        why = _why_nothing_trains(completed, rules, is_late=len(recent) < len(lags))
        # Where flat groups train too, nothing would keep a step of truncated ones alone from being made.
        if why is not DropReason.ALL_TRUNCATED or not is_compared_later or rules.trains_flat:
            return why
    admitted = Admitted(group=group, scored=completed, training=training)
    teaches = admitted.has_spread or rules.trains_flat or is_compared_later
    return admitted if teaches else DropReason.NO_SPREAD


def _why_nothing_trains(completed: Sequence[PlacedSample], rules: AdmissionRules, *, is_late: bool) -> DropReason:
    if is_late:
        return DropReason.TOO_OLD
    is_cut = not rules.train_truncated and any(sample.scored.rollout.is_truncated for sample in completed)
    return DropReason.ALL_TRUNCATED if is_cut else DropReason.UNTRAINABLE


def _turn_advantages(
    group: Group, completed: Sequence[PlacedSample], rules: AdmissionRules
) -> Sequence[dict[int, float] | None]:
    """The advantages of each rollout's turns; None: its own counts for all of them."""
    if rules.credit == "rollout" or group.is_one:
        return [None] * len(completed)
    return turn_advantages([sample.scored for sample in completed], keeps_flat=rules.trains_flat)


def _refused_by_status(group: Group, completed: Sequence[PlacedSample]) -> DropReason | None:
    if 2 * len(completed) >= group.group_size:
        return None
    others = [sample.scored.scoring for sample in group.in_order() if not sample.is_completed]
    if any(scoring.failure and scoring.failure.code is FailureCode.UNSUPPORTED_SAMPLING for scoring in others):
        return DropReason.UNSUPPORTED_SAMPLING
    num_failed = sum(scoring.status is Status.FAILED for scoring in others)
    return DropReason.FAILED if 2 * num_failed >= len(others) else DropReason.UNRESOLVED


def _refused_by_consent(completed: Sequence[PlacedSample]) -> DropReason | None:
    served = (sample.scored.rollout.served for sample in completed)
    return None if all(one is None or one.may_train for one in served) else DropReason.NO_CONSENT


def _refused_by_tokens(completed: Sequence[PlacedSample]) -> DropReason | None:
    """A turn of a server that speaks only text has no tokens. A turn that the policy sampled has one at least.

    Turns of other models have none either, and never train. At least one turn must train.
    """
    turns = [turn for sample in completed for turn in sample.scored.rollout.turns]
    if not all(len(turn.token_ids) for turn in turns if not turn.model):
        return DropReason.NO_TOKENS
    return DropReason.NOT_PLAIN if turns and not any(turn.may_train for turn in turns) else None


def _refused_by_tokenizer(completed: Sequence[PlacedSample], rules: AdmissionRules) -> DropReason | None:
    generators = [sample.scored.rollout.generator for sample in completed]
    is_ours = all(
        rules.tokenizer_sha256 in ("", generator.tokenizer_sha256)
        and _agree(generator.chat_template_sha256, rules.chat_template_sha256)
        for generator in generators
    )
    return None if is_ours else DropReason.TOKENIZER_MISMATCH


def _agree(theirs: str, ours: str) -> bool:
    # An empty hash: whoever wrote it does not know, so there is nothing to compare.
    return theirs == ours or not theirs or not ours


def _refused_by_bounds(completed: Sequence[PlacedSample], rules: AdmissionRules) -> DropReason | None:
    try:
        for sample in completed:
            refuse_out_of_bounds(sample.scored, rules.bounds)
    except BadMessageError as error:
        _LOG.debug("group dropped: %s", error)
        return DropReason.OUT_OF_BOUNDS
    return None


def narrow_lag_bound(steps: Iterable[Mapping[str, float]], max_policy_lag: int) -> str | None:
    """A warning if the slowest percent of rollouts takes longer than `max_policy_lag` optimizer steps; else None.

    `steps`: the metrics `rollout_seconds_p99` and `step_seconds` of the run's latest steps. Their medians are compared,
    so that one step after a pause does not decide. Answers to clients are in neither: `max_served_lag` bounds those.
    """
    pairs = [
        (step["rollout_seconds_p99"], step["step_seconds"])
        for step in steps
        if "rollout_seconds_p99" in step and step.get("step_seconds", 0.0) > 0
    ]
    if not pairs:
        return None
    rollout_seconds, step_seconds = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
    needed = rollout_seconds / step_seconds
    if max_policy_lag >= needed:
        return None
    return (
        f"max_policy_lag {max_policy_lag} is below {needed:.1f}: the slowest percent of rollouts takes "
        f"{rollout_seconds:.1f} s, a step {step_seconds:.1f} s; steps wait for long samples, or drop them as too_old; "
        "raise max_policy_lag, or bound the samples' length"
    )
