"""What the training library hands around: samples, batches of them, and what loops and rollouts are told. No torch.

`T`: tokens of one sample, prompt and response. `S`: samples of a batch.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from rollstream.environments.rubric import finite
from rollstream.schemas.bounds import MAX_REWARD
from rollstream.schemas.errors import BadMessageError, ConfigurationError

Prompt: TypeAlias = str | list[dict[str, Any]] | dict[str, Any]
"""A text, messages of a chat, or a row of data: whatever `generate_fn` understands."""

_MAX_TOKEN_ID = 2**31 - 1
_SHOWN = 60


class SampleStatus(StrEnum):
    """How far a sample has come."""

    PENDING = "pending"
    """Asked for, and nothing of it is there."""
    COMPLETED = "completed"
    """The model ended it."""
    TRUNCATED = "truncated"
    """It met a limit of tokens or time. It is an answer: it gets a reward and trains."""
    ABORTED = "aborted"
    """It was stopped from outside. Its tokens are the beginning of an answer, which is asked for again."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer to one prompt; also one demonstration of SFT. `dataclasses.replace` changes a field.

    Example: "What is 2+2?" answered "4": tokens [4], loss_mask [0, 0, 1, 1], reward 1.0, metadata {"correct": True}.
    Numbers may come as lists, arrays or tensors and are kept as lists. Raises `BadMessageError` or `RewardError`.
    """

    prompt: Prompt
    """As the data has it. A group is the samples of one prompt."""
    response: str = ""
    tokens: list[int] = field(default_factory=list)
    """[T] ids as the engine had them: prompt, response, and what tools said between."""
    loss_mask: list[float] = field(default_factory=list)
    """[T] 1 where the model wrote the token and it trains, else 0."""
    reward: float | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    group_index: int | None = None
    """Same for all samples of a group, and never used again. Given by the rollout manager."""
    index: int | None = None
    """Which sample of its group, from 0."""
    rollout_log_probs: list[float] | None = None
    """[T] logprobs when the tokens were sampled; 0 where they were not."""
    status: SampleStatus = SampleStatus.COMPLETED

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, str | list | dict) or self.prompt in ([], {}):
            raise BadMessageError(f"{self} has no prompt: a text, a list of messages or a dict is needed")
        if not isinstance(self.response, str) or not isinstance(self.metadata, dict):
            found = f"{_shown(self.response)} and {_shown(self.metadata)}"
            raise BadMessageError(f"response of {self} must be a text and metadata a dict, got {found}")
        keep = object.__setattr__  # the way of a frozen dataclass
        keep(self, "tokens", self._numbers("tokens", "iu", lambda ids: (ids >= 0) & (ids <= _MAX_TOKEN_ID)))
        keep(self, "loss_mask", self._numbers("loss_mask", "iufb", lambda mask: (mask == 0) | (mask == 1)))
        if self.rollout_log_probs is not None:
            keep(self, "rollout_log_probs", self._numbers("rollout_log_probs", "iuf", np.isfinite))
        if self.reward is not None:
            keep(self, "reward", finite(self.reward, f"the reward of {self}"))
        keep(self, "status", self._known_status())
        for name in ("group_index", "index"):
            number = getattr(self, name)
            if number is not None and (not isinstance(number, int) or number < 0):
                raise BadMessageError(f"{name} of {self} must be a whole number from 0, or None")

    def __str__(self) -> str:
        """Names the sample in messages, by its place and the beginning of its prompt."""
        place = "a sample" if self.group_index is None else f"sample {self.index} of group {self.group_index}"
        prompt = repr(self.prompt)
        return f"{place} (prompt {prompt[:_SHOWN]}{'…' if len(prompt) > _SHOWN else ''})"

    @property
    def is_finished(self) -> bool:
        """Whether it is an answer, also one that met a limit."""
        return self.status in (SampleStatus.COMPLETED, SampleStatus.TRUNCATED)

    @property
    def num_trained_tokens(self) -> int:
        """Tokens that enter the loss."""
        return int(sum(self.loss_mask))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, JSON where prompt and metadata are."""
        return {**asdict(self), "status": self.status.value}

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """The sample of `to_dict`. Raises `BadMessageError` for anything else."""
        if not isinstance(data, dict) or not set(data) <= set(cls.__slots__) or "prompt" not in data:
            raise BadMessageError(f"a stored sample has the fields {', '.join(cls.__slots__)}, got {_shown(data)}")
        return cls(**data)

    def _numbers(self, name: str, kinds: str, fits: Callable[[npt.NDArray[Any]], npt.NDArray[np.bool_]]) -> list[Any]:
        """The field as a list of as many plain numbers as there are tokens."""
        values = _array(getattr(self, name))
        if values is None or values.ndim != 1 or (values.size and (values.dtype.kind not in kinds)):
            raise BadMessageError(f"{name} of {self} must be a flat list of numbers, got {_shown(getattr(self, name))}")
        if not fits(values).all():
            bound = {"tokens": f"0 to {_MAX_TOKEN_ID}", "loss_mask": "0 or 1"}.get(name, "finite")
            bad = int(np.argmin(fits(values)))
            raise BadMessageError(f"{name}[{bad}] of {self} is {values[bad]}, must be {bound}")
        if len(values) != len(self.tokens):
            raise BadMessageError(
                f"{name} of {self} has {len(values)} values for {len(self.tokens)} tokens: give one for each token, "
                "of the prompt too"
            )
        kept: list[Any] = (values if name == "tokens" else values.astype(np.float64)).tolist()
        return kept

    def _known_status(self) -> SampleStatus:
        try:
            return SampleStatus(self.status)
        except ValueError:
            known = ", ".join(SampleStatus)
            raise BadMessageError(f"status of {self} is {_shown(self.status)}, must be one of {known}") from None


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """What one step of RL trains on, row by row. Raises `BadMessageError` where rows do not fit each other.

    Example: two samples of 4 tokens: tokens [[...], [...]], loss_masks as long, rewards [1.0, 0.0],
    response_lengths [2, 2], group_indices [7, 7].
    """

    tokens: list[list[int]]
    """S rows [T]."""
    loss_masks: list[list[float]]
    """S rows [T] of 0 and 1."""
    rewards: list[float]
    """[S]"""
    response_lengths: list[int]
    """[S] tokens that the model wrote."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """From `of`: prompts, responses, statuses, sample_metadata [S]. From rollouts: `dropped`, reason → groups that a
    filter dropped; `waiting`, groups that were asked for and are not in this batch."""
    group_indices: list[int] | None = None
    """[S] same number, same prompt; None: no row has a group."""
    rollout_log_probs: list[list[float]] | None = None
    """S rows [T]; None if a row has none."""

    def __post_init__(self) -> None:
        columns = [name for name in self.__slots__ if name != "metadata" and getattr(self, name) is not None]
        rows = {name: len(getattr(self, name)) for name in columns}
        if len(set(rows.values())) > 1:
            raise BadMessageError(f"a batch has the same number of rows in each field, got {rows}")
        for row, tokens in enumerate(self.tokens):
            lengths = [
                len(self.loss_masks[row]),
                len(self.rollout_log_probs[row] if self.rollout_log_probs else tokens),
            ]
            if not tokens or lengths != [len(tokens)] * 2:
                raise BadMessageError(
                    f"row {row} of a batch has {len(tokens)} tokens, {lengths[0]} values of loss mask and {lengths[1]} "
                    "logprobs: each must have at least one token, and as many of all"
                )
            finite(self.rewards[row], f"the reward of row {row} of a batch")

    @classmethod
    def of(cls, samples: Sequence[Sample], **metadata: Any) -> Self:
        """The batch of these samples, each of which needs a reward, tokens and an end.

        `metadata` is added to the batch's. Raises `RewardError` or `BadMessageError`, with the sample named.
        """
        for sample in samples:
            if not sample.is_finished or not sample.tokens:
                raise BadMessageError(
                    f"{sample} is {sample.status} and has {len(sample.tokens)} tokens: only finished answers train"
                )
        groups = [sample.group_index for sample in samples if sample.group_index is not None]
        logprobs = [sample.rollout_log_probs for sample in samples if sample.rollout_log_probs is not None]
        return cls(
            tokens=[sample.tokens for sample in samples],
            loss_masks=[sample.loss_mask for sample in samples],
            rewards=[finite(sample.reward, f"the reward of {sample}") for sample in samples],
            response_lengths=[sample.num_trained_tokens for sample in samples],
            metadata={
                "prompts": [sample.prompt for sample in samples],
                "responses": [sample.response for sample in samples],
                "statuses": [sample.status.value for sample in samples],
                "sample_metadata": [sample.metadata for sample in samples],
                **metadata,
            },
            group_indices=groups if len(groups) == len(samples) else None,
            rollout_log_probs=logprobs if len(logprobs) == len(samples) else None,
        )


GenerateFn: TypeAlias = Callable[[list[Prompt]], list[Sample] | Awaitable[list[Sample]]]
"""Prompts → one sample for each, whose `prompt` is the one that was given. The same prompt may stand there often."""
ResumeFn: TypeAlias = Callable[[list[Sample]], list[Sample] | Awaitable[list[Sample]]]
"""Aborted samples → the same samples, continued from their tokens."""
ScoreFn: TypeAlias = Callable[[Sample], float | Awaitable[float]]
FilterFn: TypeAlias = Callable[[list[Sample]], bool]
"""The samples of one group → whether it trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTTrainingConfig:
    """How long SFT goes on, and what it leaves behind. Raises `ConfigurationError`."""

    num_steps: int
    batch_size: int
    """Samples of a step."""
    log_every: int = 100
    """Steps."""
    checkpoint_every: int = 500
    """Steps."""

    def __post_init__(self) -> None:
        _require(self, "num_steps", "batch_size", "log_every", "checkpoint_every")


@dataclass(frozen=True, slots=True, kw_only=True)
class RLTrainingConfig:
    """How long RL goes on, and what it leaves behind. Raises `ConfigurationError`."""

    num_steps: int
    sync_every: int = 10
    """Steps between two updates of the engines' weights."""
    baseline: float = 0.0
    """Advantage = reward - baseline, where a batch has no group of more than one sample."""
    log_every: int = 10
    """Steps."""
    checkpoint_every: int = 100
    """Steps."""

    def __post_init__(self) -> None:
        _require(self, "num_steps", "sync_every", "log_every", "checkpoint_every")
        _require(self, "baseline", least=-MAX_REWARD, whole=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """How prompts become a batch. Raises `ConfigurationError`."""

    batch_size: int
    """Groups of a batch, each the samples of one prompt."""
    generate_fn: GenerateFn
    """Sync: one call in a thread for all that is asked at a time. Async: one call for each sample, all at a time."""
    n_samples_per_prompt: int = 1
    over_sampling_factor: float = 1.0
    """So many times `batch_size` groups are asked for at the start of a batch; what is too much begins the next."""
    reward_fn: ScoreFn | None = None
    """Sample → reward, before the filter; sync in a thread, or async. None: `generate_fn` gives rewards."""
    filter_fn: FilterFn | Sequence[FilterFn] | None = None
    """Says which groups train; of several each must agree."""
    resume_fn: ResumeFn | None = None
    """Goes on with aborted samples from their tokens. None: their prompts are asked again."""
    max_resampling: int = 10
    """How many times over a batch is asked for again where the filter leaves too few groups."""
    accept_short_batch: bool = False
    """Then return the groups that passed, if there is one, instead of an error."""
    max_attempts: int = 5
    """Calls for one sample, or for its reward, that may fail in a row."""
    retry_delay: float = 1.0
    """Seconds before the second call; doubled before each further one."""
    timeout: float = 3600.0
    """Seconds for one call of `generate_fn`, `resume_fn` or `reward_fn`."""

    def __post_init__(self) -> None:
        _require(self, "batch_size", "n_samples_per_prompt", "max_attempts")
        _require(self, "max_resampling", least=0)
        _require(self, "over_sampling_factor", whole=False)
        _require(self, "retry_delay", least=0, whole=False)
        _require(self, "timeout", least=0.001, whole=False)
        for name in ("generate_fn", "reward_fn", "resume_fn"):
            function = getattr(self, name)
            if not callable(function) and (name == "generate_fn" or function is not None):
                raise ConfigurationError(f"{name} is {_shown(function)}: give a function")
        if not all(callable(each) for each in self.filters):
            raise ConfigurationError(f"filter_fn is {_shown(self.filter_fn)}: give a function, or several in a list")

    @property
    def filters(self) -> tuple[FilterFn, ...]:
        """Each function of `filter_fn`."""
        if isinstance(self.filter_fn, Sequence):
            return tuple(self.filter_fn)
        return () if self.filter_fn is None else (self.filter_fn,)

    @property
    def num_requested(self) -> int:
        """Groups that are asked for at a time."""
        return math.ceil(self.batch_size * self.over_sampling_factor)


def _require(config: object, *names: str, least: float = 1, whole: bool = True) -> None:
    """Refuses what is not a finite number (a whole one) of at least `least`."""
    for name in names:
        value = getattr(config, name)
        is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if not is_number or not least <= value < math.inf:
            raise ConfigurationError(
                f"{name} is {value!r}: give a {'whole ' if whole else ''}number, at least {least:g}"
            )


def _array(values: object) -> npt.NDArray[Any] | None:
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError):
        return None


def _shown(value: object) -> str:
    shown = repr(value)
    return f"{shown[:_SHOWN]}{'…' if len(shown) > _SHOWN else ''} ({type(value).__name__})"
