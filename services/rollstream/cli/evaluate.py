"""`rollstream evaluate`: score weight versions on held-out prompts, one or each as it is published."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollstream.cli.command_options import options_of
from rollstream.cli.options import config_option, connected, json_option
from rollstream.client.options import EvaluateOptions
from rollstream.schemas.errors import BrokenWorldError, ConfigurationError

if TYPE_CHECKING:
    from rollstream.bus.run import Run
    from rollstream.client.evaluation import EvaluationRequest


@click.command("evaluate")
@options_of(EvaluateOptions)
@config_option
@json_option
def command(options: EvaluateOptions, config: Path | None, as_json: bool) -> None:
    """Ask a weight version held-out prompts; print the mean reward and, of several samples, pass@k.

    The producer's agent asks them. A generator and a scorer of the run must be running. If not one prompt is scored,
    the exit code is 70. --follow goes on with newer versions: training never waits for it.
    """
    from rollstream.client.evaluation import EvaluationRequest
    from rollstream.producers.settings import ProducerSettings

    settings = ProducerSettings.load(config)
    name = options.environment or settings.environment
    if not name:
        raise ConfigurationError("the producer has no environment: say which with --environment")
    request = EvaluationRequest(
        environment=name,
        weight_version=options.version or 0,
        environments=settings.environments,
        agent=settings.agent,
        num_prompts=options.num_prompts,
        num_samples=options.samples,
        temperature=options.temperature,
        pass_threshold=options.pass_threshold,
        deadline_seconds=options.deadline,
    )
    run = connected(settings, options.deadline)
    if options.follow:
        from rollstream.cli.evaluating import follow

        follow(run, request, options, settings)
    else:
        _evaluate_once(run, request, options.version, as_json=as_json)


def _evaluate_once(run: "Run", request: "EvaluationRequest", version: int | None, *, as_json: bool) -> None:
    from dataclasses import replace

    from rollstream.client.evaluate import existing_version, newest_version
    from rollstream.views.evaluation import evaluate_with_progress, show

    wanted = newest_version(run) if version is None else existing_version(run, version)
    report = evaluate_with_progress(run, replace(request, weight_version=wanted), is_shown=not as_json)
    show(report, as_json=as_json)
    if report.mean_reward is None:
        raise BrokenWorldError(
            f"none of {request.num_prompts} prompts was scored; the reasons are above, and `rollstream status` shows "
            "whether generators and scorers run"
        )
