"""A producer that goes on within an endless environment makes no earlier task again, on a real broker."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.reader import TopicReader
from rollstream.environments.load import load_environment
from rollstream.environments.reasoning_gym import ReasoningGym
from rollstream.process.health import Health
from rollstream.process.settings.base import KafkaSettings
from rollstream.process.settings.declared import Declaration
from rollstream.process.stop import Stop
from rollstream.producers.loop import Producer
from rollstream.producers.settings import ProducerSettings
from rollstream.producers.sources.build import build_source, sampling_of
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.topics import SERVE_PROMPTS
from tests.harness.counted_environment import NAME, PATH, InOrder


def produced(kafka: str, run: str, environment: Declaration, name: str, num_prompts: int) -> None:
    """What a producer process does until it has submitted so many prompts in all."""
    settings = ProducerSettings(
        run=run,
        kafka=KafkaSettings(bootstrap_servers=kafka),
        environment=name,
        environments={name: environment},
        purpose="serve",
        group_size=1,
        num_prompts=num_prompts,
    )
    Producer(settings, build_source(settings), sampling=sampling_of(settings), health=Health()).run(Stop())


def submitted(kafka: str, run: str) -> list[PromptSubmitted]:
    codec = AvroCodec(SERVE_PROMPTS)
    with TopicReader(KafkaSettings(bootstrap_servers=kafka), [SERVE_PROMPTS.of(run)]) as reader:
        found = [codec.decode(message.value) for message in reader.to_end() if message.value is not None]
    return sorted(found, key=lambda prompt: prompt.sequence)


def test_a_restart_makes_only_the_tasks_that_it_submits(kafka: str, topic_prefix: str) -> None:
    KafkaAdmin(KafkaSettings(bootstrap_servers=kafka)).create_topics(topic_prefix, partitions=2)
    for num_prompts, made in ((1000, [0, *range(1000)]), (1030, [0, *range(1000, 1030)])):
        InOrder.made.clear()
        produced(kafka, topic_prefix, Declaration(path=PATH), NAME, num_prompts)
        # The first one tells whether there are tasks at all; one more than wanted shows the end.
        assert InOrder.made == [*made, num_prompts]
    prompts = submitted(kafka, topic_prefix)
    assert [prompt.messages[0].content for prompt in prompts] == [f"{row}=" for row in range(1030)]
    assert [prompt.source.row for prompt in prompts if prompt.source] == [*range(1030)]


def test_a_restart_within_reasoning_gym_makes_few_entries_and_goes_on_where_it_was(
    kafka: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = [0]
    entries = ReasoningGym._entries

    def counting(self: ReasoningGym, seed: int) -> Iterator[dict[str, Any]]:
        for entry in entries(self, seed):
            counted[0] += 1
            yield entry

    monkeypatch.setattr(ReasoningGym, "_entries", counting)
    chain_sum = Declaration(options={"dataset": "chain_sum"})
    KafkaAdmin(KafkaSettings(bootstrap_servers=kafka)).create_topics(topic_prefix, partitions=2)
    totals = [0]
    for num_prompts in (1234, 1240, 1246):
        produced(kafka, topic_prefix, chain_sum, "reasoning_gym", num_prompts)
        totals.append(counted[0])
    first, *others = (after - before for before, after in pairwise(totals))
    assert first > 1234
    assert all(other < 150 for other in others)
    gym = load_environment("reasoning_gym", {"reasoning_gym": chain_sum})
    expected = [task.messages for task, _ in zip(gym.tasks("train", 0), range(1246), strict=False)]
    assert [prompt.messages for prompt in submitted(kafka, topic_prefix)] == expected
