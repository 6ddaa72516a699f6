"""Evaluation: greedy answers of one weight version to held-out prompts, through the evaluation topics.

Produces `eval-prompts`, consumes `eval-scored`; the generators and scorers in between are those that train. Nothing
of it reaches the trainer.
"""

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from statistics import fmean
from time import monotonic

from rollstream.bus.message import OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.bus.reader import FROM_END, TopicReader
from rollstream.bus.records import readable, up_to_the_end
from rollstream.environments.load import load_environment
from rollstream.environments.protocol import Environment, Task
from rollstream.process.settings import StageSettings
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.failure import Failure, FailureCode
from rollstream.schemas.ids import group_id
from rollstream.schemas.prompt import PromptSource, PromptSubmitted, Purpose
from rollstream.schemas.record import utc_now
from rollstream.schemas.rollout import Status
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import EVAL_PROMPTS, EVAL_SCORED, WEIGHTS


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """What to evaluate: the first `num_prompts` tasks of the environment's `evaluate` split under `seed`."""

    environment: str
    weight_version: int
    environment_options: Mapping[str, str] = field(default_factory=dict)
    num_prompts: int = 512
    seed: int = 0
    deadline_seconds: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedPrompt:
    """One prompt with its answer; `reward` is None unless it was answered by the wanted version and scored."""

    prompt: PromptSubmitted
    status: Status
    failure: Failure | None
    answer: str
    reward: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCount:
    """How many prompts did not complete for one reason, and what was said of the first."""

    code: FailureCode
    count: int
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """How a version did. Failed and unresolved prompts have no reward and are no part of the mean."""

    environment: str
    weight_version: int
    num_completed: int
    num_failed: int
    num_unresolved: int
    mean_reward: float | None
    failures: tuple[FailureCount, ...]
    prompts: tuple[EvaluatedPrompt, ...]


def evaluate(
    settings: StageSettings,
    request: EvaluationRequest,
    on_progress: Callable[[int], None] = lambda _answered: None,
) -> EvaluationReport:
    """Submit, and wait until every prompt is answered or the deadline is over; `on_progress` gets the answers so far.

    Raises `ConfigurationError` if the environment's `evaluate` split has too few tasks.
    """
    environment = load_environment(request.environment, request.environment_options)
    prompts = {prompt.group_id: prompt for prompt in _posed(settings.run, request, environment)}
    with TopicReader(settings.kafka, [EVAL_SCORED.of(settings.run)], default_start=FROM_END) as reader:
        # The end must be known before the first answer can arrive.
        reader.read_to_end()
        _submit(settings, prompts)
        answers = _collected(settings, request, reader, prompts, on_progress)
    return _report(request, [_evaluated(request, prompt, answers.get(group)) for group, prompt in prompts.items()])


def newest_version(settings: StageSettings) -> int:
    """The newest weight version of the run's model; raises `ConfigurationError` if there is none."""
    codec = AvroCodec(WEIGHTS, settings.registry())
    with TopicReader(settings.kafka, [WEIGHTS.of(settings.run)]) as reader:
        versions = [w.weight_version for w in up_to_the_end(reader, codec) if w.model == settings.model]
    if not versions:
        raise ConfigurationError(f"run {settings.run} has no weight version of {settings.model!r}: start its trainer")
    return max(versions)


def _posed(run: str, request: EvaluationRequest, environment: Environment) -> Iterator[PromptSubmitted]:
    tasks = list(islice(environment.tasks("evaluate", request.seed), request.num_prompts))
    if len(tasks) < request.num_prompts:
        raise ConfigurationError(
            f"environment {environment.name} has {len(tasks)} tasks to evaluate, wanted {request.num_prompts}: "
            "lower --num-prompts"
        )
    # Each evaluation poses its prompts anew, of the same version too.
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


def _submit(settings: StageSettings, prompts: Mapping[str, PromptSubmitted]) -> None:
    codec = AvroCodec(EVAL_PROMPTS, settings.registry())
    topic = EVAL_PROMPTS.of(settings.run)
    publisher = Publisher(settings.kafka, client_id=f"{settings.run}.evaluate")
    try:
        deliveries = [
            publisher.publish_soon(OutRecord(topic=topic, key=group.encode(), value=codec.encode(prompt)))
            for group, prompt in prompts.items()
        ]
        for delivery in deliveries:
            delivery.result(180)
    finally:
        publisher.close()


def _collected(
    settings: StageSettings,
    request: EvaluationRequest,
    reader: TopicReader,
    prompts: Mapping[str, PromptSubmitted],
    on_progress: Callable[[int], None],
) -> dict[str, RolloutScored]:
    """The best answer of each group: a completed one beats the others, else the first wins."""
    codec = AvroCodec(EVAL_SCORED, settings.registry())
    deadline = monotonic() + request.deadline_seconds
    answers: dict[str, RolloutScored] = {}
    while len(answers) < len(prompts) and monotonic() < deadline:
        for scored in readable(codec, reader.poll(timeout_seconds=0.2)):
            group = scored.rollout.group_id
            is_better = group not in answers or answers[group].scoring.status is not Status.COMPLETED
            if group in prompts and is_better:
                answers[group] = scored
        on_progress(len(answers))
    return answers


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
