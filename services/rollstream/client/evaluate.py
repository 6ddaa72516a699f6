"""Evaluates a weight version: greedy answers to held-out prompts, and their mean reward.

Produces `eval-prompts` and consumes `eval-scored`. The same generators and scorers work on them as on training prompts.
The trainer does not read these topics.
"""

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from statistics import fmean
from time import monotonic

from rollstream.bus.deliveries import Deliveries
from rollstream.bus.reader import TopicReader
from rollstream.bus.run import Run
from rollstream.environments.load import load_environment
from rollstream.environments.protocol import Environment, Task
from rollstream.history.passing import read_entries, read_versions
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.failure import Failure, FailureCode
from rollstream.schemas.ids import group_id
from rollstream.schemas.prompt import PromptSource, PromptSubmitted, Purpose
from rollstream.schemas.record import utc_now
from rollstream.schemas.rollout import Status
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import EVAL_PROMPTS, EVAL_SCORED


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """What to evaluate: the first `num_prompts` tasks of the environment's `evaluate` split under `seed`."""

    environment: str
    weight_version: int
    environments: Mapping[str, Declaration] = field(default_factory=dict)
    num_prompts: int = 512
    seed: int = 0
    deadline_seconds: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedPrompt:
    """One prompt with its answer. `reward` is None unless the wanted version answered and the answer was scored."""

    prompt: PromptSubmitted
    status: Status
    failure: Failure | None
    answer: str
    reward: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCount:
    """How many prompts did not complete for one reason. `example` is the message of the first."""

    code: FailureCode
    count: int
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """The result of an evaluation. Failed and unresolved prompts have no reward, and the mean leaves them out."""

    environment: str
    weight_version: int
    num_completed: int
    num_failed: int
    num_unresolved: int
    mean_reward: float | None
    failures: tuple[FailureCount, ...]
    prompts: tuple[EvaluatedPrompt, ...]


def evaluate(
    run: Run, request: EvaluationRequest, on_progress: Callable[[int], None] = lambda _answered: None
) -> EvaluationReport:
    """Submit the prompts, and wait until all are answered or the deadline is over.

    `on_progress` is called with the number of prompts that are answered so far.

    Raises `ConfigurationError` if the weight version does not exist, or if the environment's `evaluate` split has too
    few tasks.
    """
    environment = load_environment(request.environment, request.environments)
    _refuse_unknown_version(run, request.weight_version)
    prompts = {prompt.group_id: prompt for prompt in _prompts(run.name, request, environment)}
    # The end must be known before the first answer can arrive.
    with run.reader(EVAL_SCORED, start=run.ends(EVAL_SCORED)) as reader:
        _submit(run, prompts)
        answers = _collected(run, request, reader, prompts, on_progress)
    return _report(request, [_evaluated(request, prompt, answers.get(group)) for group, prompt in prompts.items()])


def newest_version(run: Run) -> int:
    """The newest weight version of the run's model; raises `ConfigurationError` if there is none."""
    return max(_versions(run))


def _versions(run: Run) -> set[int]:
    published = read_versions(run, read_entries(run))
    versions = {weights.weight_version for weights in published if weights.model == run.model}
    if not versions:
        raise ConfigurationError(f"run {run.name} has no weight version of {run.model!r}: start its trainer")
    return versions


def _refuse_unknown_version(run: Run, wanted: int) -> None:
    # Its prompts would only wait in the generators, and then fail.
    versions = _versions(run)
    if wanted not in versions:
        raise ConfigurationError(
            f"run {run.name} has no weight version {wanted} of {run.model!r}; the newest is {max(versions)}: name one "
            "that `rollstream weights list` shows"
        )


def _prompts(run: str, request: EvaluationRequest, environment: Environment) -> Iterator[PromptSubmitted]:
    tasks = list(islice(environment.tasks("evaluate", request.seed), request.num_prompts))
    if len(tasks) < request.num_prompts:
        raise ConfigurationError(
            f"environment {environment.name} has {len(tasks)} tasks to evaluate, wanted {request.num_prompts}: "
            "lower --num-prompts"
        )
    # Different in each evaluation, so that a second one of the same version gets new group ids and new answers.
    dataset = f"{environment.name}/evaluate/{request.seed}/{uuid.uuid4().hex[:12]}"
    for row, task in enumerate(tasks):
        yield _prompt(run, request, environment, task, source=PromptSource(dataset=dataset, row=row))


def _prompt(
    run: str, request: EvaluationRequest, environment: Environment, task: Task, *, source: PromptSource
) -> PromptSubmitted:
    prompt_id = f"{source.dataset}/{source.row}"
    return PromptSubmitted(
        prompt_id=prompt_id,
        group_id=group_id(run, prompt_id, 0),
        purpose=Purpose.EVALUATE,
        weight_version=request.weight_version,
        environment=request.environment,
        messages=task.messages,
        reference_answer=task.reference_answer,
        sampling=environment.sampling.model_copy(update={"temperature": 0.0, "seed": None}),
        group_size=1,
        metadata={**task.metadata, "task_id": task.task_id},
        source=source,
        producer="evaluate",
        sequence=source.row,
        submitted_at=utc_now(),
    )


def _submit(run: Run, prompts: Mapping[str, PromptSubmitted]) -> None:
    with run.publisher(run.group("evaluate")) as publisher:
        deliveries = Deliveries()
        for prompt in prompts.values():
            publisher.send_blocking(run.out_record(EVAL_PROMPTS, prompt), deliveries)
        deliveries.wait()


def _collected(
    run: Run,
    request: EvaluationRequest,
    reader: TopicReader,
    prompts: Mapping[str, PromptSubmitted],
    on_progress: Callable[[int], None],
) -> dict[str, RolloutScored]:
    """The best answer of each group: a completed one beats the others, else the first wins."""
    deadline = monotonic() + request.deadline_seconds
    answers: dict[str, RolloutScored] = {}
    while len(answers) < len(prompts) and monotonic() < deadline:
        for message in reader.poll(timeout_seconds=0.2):
            scored = run.decoded(EVAL_SCORED, message)
            if scored is not None and scored.rollout.group_id in prompts:
                _keep_better(answers, scored)
        on_progress(len(answers))
    return answers


def _keep_better(answers: dict[str, RolloutScored], scored: RolloutScored) -> None:
    group = scored.rollout.group_id
    if group not in answers or answers[group].scoring.status is not Status.COMPLETED:
        answers[group] = scored


def _evaluated(request: EvaluationRequest, prompt: PromptSubmitted, scored: RolloutScored | None) -> EvaluatedPrompt:
    if scored is None:
        late = Failure(code=FailureCode.DEADLINE, message=f"no answer within {request.deadline_seconds:g} s")
        return EvaluatedPrompt(prompt=prompt, status=Status.UNRESOLVED, failure=late, answer="", reward=None)
    turns = scored.rollout.turns
    answer = turns[-1].text if turns else ""
    scoring = scored.scoring
    status, failure, reward = scoring.status, scoring.failure, scoring.reward
    sampled_by = set(scored.rollout.weight_versions)
    if sampled_by - {request.weight_version}:
        status, reward = Status.UNRESOLVED, None
        other = f"sampled by version {sorted(sampled_by)}, wanted {request.weight_version}"
        failure = Failure(code=FailureCode.VERSION_GONE, message=other)
    return EvaluatedPrompt(prompt=prompt, status=status, failure=failure, answer=answer, reward=reward)


def _report(request: EvaluationRequest, prompts: list[EvaluatedPrompt]) -> EvaluationReport:
    counts = Counter(prompt.status for prompt in prompts)
    rewards = [prompt.reward for prompt in prompts if prompt.reward is not None]
    return EvaluationReport(
        environment=request.environment,
        weight_version=request.weight_version,
        num_completed=counts[Status.COMPLETED],
        num_failed=counts[Status.FAILED],
        num_unresolved=counts[Status.UNRESOLVED],
        mean_reward=fmean(rewards) if rewards else None,
        failures=_failure_counts([prompt.failure for prompt in prompts if prompt.failure is not None]),
        prompts=tuple(prompts),
    )


def _failure_counts(failures: list[Failure]) -> tuple[FailureCount, ...]:
    examples: dict[FailureCode, str] = {}
    for failure in failures:
        examples.setdefault(failure.code, failure.message)
    counts = Counter(failure.code for failure in failures)
    return tuple(FailureCount(code=code, count=count, example=examples[code]) for code, count in counts.items())
