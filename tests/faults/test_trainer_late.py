"""A step waits for groups that it would make too old, so that long samples are not dropped for their length."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from rollstream.local.ports import free_ports
from rollstream.schemas.ids import group_of
from rollstream.schemas.ledger import LedgerEntry
from rollstream.schemas.prompt import PromptSubmitted
from tests.harness.running import Run
from tests.harness.scraping import scraped
from tests.harness.trainer_runs import (
    GROUP_SIZE,
    GROUPS_PER_STEP,
    Start,
    a_scored,
    a_trainer_run,
    check_nothing_lost_or_twice,
    configure,
    put_scored,
    scored,
    scored_groups,
    submitted,
    survivors,
)
from tests.harness.waits import wait_until


@pytest.fixture
def run(kafka: str, topic_prefix: str, tmp_path: Path, model: Path) -> Iterator[Run]:
    # One partition: the samples of the late group are read before those of the others.
    with a_trainer_run(kafka, topic_prefix, tmp_path, model, partitions=1) as fresh:
        fresh.shared["max_policy_lag"] = 1
        yield fresh


def a_first_step(run: Run, start: Start) -> list[PromptSubmitted]:
    """Prompts that were trained on. No trainer runs."""
    prompts = scored_groups(run, GROUPS_PER_STEP)
    configure(run, num_steps=1)
    assert start().wait() == 0
    return prompts


def one_step_and_a_late_group(run: Run, start: Start) -> list[PromptSubmitted]:
    """Prompts: two that are trained on; one of version 0 that lacks its last sample; two of version 1, enough for a
    second step. No trainer runs."""
    first = a_first_step(run, start)
    late, *others = submitted(run, 1 + GROUPS_PER_STEP, first=10)
    scored(run, [late], version=0, samples=GROUP_SIZE - 1)
    scored(run, others, version=1)
    return [*first, late, *others]


def second_step(run: Run) -> LedgerEntry:
    return next(entry for entry in survivors(run).chain if entry.step == 2 and entry.trained)


def test_a_step_waits_for_the_last_sample_of_a_group_that_it_would_make_too_old(run: Run, start: Start) -> None:
    prompts = one_step_and_a_late_group(run, start)
    late = prompts[GROUPS_PER_STEP]
    configure(run, num_steps=2, wait_for_late_seconds=60.0)
    trainer = start()
    wait_until(lambda: "step 2 waits for groups" in trainer.said(), "the step to be held back")
    put_scored(run, [a_scored(late, GROUP_SIZE - 1, 0)])
    assert trainer.wait() == 0
    assert late.group_id in {group_of(rollout.rollout_id) for rollout in second_step(run).trained}


def test_a_step_does_not_wait_longer_than_its_bound(run: Run, start: Start) -> None:
    prompts = one_step_and_a_late_group(run, start)
    late = prompts[GROUPS_PER_STEP]
    configure(run, num_steps=2, wait_for_late_seconds=1.0)
    assert start().wait() == 0
    assert second_step(run).metrics["waiting_for_late_seconds"] >= 1.0
    put_scored(run, [a_scored(late, GROUP_SIZE - 1, 0)])
    configure(run, num_steps=0)
    trainer = start()
    wait_until(lambda: late.group_id in survivors(run).closed, "the late group to close")
    assert trainer.terminate() == 0
    assert survivors(run).closed[late.group_id].reason == "too_old"
    check_nothing_lost_or_twice(run, prompts)


def said_by_generators(run: Run, note: str) -> None:
    """Commit nothing but a note for `prompts`/0, as the generators do it, or whoever may commit for them."""
    consumer = Consumer({**run.kafka.client_config(), "group.id": f"{run.name}.generators"})
    consumer.commit(offsets=[TopicPartition(f"{run.name}.prompts", 0, 0, f" {note}")], asynchronous=False)
    consumer.close()


def wait_for_an_answer(port: int) -> None:
    """Until the trainer has asked how far the generators are, and what they say."""
    sizes = "rollstream_trainer_topic_records"
    wait_until(lambda: scraped(port, sizes, topic="ledger") is not None, "the trainer's first answer")


def test_a_step_waits_for_a_group_of_which_no_sample_came_if_it_was_begun_so_long_ago(run: Run, start: Start) -> None:
    a_first_step(run, start)
    late, *others = submitted(run, 1 + GROUPS_PER_STEP, first=10)
    said_by_generators(run, f"0:{GROUPS_PER_STEP}")
    configure(run, num_steps=2, wait_for_late_seconds=60.0)
    [port] = free_ports(1)
    trainer = start(ROLLSTREAM_HEALTH_PORT=str(port))
    wait_for_an_answer(port)
    scored(run, others, version=1)
    wait_until(lambda: "step 2 waits for groups" in trainer.said(), "the step to be held back")
    scored(run, [late], version=0)
    assert trainer.wait() == 0
    assert late.group_id in {group_of(rollout.rollout_id) for rollout in second_step(run).trained}


def test_what_anybody_says_of_groups_in_work_delays_a_step_by_the_bound_at_most(run: Run, start: Start) -> None:
    a_first_step(run, start)
    never, *others = submitted(run, 1 + GROUPS_PER_STEP, first=10)
    said_by_generators(run, f"0:{GROUPS_PER_STEP}")
    configure(run, num_steps=2, wait_for_late_seconds=1.0)
    [port] = free_ports(1)
    trainer = start(ROLLSTREAM_HEALTH_PORT=str(port))
    wait_for_an_answer(port)
    scored(run, others, version=1)
    assert trainer.wait() == 0
    assert second_step(run).metrics["waiting_for_late_seconds"] >= 1.0
    assert never.group_id not in survivors(run).closed
