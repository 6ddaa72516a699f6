"""`rollstream evaluate`: score a weight version on held-out prompts."""

from pathlib import Path

import click

from rollstream.cli.options import FiniteRange, config_option, connected, json_option, whole
from rollstream.schemas.errors import BrokenWorldError, ConfigurationError


@click.command("evaluate")
@config_option
@click.option("--version", type=whole(0), help="Weight version; default: the newest.")
@click.option("--environment", help="Environment whose prompts are asked; default: the producer's.")
@click.option("--num-prompts", default=512, show_default=True, type=whole(1), help="Held-out prompts.")
@click.option(
    "--deadline", default=600.0, show_default=True, type=FiniteRange(1), help="Seconds to wait for the last answer."
)
@json_option
def command(
    config: Path | None, version: int | None, environment: str | None, num_prompts: int, deadline: float, as_json: bool
) -> None:
    """Ask one weight version held-out prompts, with greedy sampling, and print the mean reward.

    A generator and a scorer of the run must be running. If not one prompt is scored, the exit code is 70.
    """
    from rollstream.client.evaluate import EvaluationRequest, newest_version
    from rollstream.producers.settings import ProducerSettings
    from rollstream.views.evaluation import evaluate_with_progress, show

    settings = ProducerSettings.load(config)
    name = environment or settings.environment
    if not name:
        raise ConfigurationError("the producer has no environment: say which with --environment")
    run = connected(settings, deadline)
    request = EvaluationRequest(
        environment=name,
        weight_version=newest_version(run) if version is None else version,
        environments=settings.environments,
        num_prompts=num_prompts,
        deadline_seconds=deadline,
    )
    report = evaluate_with_progress(run, request, is_shown=not as_json)
    show(report, as_json=as_json)
    if report.mean_reward is None:
        raise BrokenWorldError(
            f"none of {num_prompts} prompts was scored; the reasons are above, and `rollstream status` shows whether "
            "generators and scorers run"
        )
