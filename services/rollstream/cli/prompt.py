"""`rollstream prompt`: submit a prompt, wait for its scored answers, and color them by weight version."""

import uuid
from pathlib import Path

import click
from rich.console import Console

from rollstream.cli.options import FiniteRange, config_option, connected, json_option, whole
from rollstream.client.submit import Patience, answers, submit
from rollstream.environments.load import refuse_unknown_environment
from rollstream.generator.settings import GeneratorSettings
from rollstream.process.settings.base import StageSettings
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ids import group_id
from rollstream.schemas.prompt import Message, PromptSubmitted, Sampling
from rollstream.schemas.record import utc_now
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import SERVE_SCORED
from rollstream.views.colors import VersionColors
from rollstream.views.rendering import cell, json_text


@click.command()
@click.argument("text")
@click.option("--samples", default=1, show_default=True, type=click.IntRange(1, 1024), help="Number of answers.")
@click.option("--environment", default="", help="Environment whose rubric scores the answers.  [default: none]")
@click.option("--reference", help="Right answer, which the rubric compares with.")
@click.option("--max-tokens", default=256, show_default=True, type=whole(1), help="Most tokens of an answer.")
@click.option("--timeout", default=120.0, show_default=True, type=FiniteRange(1), help="Seconds to wait.")
@json_option
@config_option
def command(  # one parameter an option
    text: str,
    samples: int,
    environment: str,
    reference: str | None,
    max_tokens: int,
    timeout: float,
    as_json: bool,
    config: Path | None,
) -> None:
    """Submit TEXT as a prompt, and print each answer when it is scored. The answers are never trained on."""
    patience = Patience(seconds=timeout)
    settings = StageSettings.load(config)
    if environment:
        refuse_unknown_environment(environment, settings.environments)
    run = connected(settings, timeout)
    prompt_id = f"command/{uuid.uuid4().hex}"
    prompt = PromptSubmitted(
        prompt_id=prompt_id,
        group_id=group_id(settings.run, prompt_id, 0),
        environment=environment,
        messages=(Message(role="user", content=text),),
        reference_answer=reference,
        sampling=Sampling(max_tokens=max_tokens),
        group_size=samples,
        submitted_at=utc_now(),
    )
    # Before the prompt is submitted: an answer that comes quickly must not be missed.
    start = run.ends(SERVE_SCORED)
    submit(run, prompt, patience)
    colors = VersionColors(_model_path(config))
    for answer in answers(run, prompt, start, patience):
        _show(answer, colors, as_json)
    if not as_json:
        Console().print(colors.legend())


def _show(answer: RolloutScored, colors: VersionColors, as_json: bool) -> None:
    if as_json:
        click.echo(json_text(answer))
        return
    scoring, rollout = answer.scoring, answer.rollout
    reward = "no reward" if scoring.reward is None else f"reward {scoring.reward:g}"
    why = scoring.failure or rollout.failure
    head = cell(f"{rollout.sample_index}: {reward}{f' ({why})' if why else ''}  ", "bold")
    Console().print(head + colors.answer(rollout))


def _model_path(config: Path | None) -> Path | None:
    """The directory of the generator's model, for its tokenizer; None if the settings name none."""
    try:
        return GeneratorSettings.load(config).engine.model_path
    except ConfigurationError:
        return None
