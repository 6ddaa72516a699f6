"""What an evaluation of a weight version is asked, and what it found. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from statistics import fmean
from typing import Any

from rollstream.environments.pass_rates import mean_interval, pass_at_k
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.failure import Failure, FailureCode
from rollstream.schemas.prompt import AgentChoice, PromptSubmitted
from rollstream.schemas.rollout import Status

_MOST_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """What to evaluate: the first `num_prompts` tasks of the environment's `evaluate` split under `seed`.

    `temperature` None: greedy for one sample a prompt, for several the environment's own. A sample passes from a reward
    of `pass_threshold` on.
    """

    environment: str
    weight_version: int
    environments: Mapping[str, Declaration] = field(default_factory=dict)
    agent: AgentChoice = field(default_factory=AgentChoice)
    num_prompts: int = 512
    num_samples: int = 1
    temperature: float | None = None
    pass_threshold: float = 0.5
    seed: int = 0
    deadline_seconds: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedSample:
    """One answer. `reward` is None unless the wanted version answered and the answer was scored."""

    status: Status
    failure: Failure | None = None
    answer: str = ""
    reward: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedPrompt:
    """One prompt with its samples, by sample_index."""

    prompt: PromptSubmitted
    samples: tuple[EvaluatedSample, ...]

    @property
    def status(self) -> Status:
        """Completed if all samples are, failed if the others failed, else unresolved."""
        others = {sample.status for sample in self.samples} - {Status.COMPLETED}
        if not others:
            return Status.COMPLETED
        return Status.FAILED if others == {Status.FAILED} else Status.UNRESOLVED

    @property
    def answer(self) -> str:
        """The text of its first sample."""
        return self.samples[0].answer

    @property
    def rewards(self) -> list[float]:
        """Of its samples; none unless all of them have one."""
        found = [sample.reward for sample in self.samples if sample.reward is not None]
        return found if len(found) == len(self.samples) else []

    @property
    def reward(self) -> float | None:
        """Mean over its samples; None unless all of them have one."""
        return fmean(self.rewards) if self.rewards else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCount:
    """How many samples did not complete for one reason. `example` is the message of the first."""

    code: FailureCode
    count: int
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """The result of an evaluation. All figures are of the prompts of which every sample completed.

    The others have no reward, and are counted: with fewer samples they would be estimates of another kind.

    `reward_interval`: the 95 % interval of `mean_reward`, None if too few prompts tell. `pass_at_k`: for each k from 1
    to the number of samples, the mean of the prompts' unbiased estimates.
    """

    environment: str
    weight_version: int
    num_prompts: int
    num_samples: int
    temperature: float
    num_completed: int
    num_failed: int
    num_unresolved: int
    mean_reward: float | None
    reward_interval: tuple[float, float] | None
    pass_threshold: float
    pass_at_k: Mapping[int, float]
    failures: tuple[FailureCount, ...]
    prompts: tuple[EvaluatedPrompt, ...]

    def as_plain(self) -> dict[str, Any]:
        """As JSON values, without the prompts."""
        names = [field.name for field in fields(self) if field.name != "prompts"]
        return {
            **{name: getattr(self, name) for name in names},
            "pass_at_k": {str(k): estimate for k, estimate in self.pass_at_k.items()},
            "failures": [asdict(failure) for failure in self.failures],
        }


def report_of(request: EvaluationRequest, temperature: float, prompts: Sequence[EvaluatedPrompt]) -> EvaluationReport:
    """The figures of all prompts of an evaluation that sampled at `temperature`."""
    counts = Counter(prompt.status for prompt in prompts)
    completed = [prompt.rewards for prompt in prompts if prompt.rewards]
    rewards = [fmean(of_prompt) for of_prompt in completed]
    failures = [sample.failure for prompt in prompts for sample in prompt.samples if sample.failure is not None]
    return EvaluationReport(
        environment=request.environment,
        weight_version=request.weight_version,
        num_prompts=request.num_prompts,
        num_samples=request.num_samples,
        temperature=temperature,
        num_completed=counts[Status.COMPLETED],
        num_failed=counts[Status.FAILED],
        num_unresolved=counts[Status.UNRESOLVED],
        mean_reward=fmean(rewards) if rewards else None,
        reward_interval=mean_interval(rewards),
        pass_threshold=request.pass_threshold,
        pass_at_k=_passes(request, completed),
        failures=_failure_counts(failures),
        prompts=tuple(prompts),
    )


def _passes(request: EvaluationRequest, completed: Sequence[list[float]]) -> dict[int, float]:
    if not completed:
        return {}
    # Many prompts have the same number of passes.
    counted = Counter(sum(reward >= request.pass_threshold for reward in rewards) for rewards in completed)
    num_samples = request.num_samples
    return {
        k: sum(times * pass_at_k(num_samples, passed, k) for passed, times in counted.items()) / len(completed)
        for k in range(1, num_samples + 1)
    }


def _failure_counts(failures: Sequence[Failure]) -> tuple[FailureCount, ...]:
    examples: dict[FailureCode, str] = {}
    for failure in failures:
        examples.setdefault(failure.code, failure.message[:_MOST_CHARACTERS])
    counts = Counter(failure.code for failure in failures)
    return tuple(FailureCount(code=code, count=count, example=examples[code]) for code, count in counts.items())
