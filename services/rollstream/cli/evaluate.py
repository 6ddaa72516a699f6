"""`rollstream evaluate`: score a weight version on held-out prompts."""

from pathlib import Path

import click

from rollstream.cli.options import config_option, json_option


@click.command("evaluate")
@config_option
@click.option("--version", type=click.IntRange(min=0), help="Weight version; default: the newest.")
@click.option("--environment", help="Environment to pose; default: the producer's.")
@click.option("--num-prompts", default=512, show_default=True, type=click.IntRange(min=1), help="Held-out prompts.")
@click.option(
    "--deadline",
    default=600.0,
    show_default=True,
    type=click.FloatRange(1),
    help="Seconds to wait for the last answer.",
)
@json_option
def command(
    config: Path | None, version: int | None, environment: str | None, num_prompts: int, deadline: float, as_json: bool
) -> None:
    """Pose held-out prompts to one weight version, greedily, and print the mean reward. Needs a running generator."""
    from rollstream.cli.evaluate_view import evaluate_with_progress, show
    from rollstream.producers.evaluate import newest_version, request_for
    from rollstream.producers.settings import ProducerSettings

    settings = ProducerSettings.load(config)
    chosen = newest_version(settings) if version is None else version
    request = request_for(settings, chosen, environment=environment, num_prompts=num_prompts, deadline_seconds=deadline)
    show(evaluate_with_progress(settings, request, is_shown=not as_json), as_json=as_json)
