"""Groups are put together from prompts and scored samples, in whatever order these arrive."""

from datetime import timedelta
from typing import Any

import pytest

from rollstream.bus.message import Partition
from rollstream.schemas.ledger import ClosedGroup, GroupOutcome
from rollstream.schemas.prompt import PromptSubmitted, Purpose, Sampling
from rollstream.schemas.rollout import Status
from rollstream.schemas.scored import RolloutScored
from rollstream.trainer.intake.assembler import Assembler
from rollstream.trainer.intake.groups import DropReason, LogPlace
from tests.harness.builders import NOON, a_group, a_prompt, a_rollout

PROMPTS: Partition = ("demo.prompts", 0)
SCORED: Partition = ("demo.scored", 0)


def an_assembler(*, closed: tuple[ClosedGroup, ...] = (), incomplete_bytes: int = 10**9) -> Assembler:
    return Assembler(
        closed=[group.group_id for group in closed],
        offsets={PROMPTS: 0, SCORED: 0},
        incomplete_bytes=incomplete_bytes,
    )


def feed(assembler: Assembler, *records: PromptSubmitted | RolloutScored, first: int = 0) -> None:
    """Prompts and samples, each at the next offset of its topic."""
    for offset, record in enumerate(records, start=first):
        if isinstance(record, PromptSubmitted):
            assembler.add_prompt(record, LogPlace(PROMPTS, offset))
        else:
            assembler.add_sample(record, LogPlace(SCORED, offset), num_bytes=1000)


def dropped(assembler: Assembler) -> dict[str, str]:
    return {drop.group.group_id: drop.reason.value for drop in assembler.take_drops(100)}


def test_a_group_is_complete_when_its_last_sample_arrives_whatever_the_order_and_status() -> None:
    prompt = a_prompt(group_size=3)
    samples = [a_rollout(1.0, 2, prompt=prompt), a_rollout(None, 0, prompt=prompt), a_rollout(0.0, 1, prompt=prompt)]
    assembler = an_assembler()
    feed(assembler, samples[0], prompt, samples[1])
    assert assembler.take_completed() == []
    feed(assembler, samples[2], first=3)
    (group,) = assembler.take_completed()
    assert [sample.scored.rollout.sample_index for sample in group.in_order()] == [0, 1, 2]
    assert assembler.take_completed() == []


def test_until_the_group_closes_a_completed_attempt_beats_others_and_else_the_first_wins() -> None:
    prompt = a_prompt(group_size=2)
    unresolved = a_rollout(None, 0, prompt=prompt, attempt_id="first")
    completed = a_rollout(1.0, 0, prompt=prompt, attempt_id="second")
    again = a_rollout(0.5, 0, prompt=prompt, attempt_id="third")
    assembler = an_assembler()
    feed(assembler, unresolved, a_rollout(0.0, 1, prompt=prompt))
    (group,) = assembler.take_completed()
    feed(assembler, completed, again, unresolved, first=2)
    assert group.samples[0].scored.rollout.attempt_id == "second"
    assert assembler.num_duplicates == 2
    assert assembler.incomplete_bytes == 0


@pytest.mark.parametrize(
    "differing", [{"prompt": a_prompt(group_size=2, reference_answer="another")}, {"group_size": 3}]
)
def test_samples_that_disagree_on_the_prompt_or_group_size_drop_the_group_as_conflict(
    differing: dict[str, Any],
) -> None:
    prompt = a_prompt(group_size=2)
    assembler = an_assembler()
    feed(assembler, a_rollout(1.0, 0, prompt=prompt), a_rollout(1.0, 1, **{"prompt": prompt, **differing}))
    assert dropped(assembler) == {prompt.group_id: DropReason.CONFLICT}


def test_a_prompt_resubmitted_by_another_producer_at_another_time_is_the_same_group() -> None:
    prompt = a_prompt(group_size=2)
    again = prompt.model_copy(update={"producer": "producer-1", "sequence": 99})
    assembler = an_assembler()
    feed(assembler, prompt, again, *a_group([0.0, 1.0], prompt=prompt))
    assert len(assembler.take_completed()) == 1
    assert dropped(assembler) == {}


def test_a_prompt_that_is_not_for_training_closes_and_its_samples_are_passed_over() -> None:
    prompt = a_prompt(purpose=Purpose.SERVE, group_size=2)
    assembler = an_assembler()
    feed(assembler, prompt, *a_group([0.0, 1.0], prompt=prompt))
    assert dropped(assembler) == {prompt.group_id: DropReason.NOT_FOR_TRAINING}
    assert assembler.num_duplicates == 0
    assert assembler.num_open == 0


def test_records_of_a_group_that_is_closed_on_the_surviving_branch_are_duplicates() -> None:
    prompt = a_prompt(group_size=2)
    closed = ClosedGroup(group_id=prompt.group_id, outcome=GroupOutcome.TRAINED)
    assembler = an_assembler(closed=(closed,))
    feed(assembler, prompt, *a_group([0.0, 1.0], prompt=prompt))
    assert assembler.num_duplicates == 3
    assert assembler.take_completed() == []
    assert assembler.offsets() == {PROMPTS: 1, SCORED: 3}


def test_a_record_as_old_as_groups_that_are_forgotten_closes_as_expired_unless_its_group_is_open() -> None:
    old, young = a_prompt(1, group_size=2), a_prompt(2, group_size=2, submitted_at=NOON + timedelta(seconds=1))
    assembler = Assembler(
        closed=(), offsets={}, incomplete_bytes=10**9, is_forgotten=lambda submitted_at: submitted_at <= NOON
    )
    expected = a_prompt(3, group_size=2)
    assembler.expect([expected.group_id])
    feed(assembler, *a_group([0.0, 1.0], prompt=old), old, young, *a_group([0.0, 1.0], prompt=expected))
    assert dropped(assembler) == {old.group_id: DropReason.EXPIRED}
    assert assembler.open_group_ids() == (expected.group_id, young.group_id)


def test_a_group_that_the_ledger_names_needs_no_memory_of_its_own() -> None:
    prompt, ledger = a_prompt(group_size=2), set[str]()
    assembler = Assembler(closed=ledger, offsets={}, incomplete_bytes=10**9)
    feed(assembler, *a_group([0.0, 1.0], prompt=prompt))
    assembler.drop(prompt.group_id, DropReason.NO_SPREAD)
    assert assembler.is_closed(prompt.group_id)
    ledger.add(prompt.group_id)
    assembler.committed([prompt.group_id])
    assert assembler.is_closed(prompt.group_id)
    ledger.clear()  # as after a long time
    assert not assembler.is_closed(prompt.group_id)


def test_the_oldest_incomplete_group_goes_when_incomplete_samples_take_too_much_memory() -> None:
    first, second, complete = (a_prompt(row, group_size=2) for row in (1, 2, 3))
    assembler = an_assembler(incomplete_bytes=1500)
    feed(assembler, *a_group([0.0, 1.0], prompt=complete), first, a_rollout(1.0, 0, prompt=first))
    assert dropped(assembler) == {}
    feed(assembler, a_rollout(1.0, 0, prompt=second), first=4)
    assert dropped(assembler) == {first.group_id: DropReason.OVERFLOW}
    assert assembler.incomplete_bytes == 1000


def test_an_expected_group_is_complete_by_what_its_samples_say() -> None:
    prompt = a_prompt(group_size=2)
    assembler = an_assembler()
    assembler.expect([prompt.group_id, "never-seen"])
    assert [group.group_id for group in assembler.incomplete] == [prompt.group_id, "never-seen"]
    feed(assembler, *a_group([0.0, 1.0], prompt=prompt))
    assert [group.group_id for group in assembler.take_completed()] == [prompt.group_id]


def test_a_failed_sample_does_not_replace_an_unresolved_one() -> None:
    prompt = a_prompt(group_size=1)
    assembler = an_assembler()
    feed(assembler, a_rollout(None, 0, prompt=prompt, attempt_id="first"))
    (group,) = assembler.take_completed()
    feed(assembler, a_rollout(None, 0, prompt=prompt, status=Status.FAILED, attempt_id="second"), first=1)
    assert group.samples[0].scored.rollout.attempt_id == "first"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"group_size": 10**12}, "failed"),
        ({"group_size": 1024, "reference_answer": "x" * 5_900_000}, "failed"),
        ({"sampling": Sampling(max_tokens=2**62)}, "failed"),
        ({"sampling": Sampling(temperature=1e-300)}, "unsupported_sampling"),
    ],
)
def test_a_group_whose_prompt_is_out_of_bounds_closes_at_once(fields: dict[str, Any], reason: str) -> None:
    prompt = a_prompt(**fields)
    for first in (prompt, a_rollout(1.0, prompt=prompt)):
        assembler = an_assembler()
        feed(assembler, first)
        assert dropped(assembler) == {prompt.group_id: reason}
        assert assembler.num_open == 0
