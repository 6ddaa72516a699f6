"""What the demo's summary is computed from is read from the topics, each record once."""

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.message import OutRecord
from rollstream.bus.run import Run
from rollstream.local.demo.facts import FactsReader
from rollstream.process.settings.base import KafkaSettings, StageSettings
from rollstream.schemas.prompt import Purpose
from rollstream.schemas.topics import DEAD_LETTERS, PROMPTS, SCORED, WEIGHTS, WEIGHTS_APPLIED
from rollstream.schemas.weights import ApplyOutcome
from tests.harness.builders import a_prompt, a_rollout, an_entry, applied, published


def publish(run: Run, *records: OutRecord) -> None:
    with run.publisher("test") as publisher:
        for delivery in [publisher.publish_soon(record) for record in records]:
            delivery.result(20)


def test_facts_are_read_on_where_the_last_reading_ended(kafka: str, topic_prefix: str) -> None:
    run = Run(StageSettings(run=topic_prefix, kafka=KafkaSettings(bootstrap_servers=kafka)))
    KafkaAdmin(run.kafka).create_topics(topic_prefix, partitions=2)
    topics = FactsReader(run)
    topics.read_on()
    nothing = topics.facts([])
    assert (nothing.submitted, nothing.started_at, nothing.samples) == (frozenset(), None, ())

    first, second = a_prompt(1, purpose=Purpose.TRAIN), a_prompt(2, purpose=Purpose.TRAIN)
    publish(
        run,
        run.out_record(PROMPTS, first),
        run.out_record(PROMPTS, a_prompt(3, purpose=Purpose.EVALUATE)),
        run.out_record(SCORED, a_rollout(0.5, prompt=first)),
        run.out_record(WEIGHTS, published(1)),
        run.out_record(WEIGHTS_APPLIED, applied(1)),
        run.out_record(WEIGHTS_APPLIED, applied(2, outcome=ApplyOutcome.SKIPPED)),
        OutRecord(topic=run.topic(DEAD_LETTERS), value=b"lost"),
    )
    topics.read_on()
    publish(
        run,
        run.out_record(PROMPTS, second),
        OutRecord(topic=run.topic(SCORED), value=b"no record"),
        run.out_record(SCORED, a_rollout(1.0, prompt=second)),
    )
    topics.read_on()
    topics.read_on()

    entry = an_entry()
    facts = topics.facts([entry])
    assert facts.submitted == {first.group_id, second.group_id}
    assert facts.started_at == min(first.submitted_at, second.submitted_at)
    assert [sample.reward for sample in facts.samples] == [0.5, 1.0]
    assert (facts.published, facts.applied, facts.dead_letters, facts.ledger) == ({1}, {1}, 1, (entry,))
