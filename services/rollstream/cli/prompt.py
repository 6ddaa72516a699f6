"""`rollstream prompt`: submit a prompt, wait for its scored answers, show which weight version wrote what."""

import json
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from rollstream.bus.message import OutRecord, Partition
from rollstream.bus.publisher import Publisher
from rollstream.bus.reader import TopicReader
from rollstream.cli.colors import VersionColors
from rollstream.cli.options import config_option, json_option
from rollstream.cli.reading import Decoder, end_offsets
from rollstream.cli.rendering import plain
from rollstream.process.settings import StageSettings
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import BrokerError
from rollstream.schemas.ids import group_id
from rollstream.schemas.prompt import Message, PromptSubmitted, Sampling
from rollstream.schemas.record import utc_now
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import PROMPTS, SCORED


@click.command()
@click.argument("text")
@click.option("--samples", default=1, show_default=True, type=click.IntRange(1, 1024), help="Answers to draw.")
@click.option("--environment", default="", help="Environment whose rubric scores the answers.  [default: none]")
@click.option("--reference", help="What the rubric compares an answer with.")
@click.option("--max-tokens", default=256, show_default=True, type=click.IntRange(min=1), help="Bound of an answer.")
@click.option("--timeout", default=120.0, show_default=True, type=click.FloatRange(1), help="Seconds to wait.")
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
    """Submit TEXT as a prompt that is never trained on, and print its answers as they are scored."""
    settings = StageSettings.load(config)
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
    start = end_offsets(settings, SCORED)
    _submit(settings, prompt)
    colors = VersionColors(config)
    for answer in _answers(settings, prompt, start, timeout):
        _show(answer, colors, as_json)
    if not as_json:
        Console().print(colors.legend())


def _submit(settings: StageSettings, prompt: PromptSubmitted) -> None:
    value = AvroCodec(PROMPTS, settings.registry()).encode(prompt)
    publisher = Publisher(settings.kafka, client_id=f"prompt-{os.getpid()}")
    try:
        record = OutRecord(topic=PROMPTS.of(settings.run), key=prompt.group_id.encode(), value=value)
        publisher.publish_soon(record).result()
    finally:
        publisher.close()


def _answers(
    settings: StageSettings, prompt: PromptSubmitted, start: dict[Partition, int], timeout_seconds: float
) -> Iterator[RolloutScored]:
    """Each sample once, as it comes; raises `BrokerError` when some are missing at the deadline."""
    deadline = time.monotonic() + timeout_seconds
    decoder = Decoder(settings)
    missing = set(range(prompt.group_size))
    key = prompt.group_id.encode()
    with TopicReader(settings.kafka, [SCORED.of(settings.run)], start=start) as reader:
        while missing:
            if time.monotonic() > deadline:
                raise BrokerError(
                    f"{len(missing)} of {prompt.group_size} answers did not come within {timeout_seconds:g} s: "
                    "`rollstream status` shows whether generators and scorers run; --timeout waits longer"
                )
            for message in reader.poll(timeout_seconds=0.2):
                record = decoder.decode(message).record if message.key == key else None
                if isinstance(record, RolloutScored) and record.rollout.sample_index in missing:
                    missing.discard(record.rollout.sample_index)
                    yield record


def _show(answer: RolloutScored, colors: VersionColors, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(plain(answer)))
        return
    scoring, rollout = answer.scoring, answer.rollout
    reward = "no reward" if scoring.reward is None else f"reward {scoring.reward:g}"
    why = scoring.error or rollout.error
    head = Text(f"{rollout.sample_index}: {reward}{f' ({why})' if why else ''}  ", style="bold")
    Console().print(head + colors.answer(rollout))
