"""What manager and generator share: groups of samples, what is called for them, and which a batch takes. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, TypeAlias

from tenacity import retry_if_exception, stop_after_attempt, wait_exponential

from rollstream.environments.rubric import finite
from rollstream.schemas.errors import ConfigurationError, EngineDeadError, EngineError, RewardError, RollstreamError
from rollstream.training.datasets.data_buffer import DataBuffer
from rollstream.training.filters import why_dropped
from rollstream.training.types import RolloutBatch, RolloutConfig, Sample, SampleStatus

_DEFECTS = (TypeError, AttributeError, NameError, ImportError, AssertionError, NotImplementedError)
_LONGEST_DELAY = 60.0


@dataclass(slots=True, eq=False)
class RolloutGroup:
    """The samples of one prompt, of which some may still be asked for."""

    index: int
    samples: list[Sample]

    @property
    def is_finished(self) -> bool:
        return all(sample.is_finished for sample in self.samples)

    @property
    def slots(self) -> "list[Slot]":
        """The places of its unfinished samples."""
        return [(self, place) for place, sample in enumerate(self.samples) if not sample.is_finished]


Slot: TypeAlias = tuple[RolloutGroup, int]
"""A group, and the place of a sample in it."""
Call: TypeAlias = tuple[str, list[Any], list[Slot]]
"""Which function of the settings, its argument, and where the answers belong."""


def new_groups(buffer: DataBuffer, count: int, config: RolloutConfig) -> list[RolloutGroup]:
    """Groups for the next prompts. Their numbers are the prompts' positions in the buffer, so they never come again."""
    first, size = buffer.position, config.n_samples_per_prompt
    return [
        RolloutGroup(
            index, [Sample(prompt, group_index=index, index=i, status=SampleStatus.PENDING) for i in range(size)]
        )
        for index, prompt in enumerate(buffer.get_prompts(count), start=first)
    ]


def calls_for(slots: Sequence[Slot], config: RolloutConfig) -> list[Call]:
    """What to call for those of these samples that are unfinished: `resume_fn`, if there is one, where tokens are."""
    begun: list[Slot] = []
    fresh: list[Slot] = []
    for group, place in slots:
        sample = group.samples[place]
        if not sample.is_finished:
            (begun if config.resume_fn and sample.tokens else fresh).append((group, place))
    calls: list[Call] = [
        ("resume_fn", [group.samples[place] for group, place in begun], begun),
        ("generate_fn", [group.samples[place].prompt for group, place in fresh], fresh),
    ]
    return [call for call in calls if call[1]]


def settle(slots: Sequence[Slot], answers: object, function: str) -> None:
    """Puts each answer where its prompt was asked, in whatever order they came.

    Raises `ConfigurationError` unless there is one sample for each prompt. `EngineError`: some were stopped on the way.
    """
    if not isinstance(answers, list) or not all(isinstance(one, Sample) for one in answers):
        raise ConfigurationError(f"{function} returned {type(answers).__name__}: return a list of samples")
    if len(answers) != len(slots):
        raise ConfigurationError(
            f"{function} returned {len(answers)} samples for {len(slots)} prompts: return one each"
        )
    left = list(answers)
    for group, place in slots:
        asked = group.samples[place]
        found = next((number for number, answer in enumerate(left) if answer.prompt == asked.prompt), None)
        if found is None:
            raise ConfigurationError(
                f"{function} returned no sample with the prompt of {asked}: keep it as it was given"
            )
        group.samples[place] = replace(left.pop(found), group_index=asked.group_index, index=asked.index)
    stopped = [group.samples[place] for group, place in slots if not group.samples[place].is_finished]
    if stopped:
        raise EngineError(
            f"{len(stopped)} of {len(slots)} answers are unfinished, first {stopped[0]}, {stopped[0].status}"
        )


def with_reward(sample: Sample, reward: object) -> Sample:
    """The sample with what `reward_fn` gave it. Raises `RewardError` unless that is a finite number."""
    return replace(sample, reward=finite(reward, f"the reward of {sample}"))


def with_own_reward(sample: Sample) -> Sample:
    """The sample with the reward that it has, else 1 or 0, as its metadata say under `correct`.

    Raises `RewardError` if it has neither.
    """
    correct = sample.metadata.get("correct")
    if sample.reward is None and not isinstance(correct, bool):
        raise RewardError(f"{sample} has no reward: give a reward_fn, or let generate_fn give `reward`")
    return replace(sample, reward=float(bool(correct))) if sample.reward is None else sample


def retrying(config: RolloutConfig) -> dict[str, Any]:
    """How tenacity calls a function of the user again."""
    return {
        "stop": stop_after_attempt(config.max_attempts),
        "wait": wait_exponential(multiplier=config.retry_delay, max=_LONGEST_DELAY),
        "retry": retry_if_exception(may_pass),
        "reraise": True,
    }


def may_pass(error: BaseException) -> bool:
    """Whether a further call may go better: what machines and servers do, and no defect of the user's code."""
    if isinstance(error, RollstreamError):
        return isinstance(error, EngineError) and not isinstance(error, EngineDeadError)
    return isinstance(error, Exception) and not isinstance(error, _DEFECTS)


def given_up(error: Exception, function: str, about: object, config: RolloutConfig) -> RollstreamError:
    """The error after the last call: of the engine, or of the reward; it is never a reward of 0."""
    kind = RewardError if function == "reward_fn" else EngineError
    return kind(
        f"{function} failed {config.max_attempts} times in a row, about {about}, at last with {type(error).__name__}: "
        f"{error}; nothing is lost: mend the cause, or raise max_attempts or retry_delay, and ask again"
    )


@dataclass(slots=True)
class Selection:
    """The groups of one batch while they are chosen."""

    config: RolloutConfig
    kept: list[RolloutGroup] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    """Reason → groups."""

    @property
    def missing(self) -> int:
        """Groups that the batch lacks."""
        return self.config.batch_size - len(self.kept)

    def to_request(self, in_play: int) -> int:
        """How many more groups to ask for, beside `in_play` that are asked for or finished and not yet judged.

        At the start as many as the settings say; later only where the filters left too few.
        """
        if (self.kept or self.dropped) and in_play >= self.missing:
            return 0
        most = self.config.num_requested * (1 + self.config.max_resampling)
        wanted = ceil(self.missing * self.config.over_sampling_factor)
        return max(0, min(wanted, most - len(self.kept) - self.dropped.total()) - in_play)

    def judge(self, group: RolloutGroup) -> bool:
        """Whether the batch takes this group, which has its rewards."""
        reason = why_dropped(group.samples, self.config.filters)
        if reason is None:
            self.kept.append(group)
        else:
            self.dropped[reason] += 1
        return reason is None

    def batch(self, **metadata: Any) -> RolloutBatch:
        """The batch of what was kept. Raises `ConfigurationError`, with the reasons, where that is too little."""
        if self.missing and not (self.config.accept_short_batch and self.kept):
            reasons = ", ".join(f"{reason}: {count}" for reason, count in self.dropped.most_common())
            raise ConfigurationError(
                f"the filters left {len(self.kept)} of the {self.config.batch_size} groups of a batch, and dropped "
                f"{self.dropped.total()} ({reasons}). Change filter_fn or the prompts, raise max_resampling, which is "
                f"{self.config.max_resampling}, or set accept_short_batch"
            )
        samples = [sample for group in self.kept for sample in group.samples]
        return RolloutBatch.of(samples, dropped=dict(self.dropped), **metadata)
