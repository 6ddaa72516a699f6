"""`word-count-rollouts`: a preset of `collect` with the columns, the statistics and the advice of a known script.

The output holds only rows with a reward: what people compute from its column `reward` needs no case for nulls.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr, ValidationError

from rollstream.environments.load import load_environment
from rollstream.environments.protocol import Environment
from rollstream.offline.ended import EndedSample
from rollstream.offline.engine_choice import litellm_variable, named_engine
from rollstream.offline.job import Job
from rollstream.offline.options import AskingOptions, CollectOptions, WordCountOptions
from rollstream.offline.paths import OutputPaths
from rollstream.offline.presets.mock import MockWordCounter
from rollstream.offline.settings import CollectSettings
from rollstream.offline.statistics import RewardStatistics, example_lines, shown_text, summarized
from rollstream.offline.summary import CollectSummary
from rollstream.offline.tasks import CollectTask
from rollstream.process.settings.declared import Declaration
from rollstream.process.stop import Stop
from rollstream.process.terminal import Say
from rollstream.rows.open import open_rows
from rollstream.rows.row import BadRow, ReadRow
from rollstream.rows.write import kind_of
from rollstream.schemas.errors import (
    BrokenWorldError,
    ConfigurationError,
    EngineError,
    RefusedKeyError,
    TooManyFailuresError,
    UnknownEnvironmentError,
)
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.ids import group_id, rollout_id

_BUILT_IN: Final = "word_count"
_CUSTOM: Final = "custom"
_SERVER: Final = {"request_seconds": 60.0, "ready_seconds": 15.0, "max_tries": 3}
_SAMPLE_SECONDS: Final = 120.0
_NO_ANSWER: Final = frozenset({FailureCode.ENGINE.value, FailureCode.DEADLINE.value})
_LOW_REWARD: Final = 0.65
"""Half of 1.3, the best that `word_count` gives."""
_MOST_HAVE_TAGS: Final = 0.5
_SAME: Final = {*AskingOptions.model_fields, "model", "concurrency", "temperature", "max_tokens"}
"""Options that `collect` has too."""


def collect_word_count(options: WordCountOptions, stop: Stop, say: Say) -> int:
    """Collect, say what the script prints, and return the exit code.

    Raises `ConfigurationError` if the output belongs to another collection, and `BrokenWorldError` with advice if the
    server does not answer, or if no rollout got a reward.
    """
    job = _job(options)
    _refuse_foreign(job)
    say(f"Generating {options.num_examples} rollouts via {'scripted answers' if options.mock else options.base_url}")
    say(f"Calling model {'the script' if options.mock else options.model}...")
    tasks, environment = job.tasks()
    job = replace(job, to_columns=_Columns(tasks.identity(), options.user_id, _rewards(job.environment())))
    settings = job.settings(job.options.output, kind_of(job.options.output), environment)
    try:
        report = job.collect(settings, tasks, stop)
    except RefusedKeyError:
        raise
    except (EngineError, TooManyFailuresError) as error:
        raise BrokenWorldError("\n".join(_silent_server(options.base_url, str(error)))) from error
    is_stopped = report.summary is None and not report.was_complete
    advice = [] if report.summary is None else _refused_or_advised(options, report.summary)
    for line in (*report.lines(), *advice, *(() if is_stopped else _closing_lines(options, job))):
        say(line)
    return report.exit_code


def _job(options: WordCountOptions) -> Job:
    output = options.output or Path("rollouts_mock" if options.mock else "rollouts")
    name, declared = _declared(options)
    chosen = CollectOptions(
        source=name,
        output=output,
        url=(options.base_url,),
        api_key_variable=litellm_variable(),
        num_tasks=options.num_examples,
        # The scripted answers depend on it.
        seed=0 if options.mock else None,
        deadline=_SAMPLE_SECONDS,
        **options.model_dump(include=_SAME),
    )
    return Job(
        options=chosen,
        engine=MockWordCounter() if options.mock else named_engine(chosen, **_SERVER),
        is_environment=True,
        environments=declared,
        described={"user_id": options.user_id},
        jsonl_copy=output.with_name(f"{output.name}.jsonl") if kind_of(output) == "hf" else None,
    )


def _declared(options: WordCountOptions) -> tuple[str, dict[str, Declaration]]:
    """The environment's name, and its declaration, which can be loaded."""
    if not options.environment:
        # The known data set has 100 texts; more are drawn by the same rule.
        size = {"num_examples": SecretStr(str(options.num_examples))}
        return _BUILT_IN, {_BUILT_IN: Declaration(options=size)}
    try:
        declared = {_CUSTOM: Declaration(path=options.environment)}
    except ValidationError as error:
        raise ConfigurationError(
            f"--environment {options.environment!r} is not like package.module.Class: name a class that can be imported"
        ) from error
    try:
        load_environment(_CUSTOM, declared)
    except UnknownEnvironmentError as error:
        if not isinstance(error.__cause__, ModuleNotFoundError):
            raise
        raise ConfigurationError(
            f"{error}. Install the environment's package into this Python: `cd` to its directory, the one with its "
            "pyproject.toml, and run `uv pip install -e .`; or leave --environment out, since word_count is built in"
        ) from error
    return _CUSTOM, declared


def _refuse_foreign(job: Job) -> None:
    copy, is_ours = job.jsonl_copy, OutputPaths(job.options.output).progress.exists() or job.options.overwrite
    if copy is not None and copy.exists() and not is_ours:
        raise ConfigurationError(
            f"{copy} exists, and this command did not write it: name another --output, or replace it with --overwrite"
        )


def _rewards(environment: Environment) -> tuple[str, ...]:
    return tuple(reward.name for reward in getattr(environment.rubric, "rewards", ()))


@dataclass(frozen=True, slots=True)
class _Columns:
    """Makes the rows. `user_id`: who asked. `rewards`: the environment's reward functions, a column `NAME_reward` each.

    The session is the rollout's id, the same after a resume.
    """

    identity: str
    user_id: str
    rewards: tuple[str, ...]

    def __call__(self, task: CollectTask, ended: EndedSample, settings: CollectSettings) -> dict[str, Any] | None:
        """None for a sample without a reward."""
        if ended.reward is None:
            return None
        group = group_id("collect", f"{self.identity}/{task.number}", 0)
        return {
            "prompt": task.asked,
            "completion": [{"role": "assistant", "content": ended.response}],
            "reward": ended.reward,
            **{f"{name}_reward": ended.components.get(name) for name in self.rewards},
            "answer": task.reference_answer,
            "info": _info(task.metadata),
            "metadata": {"user_id": self.user_id, "session_id": rollout_id(group, ended.sample)},
        }


def _info(metadata: Mapping[str, str]) -> dict[str, Any]:
    """What the environment says of the task; of `word_count` the count is a number."""
    if "word_count" in metadata:
        return {"text": metadata.get("text"), "word_count": int(metadata["word_count"])}
    return dict(metadata)


def _refused_or_advised(options: WordCountOptions, summary: CollectSummary) -> list[str]:
    """Advice for a server that did not answer.

    Raises `BrokenWorldError` where nothing was written: a set without a single reward is of no use to anybody.
    """
    silent = next((message for code, message in summary.first_messages.items() if code in _NO_ANSWER), None)
    advice = [] if silent is None or options.mock else _silent_server(options.base_url, silent)
    if not summary.num_rewards:
        why = "; ".join(f"{code}: {message}" for code, message in summary.first_messages.items())
        raise BrokenWorldError("\n".join([f"none of {summary.num_samples} rollouts got a reward: {why}", *advice]))
    return advice


def _closing_lines(options: WordCountOptions, job: Job) -> Iterator[str]:
    """Where the rollouts are, their statistics, one example, and advice where the rewards are low."""
    formats = RewardStatistics()
    summary = summarized(_watched(job.options.output, formats))
    copied = "" if job.jsonl_copy is None else f" and {job.jsonl_copy}"
    yield from ("", f"{summary.rewards.num} rollouts saved in: {job.options.output}{copied}", "", "Statistics:")
    yield from summary.rewards.lines()
    if summary.example is not None:
        yield from ("", "Example rollout:", *example_lines(summary.example))
    if not options.environment and summary.lowest is not None and summary.rewards.mean < _LOW_REWARD:
        yield from _low_reward(summary.rewards.mean, formats.mean, shown_text(summary.lowest["completion"]))


def _watched(output: Path, formats: RewardStatistics) -> Iterator[ReadRow | BadRow]:
    """The rows of the output, whose column `format_reward` is noted on the way."""
    for row in open_rows(output):
        if isinstance(row, ReadRow):
            formats.add(row.fields.get("format_reward"))
        yield row


def _silent_server(url: str, why: str) -> list[str]:
    """For a server that does not answer. It names routes that call no model, as LiteLLM's `/health` does."""
    return [
        f"{url} does not answer: {why}",
        f"   Is it running? LiteLLM: `curl {url}/health/readiness`; vLLM: `curl {url}/health`; others: "
        f"`curl {url}/v1/models`",
        "   What does it log? `litellm --config litellm/litellm_config.yaml --port 8000 --debug`",
        "   Is it another server? Name it with --base-url, or in the variable API_BASE_URL",
    ]


def _low_reward(mean: float, mean_format: float, worst: str) -> list[str]:
    """`mean_format`: share of answers with both tags."""
    if mean_format < _MOST_HAVE_TAGS:
        advice = "The answers lack the form: choose a model that follows the system prompt, or adjust it."
    else:
        advice = "The form is right and the numbers are wrong: choose a stronger model, or fewer words."
    return [
        f"The mean reward {mean:.3f} is low: the best is 1.3.",
        f"   Both tags <word_count> and </word_count> are in {mean_format:.0%} of the answers.",
        f"   Look at the column `completion`; one of the worst: {worst}",
        f"   {advice}",
    ]
