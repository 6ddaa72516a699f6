"""A producer that poses what clients gave to ingest: under its credit, each once, in the order in which it came."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from rollstream.bus.message import KafkaMessage
from rollstream.bus.reader import TopicReader
from rollstream.producers.settings import ProducerSettings
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.prompt import AgentChoice, PromptSubmitted, Sampling
from rollstream.schemas.topics import DEAD_LETTERS, INGEST_PROMPTS
from rollstream.stage.dead_letters import distinct
from tests.harness import running
from tests.harness.builders import a_prompt
from tests.harness.producer_runs import DEADLINE_SECONDS, Run, producing


@pytest.fixture
def run(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[Run]:
    made = Run(kafka, topic_prefix, tmp_path)
    yield made
    made.publisher.close()
    made.reader.close()


def settings(run: Run, **fields: Any) -> ProducerSettings:
    return run.settings(source="ingest", path=None, **fields)


def ingest(run: Run, row: int, **fields: Any) -> PromptSubmitted:
    """Put a prompt on `ingest-prompts`, as ingest does."""
    prompt = a_prompt(row, run=run.name, producer="", **fields)
    put(run, AvroCodec(INGEST_PROMPTS).encode(prompt))
    return prompt


def put(run: Run, value: bytes) -> None:
    run.put(INGEST_PROMPTS.of(run.name), value)


def letters(run: Run) -> list[KafkaMessage]:
    with TopicReader(run.kafka, [DEAD_LETTERS.of(run.name)]) as reader:
        return list(reader.to_end())


def test_prompts_are_posed_as_their_clients_made_them(run: Run) -> None:
    given = ingest(
        run, 3, environment="word_count", group_size=7, sampling=Sampling(max_tokens=5, seed=9),
        agent=AgentChoice(options={"a": "b"}), metadata={"user": "of mine"}, tools=("{}",),
    )  # fmt: skip
    with producing(settings(run, name="asker")):
        run.wait_for(1)
    [posed] = run.prompts
    own = {"producer", "sequence", "source", "submitted_at"}
    assert posed.model_dump(exclude=own) == given.model_dump(exclude=own)
    assert (posed.producer, posed.sequence, posed.source.row) == ("asker", 0, 0)
    assert posed.submitted_at > given.submitted_at


def test_they_wait_for_credit_and_a_prompt_that_comes_later_is_posed_too(run: Run) -> None:
    groups = [ingest(run, row).group_id for row in range(3)]
    with producing(settings(run, share=2)):
        run.wait_for(2)
        run.step(groups[0])
        run.wait_for(3)
        run.step(*groups[1:])
        groups.append(ingest(run, 9).group_id)
        run.wait_for(4)
    assert run.groups() == groups


def test_a_prompt_that_came_twice_is_posed_once_also_by_a_later_process(run: Run) -> None:
    ingest(run, 1)
    ingest(run, 1)
    with producing(settings(run)):
        run.wait_for(1)
        run.step(*run.groups())
        ingest(run, 1)
        ingest(run, 2)
        run.wait_for(2)
        run.step(run.groups()[1])
    ingest(run, 2)
    ingest(run, 1)
    ingest(run, 3)
    with producing(settings(run)):
        run.wait_for(3)
    assert [prompt.sequence for prompt in run.prompts] == [0, 1, 2]
    assert len(set(run.groups())) == 3


def test_what_nobody_could_train_on_is_a_dead_letter_and_a_later_process_goes_on_behind_it(run: Run) -> None:
    ingest(run, 1, environment="nobody_has_it")
    for number in range(30):
        put(run, b"garbage %d" % number)
    # Of the same group as the refused one.
    ingest(run, 1)
    with producing(settings(run)):
        run.wait_for(1)
    ingest(run, 2)
    with producing(settings(run)):
        run.wait_for(2)
    assert [(prompt.sequence, prompt.source.row) for prompt in run.prompts] == [(0, 31), (1, 32)]
    group = f"{run.name}.ingest"
    assert {letter.identity for letter in distinct(letters(run))} == {
        (group, INGEST_PROMPTS.of(run.name), 0, offset) for offset in range(31)
    }


def test_what_the_broker_deleted_before_it_was_posed_is_passed_over(run: Run) -> None:
    for row in range(4):
        ingest(run, row)
    client = AdminClient(run.kafka.client_config())
    [deleted] = client.delete_records([TopicPartition(INGEST_PROMPTS.of(run.name), 0, 3)]).values()
    deleted.result(DEADLINE_SECONDS)
    with producing(settings(run)):
        run.wait_for(1)
    assert run.prompts[0].metadata == a_prompt().metadata
    assert (run.prompts[0].sequence, run.prompts[0].source.row) == (0, 3)


def test_a_producer_that_was_killed_in_its_batch_repeats_none_of_it(run: Run) -> None:
    for row in range(12):
        ingest(run, row)
    tables = {"producer": {"source": "ingest"}}
    stages = running.Run(kafka=run.kafka, name=run.name, directory=run.directory, tables=tables)
    assert stages.start("producer", ROLLSTREAM_CRASH_AT="batch_submitted").wait() == -signal.SIGKILL
    ingest(run, 12)
    with producing(settings(run)):
        run.wait_for(13)
    assert len(set(run.groups())) == 13
