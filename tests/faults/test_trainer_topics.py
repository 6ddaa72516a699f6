"""What a living trainer does when an operator changes the topics that it reads."""

from typing import Any

import pytest

from rollstream.schemas.topics import LEDGER, PROMPTS, SCORED, WEIGHTS, Topic
from tests.harness.processes import StartedProcess
from tests.harness.running import Run
from tests.harness.topics import add_partitions, make_anew
from tests.harness.trainer_runs import (
    Start,
    check_nothing_lost_or_twice,
    commit_all,
    configure,
    scored,
    scored_groups,
    submitted,
    survivors,
)
from tests.harness.waits import wait_until


def test_partitions_that_are_added_under_a_living_trainer_are_read_and_lost_groups_close(
    run: Run, start: Start
) -> None:
    configure(run, lost_after_seconds=1.0)
    start()
    first = scored_groups(run, 2)
    wait_until(lambda: survivors(run).step == 1, "the first step")
    for topic in (PROMPTS, SCORED):
        add_partitions(run.kafka, topic.of(run.name), 8)
    later = submitted(run, 8, first=2)
    scored(run, later[:6])
    scored(run, later[6:], samples=1)
    for group, topic in (("generators", "prompts"), ("scorers", "rollouts")):
        commit_all(run, group, topic)
    wait_until(lambda: len(survivors(run).closed) == 10, "every group to close")
    found = check_nothing_lost_or_twice(run, [*first, *later])
    assert found.step == 4
    assert {found.closed[prompt.group_id].reason for prompt in later[6:]} == {"lost"}


def test_a_topic_that_is_made_anew_ends_a_living_trainer_and_the_next_one_refuses_to_start(
    run: Run, start: Start
) -> None:
    trainer = a_trained_run(run, start)
    prompts = run.records(PROMPTS)
    before = len(survivors(run).closed)
    make_anew(run.kafka, SCORED.of(run.name), partitions=2)
    # The same samples once more, as after a mirror: nothing of them may be trained on twice.
    scored(run, prompts)
    assert trainer.wait() == 70
    assert "was made anew while it was read" in trainer.said()
    again = start()
    assert again.wait() == 78
    assert "was deleted and made again" in again.said()
    assert "start a new run" in again.said()
    assert len(survivors(run).closed) == before


def a_trained_run(run: Run, start: Start, checkpoint_every: int = 1) -> StartedProcess:
    """A trainer that has made a step."""
    configure(run, checkpoint_every=checkpoint_every)
    trainer = start()
    scored_groups(run, 2)
    wait_until(lambda: survivors(run).step == 1, "the first step")
    return trainer


EMPTY = "the ledger of run {run} is empty"


@pytest.mark.parametrize(
    ("anew", "checkpoint_every", "why"),
    [
        ((PROMPTS,), 1000, "{run}.prompts was deleted and made again"),
        ((SCORED,), 1000, "{run}.scored was deleted and made again"),
        ((LEDGER,), 1, EMPTY),
        ((LEDGER, WEIGHTS), 1, EMPTY),
        ((LEDGER, WEIGHTS), 1000, f"{EMPTY}, and there is how far a trainer read"),
    ],
    ids=["prompts", "scored", "ledger", "ledger and weights", "ledger and weights without a checkpoint"],
)
def test_a_trainer_refuses_topics_that_were_made_anew_while_none_ran_and_writes_nothing(
    run: Run, start: Start, anew: tuple[Topic[Any], ...], checkpoint_every: int, why: str
) -> None:
    """Versions, checkpoints and a trainer's committed offsets tell that the run had a ledger."""
    trainer = a_trained_run(run, start, checkpoint_every)
    wait_until(lambda: run.committed("trainer", "scored") == 8, "what it has read to be committed for monitors")
    trainer.kill()
    for topic in anew:
        make_anew(run.kafka, topic.of(run.name), partitions=1 if topic.single_partition else 2)
    before = run.messages("ledger")
    again = start()
    assert again.wait() == 78
    assert why.format(run=run.name) in again.said()
    assert run.messages("ledger") == before


def test_versions_go_on_growing_where_weights_alone_was_made_anew_and_the_trainer_says_what_is_lost(
    run: Run, start: Start
) -> None:
    assert a_trained_run(run, start).terminate() == 0
    newest = survivors(run).current_version
    assert newest is not None
    make_anew(run.kafka, WEIGHTS.of(run.name))
    again = start()
    wait_until(lambda: survivors(run).current_version == newest + 1, "the next trainer's first entry")
    assert f"no version lies on weights of run {run.name}, and its ledger has them up to {newest}" in again.said()
    assert [version.weight_version for version in run.records(WEIGHTS)] == [newest + 1]


def test_a_ledger_that_is_made_anew_under_a_living_trainer_gets_no_entry_of_it(run: Run, start: Start) -> None:
    trainer = a_trained_run(run, start)
    make_anew(run.kafka, LEDGER.of(run.name))
    scored_groups(run, 2, first=2)
    assert trainer.wait() == 70
    assert "was made anew while it was read" in trainer.said()
    assert run.messages("ledger") == []
    assert start().wait() == 78
