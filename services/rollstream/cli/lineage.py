"""`rollstream lineage`: where a rollout or a step came from and what became of it, from the topics alone."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any, Final

import click

from rollstream.bus.message import Message
from rollstream.bus.reader import TopicReader
from rollstream.cli.options import json_option, settings_option
from rollstream.history.ledger import Survivors, surviving
from rollstream.history.lineage import Found, RolloutStory, StepStory, surviving_step, trace_rollout, trace_step
from rollstream.process.settings import StageSettings
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ids import group_of
from rollstream.schemas.ledger import LedgerEntry
from rollstream.schemas.record import Record
from rollstream.schemas.topics import (
    EVAL_PROMPTS,
    EVAL_ROLLOUTS,
    EVAL_SCORED,
    LEDGER,
    PROMPTS,
    ROLLOUTS,
    SCORED,
    WEIGHTS,
)
from rollstream.schemas.weights import WeightsPublished
from rollstream.views.lineage_text import rollout_lines, step_lines
from rollstream.views.reading import Decoder, at_places, stream
from rollstream.views.rendering import plain

_OF_A_GROUP: Final = (PROMPTS, ROLLOUTS, SCORED, EVAL_PROMPTS, EVAL_ROLLOUTS, EVAL_SCORED)


@click.command()
@click.argument("what", metavar="ROLLOUT_ID|STEP")
@json_option
@settings_option
def command(what: str, as_json: bool, settings: StageSettings) -> None:
    """Trace a rollout (prompt, attempts, reward, step, version) or the rollouts of an optimizer step.

    Reads the run's whole ledger, and for a rollout all its topics: moments at first, minutes after weeks.
    """
    source = _Source(settings)
    story = source.step(int(what)) if what.isdecimal() else source.rollout(what)
    if as_json:
        click.echo(json.dumps(_plain_story(story)))
        return
    for line in rollout_lines(story) if isinstance(story, RolloutStory) else step_lines(story):
        click.echo(line)


class _Source:
    """Reads what a story needs; records of other groups are passed over undecoded."""

    def __init__(self, settings: StageSettings) -> None:
        self._settings = settings
        self._decoder = Decoder(settings)
        self._entries = [record for record in self._all(LEDGER.of(settings.run)) if isinstance(record, LedgerEntry)]
        self._survivors: Survivors = surviving(self._entries)
        self._versions = [
            record for record in self._all(WEIGHTS.of(settings.run)) if isinstance(record, WeightsPublished)
        ]

    def rollout(self, rollout_id: str) -> RolloutStory:
        """The story of a rollout; raises `ConfigurationError` if no topic knows it."""
        topics = [topic.of(self._settings.run) for topic in _OF_A_GROUP]
        key = group_of(rollout_id).encode()
        with TopicReader(self._settings.kafka, topics) as reader:
            found = list(self._found(message for message in stream(reader) if message.key == key))
        story = trace_rollout(
            rollout_id, found=found, entries=self._entries, survivors=self._survivors, versions=self._versions
        )
        if not (story.attempts or story.scored or story.trained or story.cut_steps):
            raise ConfigurationError(
                f"no topic of run {self._settings.run} knows rollout {rollout_id}: `rollstream tail scored` shows ids; "
                "records older than the topics' retention are gone"
            )
        return story

    def step(self, number: int) -> StepStory:
        """The story of a step; raises `ConfigurationError` if the surviving ledger has no such step."""
        step = surviving_step(number, self._survivors)
        if step is None:
            raise ConfigurationError(
                f"run {self._settings.run} has no surviving step {number}: it has come to step {self._survivors.step}"
            )
        places: dict[int, set[int]] = defaultdict(set)
        for trained in step.trained:
            places[trained.partition].add(trained.offset)
        return trace_step(
            step,
            found=list(self._found(at_places(self._settings, SCORED, places))),
            entries=self._entries,
            survivors=self._survivors,
            versions=self._versions,
        )

    def _all(self, topic: str) -> Iterator[Record | None]:
        with TopicReader(self._settings.kafka, [topic]) as reader:
            for message in stream(reader):
                yield self._decoder.decode(message).record

    def _found(self, messages: Iterable[Message]) -> Iterator[Found[Record]]:
        for message in messages:
            record = self._decoder.decode(message).record
            if record is not None:
                yield Found(topic=message.topic, partition=message.partition, offset=message.offset, record=record)


def _plain_story(value: Any) -> Any:
    if isinstance(value, RolloutStory | StepStory | Found):
        return {field.name: _plain_story(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain_story(part) for part in value]
    return plain(value)
