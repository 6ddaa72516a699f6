"""Collects the rollouts of source document 000: an environment's tasks, a server or scripted answers, rewards, files.

What the document's script did in one process is `collect()` here: bounded concurrency, a journal that survives kill -9,
failures in a file of their own. The output holds only rows with a reward.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from pydantic import SecretStr, ValidationError

from rollstream.agents.samples import SampleBounds
from rollstream.engines.build import build_engine
from rollstream.engines.http.settings import server_root
from rollstream.engines.protocol import Engine
from rollstream.environments.load import load_environment
from rollstream.environments.protocol import Environment
from rollstream.offline.collection import CollectReport, collect
from rollstream.offline.engine_choice import server_engine
from rollstream.offline.paths import Places
from rollstream.offline.settings import CollectSettings
from rollstream.offline.statistics import RewardStatistics, shown_text, summarized
from rollstream.offline.tasks import EnvironmentTasks
from rollstream.offline.word_count.advice import low_reward, missing_module, silent_server
from rollstream.offline.word_count.columns import RolloutColumns, closing_lines, opening_lines
from rollstream.offline.word_count.mock import MockWordCounter
from rollstream.offline.word_count.request import WordCountRequest
from rollstream.process.settings.declared import Declaration
from rollstream.process.stop import Stop
from rollstream.rows.open import open_rows
from rollstream.rows.row import BadRow, ReadRow
from rollstream.schemas.errors import (
    BrokenWorldError,
    ConfigurationError,
    EngineError,
    RefusedKeyError,
    TooManyFailuresError,
    UnknownEnvironmentError,
)
from rollstream.schemas.failure import FailureCode

_BUILT_IN: Final = "word_count"
_CUSTOM: Final = "custom"
# The document's: 60 s for a request, three tries.
_REQUEST_SECONDS: Final = 60.0
_READY_SECONDS: Final = 15.0
_MAX_TRIES: Final = 3
_SEED: Final = 0
_NO_ANSWER: Final = frozenset({FailureCode.ENGINE.value, FailureCode.DEADLINE.value})
_SHOWN_FAILURES: Final = 3
_FAILURE_CHARACTERS: Final = 300


def collect_word_count(request: WordCountRequest, stop: Stop, say: Callable[[str], None]) -> int:
    """Collect, and say what the document's script prints; returns the exit code.

    Raises `ConfigurationError` if the output belongs to another collection, and `BrokenWorldError` with the document's
    advice if the server does not answer, or if no rollout got a reward.
    """
    _refuse_foreign(request)
    name, declared = _declared(request)
    environment = _environment(name, declared)
    tasks = EnvironmentTasks(environment, split="train", seed=_SEED, num_rows=request.num_examples)
    rewards = [reward.name for reward in getattr(environment.rubric, "rewards", ())]
    columns = RolloutColumns(tasks.identity(), user_id=request.user_id, rewards=rewards)
    # Before anything is said of its URL: one with a password is refused here.
    engine = _engine(request)
    for line in opening_lines(request.num_examples, request.where, "the script" if request.is_mock else request.model):
        say(line)
    settings = _settings(request, name, declared)
    try:
        report = collect(settings, tasks, engine, stop, columns)
    except RefusedKeyError:
        raise
    except (EngineError, TooManyFailuresError) as error:
        raise BrokenWorldError("\n".join(silent_server(request.base_url, str(error)))) from error
    if report.summary is None and not report.was_complete:
        for line in report.lines(settings):
            say(line)
        return report.exit_code
    _finish(request, report, say)
    return report.exit_code


def _finish(request: WordCountRequest, report: CollectReport, say: Callable[[str], None]) -> None:
    """Say what failed, and print the statistics."""
    for line in _failure_lines(request, report):
        say(line)
    _refuse_unrewarded(report)
    formats = RewardStatistics()
    summary = summarized(_watched(request.output, formats))
    if report.was_complete:
        say(f"{request.output} is complete: nothing was asked again; --overwrite collects anew")
    say("")
    for line in closing_lines(summary, request.outputs):
        say(line)
    if not request.environment:
        for line in low_reward(summary, formats.mean):
            say(line)


def _refuse_unrewarded(report: CollectReport) -> None:
    """Raise `BrokenWorldError` where nothing was written: a set without a single reward is of no use to anybody."""
    if report.summary is not None and not report.summary.num_rewards:
        raise BrokenWorldError(
            f"none of {report.summary.num_samples} rollouts got a reward; the reasons are above, and in "
            f"{report.places.failures.name}"
        )


def _failure_lines(request: WordCountRequest, report: CollectReport) -> Iterator[str]:
    """The first messages of what failed, and the advice for a server that does not answer."""
    failures = report.places.failures
    if not failures.exists():
        return
    num_failed, shown = 0, dict[tuple[str, str], None]()
    for row in open_rows(failures):
        num_failed += 1
        if isinstance(row, ReadRow) and len(shown) < _SHOWN_FAILURES:
            shown[str(row.fields["failure"]), shown_text(row.fields["message"], _FAILURE_CHARACTERS)] = None
    yield f"{num_failed} of {request.num_examples} rollouts failed and are left out; they are in {failures.name}:"
    for failure, message in shown:
        yield f"   {failure}: {message}"
    silent = next((message for failure, message in shown if failure in _NO_ANSWER), None)
    if silent is not None and not request.is_mock:
        yield from silent_server(request.base_url, silent)


def _watched(output: Path, formats: RewardStatistics) -> Iterator[ReadRow | BadRow]:
    """The rows of the output, whose column `format_reward` is noted on the way."""
    for row in open_rows(output):
        if isinstance(row, ReadRow):
            formats.add(row.fields.get("format_reward"))
        yield row


def _refuse_foreign(request: WordCountRequest) -> None:
    is_ours = Places(request.output).manifest.exists() or request.overwrite
    for path in request.outputs[1:]:
        if path.exists() and not is_ours:
            raise ConfigurationError(
                f"{path} exists, and this command did not write it: name another --output, or replace it with "
                "--overwrite"
            )


def _declared(request: WordCountRequest) -> tuple[str, dict[str, Declaration]]:
    if not request.environment:
        # The document's data set has 100 texts; more are drawn by the same rule.
        options = {"num_examples": SecretStr(str(request.num_examples))}
        return _BUILT_IN, {_BUILT_IN: Declaration(options=options)}
    try:
        return _CUSTOM, {_CUSTOM: Declaration(path=request.environment)}
    except ValidationError as error:
        raise ConfigurationError(
            f"--environment {request.environment!r} is not like package.module.Class: name a class that can be imported"
        ) from error


def _environment(name: str, declared: dict[str, Declaration]) -> Environment:
    try:
        return load_environment(name, declared)
    except UnknownEnvironmentError as error:
        raise missing_module(error) from error


def _settings(request: WordCountRequest, name: str, declared: dict[str, Declaration]) -> CollectSettings:
    described = {
        "num_examples": request.num_examples,
        "model": "mock" if request.is_mock else request.model,
        "base_url": None if request.is_mock else server_root(request.base_url),
        "environment_path": request.environment,
        "user_id": request.user_id,
    }
    return CollectSettings(
        output=request.output,
        kind=request.kind,
        num_samples=1,
        sampling=request.sampling.model_copy(update={"seed": _SEED}) if request.is_mock else request.sampling,
        concurrency=request.concurrency,
        described=described,
        environment=name,
        environments=declared,
        # The engine itself tries again, within its own deadline.
        bounds=SampleBounds(deadline_seconds=2 * _REQUEST_SECONDS, max_tries=1),
        max_attempts=request.max_attempts,
        retry_failed=request.retry_failed,
        fail_over=request.fail_over,
        overwrite=request.overwrite,
        jsonl_copy=next(iter(request.outputs[1:]), None),
    )


def _engine(request: WordCountRequest) -> Engine:
    if request.is_mock:
        return MockWordCounter()
    engine = server_engine(
        (request.base_url,),
        request.model,
        max_connections=request.concurrency,
        api_key=request.api_key,
        request_seconds=_REQUEST_SECONDS,
        ready_seconds=_READY_SECONDS,
        max_tries=_MAX_TRIES,
    )
    return build_engine(engine)
