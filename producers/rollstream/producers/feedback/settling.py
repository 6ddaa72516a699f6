"""What becomes of an answer, by the feedback on it: settled with a reward at a time, or left out. Pure.

All times are the broker's append times, in milliseconds since 1970, so that the same log gives the same again:

    answer ── all that is required is there ── settle_seconds ── settled: the newest value of each metric and client
       │                                                          that was there by then; later ones change nothing
       ├── nobody said anything for absent_seconds ── settled by silence, if `absent` is set
       └── window_days ── left out
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import NamedTuple

from rollstream.producers.feedback.settings import FeedbackSettings
from rollstream.schemas.bounds import MAX_REWARD


class LeftOut(StrEnum):
    """Why an answer never trains, besides the reasons for which the trainer drops its group."""

    NO_CONSENT = "no_consent"
    """Its client's key does not let it train."""
    NOT_COMPLETED = "not_completed"
    """Its rollout failed, or ended without an answer."""
    NO_TOKENS = "no_tokens"
    """It is recorded as text alone."""
    NOT_PLAIN = "not_plain"
    """Its logprobs are not the policy's: its sampling was truncated, penalized or bound to a grammar."""
    OTHER_TOKENIZER = "other_tokenizer"
    """Its generator's tokenizer is not the one that the settings name."""
    NO_COMPONENT = "no_component"
    """A component of the rubric's reward that is required is not there."""
    NO_FEEDBACK = "no_feedback"
    """Nobody said anything within the window."""
    INCOMPLETE = "incomplete"
    """Some was said, and not all that is required in time to settle within the window."""
    OUT_OF_RANGE = "out_of_range"
    """Its reward is beyond what a record can hold."""
    TOO_OLD = "too_old"
    """The weights that sampled it are more than max_served_lag steps behind."""
    WINDOW = "window"
    """It settled, and the share left no room for it within the window."""
    OVERFLOW = "overflow"
    """The store was full, and it was the oldest."""
    TOO_LARGE = "too_large"
    """With its feedback it is larger than a record may be."""


class Given(NamedTuple):
    """A rating of one answer. `given_ms`: from when it counts."""

    given_ms: int
    metric: str
    client: str
    number: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTimes:
    """Since when the answer is known, when its window ends, and the rubric's components that count."""

    appended_ms: int
    ends_ms: int
    components: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What becomes of an answer at `at_ms`, unless feedback from before then changes it.

    `reward` is None if it is left out, for `left_out`. `values`: what each metric counted as.
    """

    at_ms: int
    reward: float | None = None
    values: Mapping[str, float]
    left_out: LeftOut | None = None


def judged(answer: AnswerTimes, given: Sequence[Given], settings: FeedbackSettings) -> Judgement:
    """What becomes of the answer by this feedback, all of it on metrics that have a weight, in order of time."""
    needed = [name for name in settings.required if name in settings.weights]
    if any(name not in answer.components for name in settings.required if name not in settings.weights):
        return _left_out(answer.appended_ms, LeftOut.NO_COMPONENT)
    first: dict[str, int] = {}
    for one in given:
        first.setdefault(one.metric, max(one.given_ms, answer.appended_ms))
    silent_ms = _silent_ms(answer, settings)
    if silent_ms is not None and not any(moment <= silent_ms for moment in first.values()):
        return _settled(answer, silent_ms, {}, settings)
    if any(name not in first for name in needed) or not first:
        return _left_out(answer.ends_ms, LeftOut.INCOMPLETE if first else LeftOut.NO_FEEDBACK)
    complete_ms = max(first[name] for name in needed) if needed else min(first.values())
    at_ms = complete_ms + round(settings.settle_seconds * 1000)
    if at_ms > answer.ends_ms:
        return _left_out(answer.ends_ms, LeftOut.INCOMPLETE)
    return _settled(answer, at_ms, _values(given, at_ms), settings)


def _silent_ms(answer: AnswerTimes, settings: FeedbackSettings) -> int | None:
    """When silence counts as said; None if it never does."""
    if settings.absent is None:
        return None
    at_ms = answer.appended_ms + round(settings.absent_seconds * 1000)
    return at_ms if at_ms <= answer.ends_ms else None


def _values(given: Sequence[Given], at_ms: int) -> dict[str, float]:
    """Each metric's mean over its clients, of the newest value of each."""
    newest: dict[str, dict[str, float]] = {}
    for one in given:
        if one.given_ms <= at_ms:
            newest.setdefault(one.metric, {})[one.client] = one.number
    return {metric: fmean(of_clients.values()) for metric, of_clients in newest.items()}


def _settled(answer: AnswerTimes, at_ms: int, values: Mapping[str, float], settings: FeedbackSettings) -> Judgement:
    """`values`: empty for silence, which `absent` stands for."""
    said = [settings.weights[metric] * value for metric, value in values.items()]
    of_metrics = sum(said) if values or settings.absent is None else settings.absent
    of_rubric = sum(
        weight * answer.components[name]
        for name, weight in settings.component_weights.items()
        if name in answer.components
    )
    reward = of_metrics + of_rubric
    if abs(reward) > MAX_REWARD:
        return _left_out(at_ms, LeftOut.OUT_OF_RANGE)
    return Judgement(at_ms=at_ms, reward=reward, values=values)


def _left_out(at_ms: int, reason: LeftOut) -> Judgement:
    return Judgement(at_ms=at_ms, values={}, left_out=reason)
