"""The trace context in the headers of real records, while tracing is off: it goes on, and nothing else does."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollstream.bus.message import Headers, KafkaMessage, OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.client.submit import Patience, submit
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.rollout import RolloutGenerated
from rollstream.schemas.topics import DEAD_LETTERS, PROMPTS, ROLLOUTS, SCORED
from rollstream.stage.replay import list_dead_letters, replayed
from tests.harness.builders import a_generated, a_prompt
from tests.harness.running import Run, a_run
from tests.harness.stage_runs import Bus, running
from tests.harness.stage_runs import run as run_scenario
from tests.harness.waits import until, wait_until

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CONTEXT: Headers = (("traceparent", PARENT.encode()), ("tracestate", b"vendor=x"))
HOSTILE: Headers = (("traceparent", b"00-" + b"f" * 200_000), ("tracestate", b"x" * 200_000), ("baggage", b"a=1"))


@pytest.fixture
def run(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[Run]:
    with a_run(kafka, topic_prefix, tmp_path) as made:
        yield made


def put(run: Run, topic: str, *records: tuple[bytes | None, Headers]) -> None:
    with Publisher(run.kafka, client_id="outside") as publisher:
        for value, headers in records:
            record = OutRecord(topic=f"{run.name}.{topic}", key=b"key", value=value, headers=headers)
            publisher.publish_soon(record).result(10)


def headers_on(run: Run, topic: str) -> list[Headers]:
    return [besides_the_event(message) for message in run.messages(topic)]


def besides_the_event(message: KafkaMessage) -> Headers:
    return tuple(header for header in message.headers if not header[0].startswith("ce_"))


def test_the_results_of_a_stage_carry_on_the_context_of_their_record_and_nothing_that_is_malformed(run: Run) -> None:
    codec = AvroCodec(PROMPTS)
    put(run, "prompts", (codec.encode(a_prompt(1)), CONTEXT), (codec.encode(a_prompt(2)), HOSTILE), (b"junk", CONTEXT))

    async def scenario() -> None:
        with Publisher(run.kafka, client_id="test") as publisher:
            bus = Bus(run.kafka, run.name, publisher, run.directory)
            async with running(bus.stage()) as task:
                await until(lambda: len(bus.read(DEAD_LETTERS)) == 1 and len(bus.rows()) == 2, "the end", task=task)

    run_scenario(scenario())
    by_row = {sample.prompt.source.row: besides_the_event(message) for sample, message in rollouts(run)}
    assert by_row == {1: CONTEXT, 2: ()}
    (letter,) = run.messages("dead-letters")
    assert letter.headers[:2] == CONTEXT
    with run.on_bus.publisher("test") as publisher:
        (found,) = list_dead_letters(run.on_bus)
        assert [outcome.refusal for outcome in replayed(publisher, run.on_bus, [found])] == [None]
    assert headers_on(run, "prompts").count((*CONTEXT, ("rollstream.replays", b"1"))) == 1


def rollouts(run: Run) -> list[tuple[RolloutGenerated, KafkaMessage]]:
    codec = AvroCodec(ROLLOUTS)
    return [(codec.decode(message.value), message) for message in run.messages("rollouts")]


def test_a_scored_rollout_carries_on_the_context_of_its_rollout(run: Run) -> None:
    codec = AvroCodec(ROLLOUTS)
    put(run, "rollouts", (codec.encode(a_generated(0)), CONTEXT), (codec.encode(a_generated(1)), HOSTILE))
    scorer = run.start("scorer")
    wait_until(lambda: len(run.records(SCORED)) == 2, "two scored rollouts")
    scored = AvroCodec(SCORED)
    found = {scored.decode(m.value).rollout.sample_index: besides_the_event(m) for m in run.messages("scored")}
    assert found == {0: CONTEXT, 1: ()}
    assert scorer.terminate() == 0


def test_a_client_submits_in_the_trace_of_whoever_started_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(run.on_bus, a_prompt(1), Patience(seconds=10))
    monkeypatch.setenv("TRACEPARENT", PARENT)
    monkeypatch.setenv("TRACESTATE", "vendor=x")
    submit(run.on_bus, a_prompt(2), Patience(seconds=10))
    assert sorted(headers_on(run, "serve-prompts")) == [(), CONTEXT]
