"""Evaluates a weight version: answers to held-out prompts, how often they pass, and their mean reward.

Produces `eval-prompts` and consumes `eval-scored`. The same generators and scorers work on them as on training prompts.
The trainer does not read these topics.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from time import monotonic

from rollstream.bus.deliveries import Deliveries
from rollstream.bus.reader import TopicReader
from rollstream.bus.run import Run
from rollstream.client.evaluation import (
    EvaluatedPrompt,
    EvaluatedSample,
    EvaluationReport,
    EvaluationRequest,
    report_of,
)
from rollstream.environments.load import load_environment
from rollstream.environments.protocol import Environment, Task
from rollstream.history.passing import read_entries, read_versions
from rollstream.process.stop import Stop
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.failure import Failure, FailureCode
from rollstream.schemas.ids import group_id
from rollstream.schemas.prompt import PromptSource, PromptSubmitted, Purpose, Sampling, refuse_out_of_bounds
from rollstream.schemas.record import utc_now
from rollstream.schemas.rollout import Status
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import EVAL_PROMPTS, EVAL_SCORED

_SampleKey = tuple[str, int]
"""Group and sample_index."""


def evaluate(
    run: Run,
    request: EvaluationRequest,
    on_progress: Callable[[int], None] = lambda _answered: None,
    stop: Stop | None = None,
) -> EvaluationReport:
    """Submit the prompts, and wait until all are answered, the deadline is over, or `stop` is asked.

    `on_progress` is called with the number of samples that are answered so far.

    Raises `ConfigurationError` if the environment's `evaluate` split has too few tasks, or no sampling for several
    samples.
    """
    environment = load_environment(request.environment, request.environments)
    sampling = _sampling(request, environment)
    prompts = {prompt.group_id: prompt for prompt in _prompts(run.name, request, environment, sampling)}
    # The end must be known before the first answer can arrive.
    with run.reader(EVAL_SCORED, start=run.ends(EVAL_SCORED)) as reader:
        _submit(run, prompts)
        answers = _collected(run, request, reader, prompts, on_progress, stop or Stop())
    late = Failure(code=FailureCode.DEADLINE, message=f"no answer within {request.deadline_seconds:g} s")
    missing = EvaluatedSample(status=Status.UNRESOLVED, failure=late)
    evaluated = [
        EvaluatedPrompt(
            prompt=prompt,
            samples=tuple(answers.get((group, index), missing) for index in range(request.num_samples)),
        )
        for group, prompt in prompts.items()
    ]
    return report_of(request, sampling.temperature, evaluated)


def newest_version(run: Run) -> int:
    """The newest weight version of the run's model; raises `ConfigurationError` if there is none."""
    return max(_versions(run))


def existing_version(run: Run, wanted: int) -> int:
    """`wanted`; raises `ConfigurationError` if there is no such version: its prompts would only wait, and then fail."""
    versions = _versions(run)
    if wanted not in versions:
        raise ConfigurationError(
            f"run {run.name} has no weight version {wanted} of {run.model!r}; the newest is {max(versions)}: name one "
            "that `rollstream weights list` shows"
        )
    return wanted


def _versions(run: Run) -> set[int]:
    published = read_versions(run, read_entries(run))
    versions = {weights.weight_version for weights in published if weights.model == run.model}
    if not versions:
        raise ConfigurationError(f"run {run.name} has no weight version of {run.model!r}: start its trainer")
    return versions


def sampling_of(request: EvaluationRequest) -> Sampling:
    """How the samples will be drawn. Raises `ConfigurationError` if the environment can't be loaded, or as above."""
    return _sampling(request, load_environment(request.environment, request.environments))


def _sampling(request: EvaluationRequest, environment: Environment) -> Sampling:
    usual = 0.0 if request.num_samples == 1 else environment.sampling.temperature
    temperature = usual if request.temperature is None else request.temperature
    if request.num_samples > 1 and not temperature:
        raise ConfigurationError(
            f"{request.num_samples} samples of environment {environment.name} at temperature 0 would all be the same: "
            "name a --temperature above 0"
        )
    return environment.sampling.model_copy(update={"temperature": temperature, "seed": None})


def _prompts(
    run: str, request: EvaluationRequest, environment: Environment, sampling: Sampling
) -> Iterator[PromptSubmitted]:
    tasks = list(islice(environment.tasks("evaluate", request.seed), request.num_prompts))
    if len(tasks) < request.num_prompts:
        raise ConfigurationError(
            f"environment {environment.name} has {len(tasks)} tasks to evaluate, wanted {request.num_prompts}: "
            "lower --num-prompts"
        )
    # Different in each evaluation, so that a second one of the same version gets new group ids and new answers.
    dataset = f"{environment.name}/evaluate/{request.seed}/{uuid.uuid4().hex[:12]}"
    for row, task in enumerate(tasks):
        prompt = _prompt(run, request, task, sampling, source=PromptSource(dataset=dataset, row=row))
        refuse_out_of_bounds(prompt)
        yield prompt


def _prompt(
    run: str, request: EvaluationRequest, task: Task, sampling: Sampling, *, source: PromptSource
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
        sampling=sampling,
        group_size=request.num_samples,
        agent=request.agent,
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
    stop: Stop,
) -> dict[_SampleKey, EvaluatedSample]:
    """The best answer of each sample: a completed one beats the others, else the first wins."""
    deadline = monotonic() + request.deadline_seconds
    answers: dict[_SampleKey, EvaluatedSample] = {}
    num_wanted = len(prompts) * request.num_samples
    while len(answers) < num_wanted and monotonic() < deadline and not stop.is_asked:
        for message in reader.poll(timeout_seconds=0.2):
            scored = run.decoded(EVAL_SCORED, message)
            if scored is None or scored.rollout.group_id not in prompts:
                continue
            key = (scored.rollout.group_id, scored.rollout.sample_index)
            known = answers.get(key)
            if key[1] < request.num_samples and (known is None or known.status is not Status.COMPLETED):
                answers[key] = _evaluated(request, scored)
        on_progress(len(answers))
    return answers


def _evaluated(request: EvaluationRequest, scored: RolloutScored) -> EvaluatedSample:
    last, scoring = scored.rollout.answer, scored.scoring
    status, failure, reward = scoring.status, scoring.failure, scoring.reward
    sampled_by = set(scored.rollout.weight_versions)
    if sampled_by - {request.weight_version}:
        status, reward = Status.UNRESOLVED, None
        other = f"sampled by version {sorted(sampled_by)}, wanted {request.weight_version}"
        failure = Failure(code=FailureCode.VERSION_GONE, message=other)
    # Of many samples of long answers one a prompt is kept for people.
    answer = last.text if last is not None and scored.rollout.sample_index == 0 else ""
    return EvaluatedSample(status=status, failure=failure, answer=answer, reward=reward)
