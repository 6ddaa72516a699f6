"""The scorer as a process on the real broker: what it scores, and what it never loses."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.rollout import RolloutGenerated, Status
from rollstream.schemas.topics import ROLLOUTS, SCORED
from tests.builders import a_generated, a_prompt
from tests.running import Run, a_run, wait_until


@pytest.fixture
def run(kafka: str, topic_prefix: str, tmp_path: Path, redis_url: str) -> Iterator[Run]:
    with a_run(kafka, topic_prefix, tmp_path, redis_url=redis_url) as made:
        # A killed member keeps its partitions until its session ends.
        made.tables["scorer"] = {"session_timeout_seconds": 6, "batch_deadline_seconds": 5, "load_deadline_seconds": 5}
        yield made


def put(run: Run, *rollouts: RolloutGenerated) -> None:
    codec = AvroCodec(ROLLOUTS)
    run.publish(ROLLOUTS.name, [(rollout.group_id, codec.encode(rollout)) for rollout in rollouts])


def scored_ids(run: Run) -> set[str]:
    return {record.rollout.rollout_id for record in run.records(SCORED)}


def rollouts(count: int, **fields: object) -> list[RolloutGenerated]:
    return [a_generated(prompt=a_prompt(row), **fields) for row in range(count)]


def test_rollouts_are_scored_and_what_has_no_reward_passes_through(run: Run) -> None:
    right = a_generated(0)
    failed = a_generated(1, status=Status.FAILED, error="prompt too long")
    nameless = a_generated(2, prompt=a_prompt(environment=""))
    unknown = a_generated(3, prompt=a_prompt(environment="no_such.environment"))
    put(run, right, failed, nameless, unknown)
    scorer = run.start("scorer")
    wait_until(lambda: len(run.records(SCORED)) == 4, "four scored rollouts")
    by_index = {record.rollout.sample_index: record for record in run.records(SCORED)}
    assert by_index[0].scoring.reward == 1.0
    assert by_index[0].rollout == right
    assert (by_index[1].scoring.status, by_index[1].scoring.error) == (Status.FAILED, "prompt too long")
    assert by_index[2].scoring.error.startswith("no_environment: ")
    assert by_index[3].scoring.status is Status.FAILED
    assert by_index[3].scoring.error.startswith("unknown_environment: ")
    wait_until(lambda: run.committed("scorers", "rollouts") == 4, "the commit")
    assert scorer.terminate() == 0
