"""What scorers commit, and where they begin: a commit of a topic that is not there any more does not count."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.commit_notes import topic_id_in
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.rollout import RolloutGenerated
from rollstream.schemas.topics import ROLLOUTS, SCORED
from tests.harness.builders import a_generated, a_prompt
from tests.harness.running import Run, a_run
from tests.harness.topics import add_partitions, make_anew
from tests.harness.waits import wait_until

NUM_ROLLOUTS = 12


@pytest.fixture
def run(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[Run]:
    with a_run(kafka, topic_prefix, tmp_path, partitions=1) as made:
        yield made


def put(run: Run, first: int = 0) -> list[RolloutGenerated]:
    """New rollouts on `rollouts`."""
    rollouts = [a_generated(prompt=a_prompt(row)) for row in range(first, first + NUM_ROLLOUTS)]
    codec = AvroCodec(ROLLOUTS)
    run.publish("rollouts", [(rollout.group_id, codec.encode(rollout)) for rollout in rollouts])
    return rollouts


def commit(run: Run, metadata: str) -> None:
    """Commit the end of what `put` has put, as a scorer that read it before."""
    place = TopicPartition(ROLLOUTS.of(run.name), 0, NUM_ROLLOUTS, metadata=metadata)
    with Consumer({**run.kafka.client_config(), "group.id": f"{run.name}.scorers"}) as before:
        before.commit(offsets=[place], asynchronous=False)


def metadata(run: Run) -> str:
    """Of what the scorers have committed."""
    with Consumer({**run.kafka.client_config(), "group.id": f"{run.name}.scorers"}) as consumer:
        [place] = consumer.committed([TopicPartition(ROLLOUTS.of(run.name), 0)], timeout=10)
    return place.metadata or ""


def scored(run: Run) -> set[str]:
    return {record.rollout.rollout_id for record in run.records(SCORED)}


def ids(rollouts: list[RolloutGenerated]) -> set[str]:
    return {rollout.rollout_id for rollout in rollouts}


def test_a_scorers_commit_names_the_topic_that_it_is_of(run: Run) -> None:
    put(run)
    run.start("scorer")
    wait_until(lambda: run.committed("scorers", "rollouts") == NUM_ROLLOUTS, "everything to be committed")
    assert topic_id_in(metadata(run)) == KafkaAdmin(run.kafka).shape(ROLLOUTS.of(run.name)).topic_id


def test_a_scorer_reads_from_the_start_what_is_committed_of_a_topic_before(run: Run) -> None:
    expected = ids(put(run))
    commit(run, "of another topic")
    run.start("scorer")
    wait_until(lambda: scored(run) == expected, "everything to be scored")


@pytest.mark.parametrize("names_it", [True, False], ids=["with the topic's id", "of an older version"])
def test_a_scorer_goes_on_where_the_one_before_it_committed(run: Run, names_it: bool) -> None:
    put(run)
    commit(run, KafkaAdmin(run.kafka).shape(ROLLOUTS.of(run.name)).topic_id if names_it else "")
    later = ids(put(run, NUM_ROLLOUTS))
    run.start("scorer")
    wait_until(lambda: run.committed("scorers", "rollouts") == 2 * NUM_ROLLOUTS, "everything to be committed")
    assert scored(run) == later


def test_rollouts_made_anew_end_a_living_scorer_and_the_next_one_scores_all_of_the_new_topic(run: Run) -> None:
    before = ids(put(run))
    first = run.start("scorer")
    wait_until(lambda: run.committed("scorers", "rollouts") == NUM_ROLLOUTS, "everything to be committed")
    make_anew(run.kafka, ROLLOUTS.of(run.name))
    later = ids(put(run, NUM_ROLLOUTS))
    assert first.wait() == 70
    run.start("scorer")
    wait_until(lambda: scored(run) == before | later, "everything to be scored")


def test_a_living_scorer_reads_partitions_that_are_added(run: Run) -> None:
    before = ids(put(run))
    run.start("scorer")
    wait_until(lambda: run.committed("scorers", "rollouts") == NUM_ROLLOUTS, "everything to be committed")
    add_partitions(run.kafka, ROLLOUTS.of(run.name), 4)
    later = ids(put(run, NUM_ROLLOUTS))
    assert {message.partition for message in run.messages("rollouts")} - {0}
    wait_until(lambda: scored(run) == before | later, "everything to be scored")
