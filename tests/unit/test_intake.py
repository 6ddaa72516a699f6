"""Which groups make the next step, and when partitions and resting records wait."""

import asyncio
import threading
from dataclasses import replace

from rollstream.bus.backlog import FULL_SECONDS, HIGH, LOW, Backlog
from rollstream.bus.group_config import ConsumerSettings
from rollstream.bus.in_flight import InFlight, Room
from rollstream.bus.message import KafkaMessage
from rollstream.bus.offsets import Assignment
from rollstream.schemas.scored import RolloutScored
from rollstream.trainer.intake.admission import AdmissionRules, narrow_lag_bound
from rollstream.trainer.intake.aging import Aging, ReadUpTo, Upstream
from rollstream.trainer.intake.assembler import Assembler
from rollstream.trainer.intake.groups import LogPlace
from rollstream.trainer.intake.intake import Intake
from rollstream.trainer.since_step import SampleSums
from tests.harness.builders import a_prompt, a_rollout, a_turn
from tests.harness.waits import DEADLINE_SECONDS, in_a_loop

GROUP_SIZE = 2
RULES = AdmissionRules(max_policy_lag=2)
LAGS = {7: 0, 6: 1, 5: 2, 4: 3}


def a_sample(row: int, index: int, version: int) -> RolloutScored:
    prompt = a_prompt(row, group_size=GROUP_SIZE)
    return a_rollout(float(index), index, prompt=prompt, turns=(a_turn(spans=[(version, 0, 6)]),))


def an_intake(*samples: RolloutScored, rules: AdmissionRules = RULES) -> Intake:
    """It has taken in the samples in this order."""
    intake = Intake(Assembler(closed=(), offsets={}, incomplete_bytes=10**9), Aging(60.0), rules, expired_before={})
    for offset, sample in enumerate(samples):
        intake.assembler.add_sample(sample, LogPlace(("demo.scored", 0), offset), 10)
    intake.settle(LAGS.get)
    return intake


def test_a_group_that_lacks_samples_is_late_if_one_more_step_makes_it_too_old() -> None:
    first, last = a_sample(0, 0, version=5), a_sample(0, 1, version=5)
    assert an_intake(first).has_late(LAGS.get)
    assert not an_intake(first, last).has_late(LAGS.get), "it is complete"
    assert not an_intake(first, rules=replace(RULES, lag_scope="token")).has_late(LAGS.get), "old tokens are masked"
    for version in (6, 4):  # younger, or too old already
        assert not an_intake(a_sample(0, 0, version=version)).has_late(LAGS.get)


def a_group_without_samples(*words: Upstream) -> Intake:
    """Its prompt is `prompts`/3 @ 40; the broker gave these answers."""
    intake = an_intake()
    intake.assembler.add_prompt(a_prompt(0, group_size=GROUP_SIZE), LogPlace(("demo.prompts", 3), 40))
    for word in words:
        intake.give_up_lost(word, ReadUpTo())
    return intake


def test_a_group_of_which_no_sample_came_is_late_by_what_the_generators_say() -> None:
    assert not a_group_without_samples().has_late(LAGS.get)
    assert not a_group_without_samples(Upstream(begun={3: {41: 5}, 2: {40: 5}})).has_late(LAGS.get)
    assert not a_group_without_samples(Upstream(begun={3: {40: 6}})).has_late(LAGS.get)
    assert a_group_without_samples(Upstream(begun={3: {40: 5}})).has_late(LAGS.get)
    assert not a_group_without_samples(Upstream(begun={3: {40: 4}})).has_late(LAGS.get), "it is too old already"
    assert not a_group_without_samples(Upstream(begun={3: {40: 10**17}})).has_late(LAGS.get), "nobody published it"


def test_what_generators_said_of_a_group_counts_until_its_samples_came_or_another_one_begins_it_anew() -> None:
    begun, done = Upstream(begun={3: {40: 5}}), Upstream(prompts_done={3: 41})
    assert a_group_without_samples(begun, done).has_late(LAGS.get), "its samples are on their way"
    assert not a_group_without_samples(begun, Upstream(begun={3: {40: 7}})).has_late(LAGS.get)
    intake = a_group_without_samples(begun)
    for index in range(GROUP_SIZE):
        intake.assembler.add_sample(a_sample(0, index, version=5), LogPlace(("demo.scored", 0), index), 10)
    assert not intake.has_late(LAGS.get)


def test_a_step_takes_the_oldest_versions_first_and_then_the_order_of_arrival() -> None:
    groups = {row: [a_sample(row, index, version) for index in (0, 1)] for row, version in enumerate((7, 6, 5, 6))}
    intake = an_intake(*(sample for group in groups.values() for sample in group))
    batch = intake.batch(3, LAGS.get)
    assert batch is not None
    ids = [admitted.group.group_id for admitted in batch]
    assert ids == [groups[row][0].rollout.group_id for row in (2, 1, 3)]


def test_a_lag_bound_that_the_longest_rollouts_of_a_run_outlast_is_warned_of() -> None:
    metrics = {"rollout_seconds_p99": 10.0, "step_seconds": 2.0}
    # One step after a pause must not decide.
    steps = [metrics, metrics, {**metrics, "step_seconds": 3600.0}]
    assert narrow_lag_bound(steps, 5) is None
    assert "max_policy_lag 4 is below 5.0" in (narrow_lag_bound(steps, 4) or "")
    assert narrow_lag_bound([], 0) is narrow_lag_bound([{}], 0) is None


def test_a_step_reports_how_long_its_rollouts_took() -> None:
    sums = SampleSums()
    sums.add([a_rollout(), a_rollout(sample_index=1)])
    assert sums.metrics()["rollout_seconds_p99"] == 1.0


LATER = FULL_SECONDS + 0.1


def filled(count: int, partition: int = 0) -> Backlog:
    backlog = Backlog()
    for offset in range(count):
        backlog.put(KafkaMessage(topic="demo.prompts", partition=partition, offset=offset, key=None, value=b""))
    return backlog


def test_a_backlog_that_is_full_for_a_moment_pauses_nothing_and_is_not_filled_further() -> None:
    backlog = filled(HIGH)
    assert not backlog.must_pause(1.0)
    assert not backlog.has_room(0.0)
    backlog.take()
    assert not backlog.must_pause(1.0 + LATER)
    assert backlog.has_room(0.0)
    assert not filled(HIGH - 1).must_pause(1.0)


def test_a_pause_lasts_until_the_backlog_is_low() -> None:
    backlog = filled(HIGH)
    assert not backlog.must_pause(1.0)
    assert backlog.must_pause(1.0 + LATER)
    backlog.is_paused = True
    assert backlog.has_room(0.0), "what was asked for before may still come"
    while len(backlog) > LOW:
        backlog.take()
        assert backlog.must_pause(9.0)
    backlog.take()
    assert not backlog.must_pause(9.0)


def test_what_was_polled_of_a_partition_that_is_gone_is_forgotten() -> None:
    backlog = filled(3, partition=1)
    backlog.put(KafkaMessage(topic="demo.prompts", partition=0, offset=7, key=None, value=b""))
    backlog.forget([("demo.prompts", 1)])
    assert [backlog.take().offset for _ in range(len(backlog))] == [7]


PARTITION = ("eval-prompts", 0)


@in_a_loop
async def test_a_record_that_rests_holds_no_room_and_gets_it_back_before_others() -> None:
    assignment, room = empty_room()
    rested, arrival = taken(assignment, room, 0), asyncio.Event()
    assert not room.for_another()
    resting = asyncio.create_task(rested.rest(arrival.wait()))
    await asyncio.sleep(0)
    assert (assignment.weight, room.for_another()) == (0, True)
    other = taken(assignment, room, 1)
    arrival.set()
    await asyncio.sleep(0.01)
    assert not resting.done(), "another one has the room"
    other.tracker.finish(1)
    assert not room.for_another(), "the one that rested comes first"
    room.resume_rested()
    await asyncio.wait_for(resting, DEADLINE_SECONDS)
    assert assignment.weight == 8


@in_a_loop
async def test_a_record_that_rests_on_a_partition_that_was_lost_holds_nothing_afterwards() -> None:
    assignment, room = empty_room()
    rested, arrival = taken(assignment, room, 0), asyncio.Event()
    resting = asyncio.create_task(rested.rest(arrival.wait()))
    await asyncio.sleep(0)
    assignment.remove([PARTITION])
    arrival.set()
    await asyncio.wait_for(resting, DEADLINE_SECONDS)
    assert (assignment.weight, assignment.num_unfinished) == (0, 0)


@in_a_loop
async def test_one_whose_wait_was_in_vain_needs_no_room() -> None:
    async def nothing() -> bool:
        return False

    assignment, room = empty_room()
    rested = taken(assignment, room, 0)
    taken(assignment, room, 1)
    await asyncio.wait_for(rested.rest(nothing()), DEADLINE_SECONDS)
    assert assignment.weight == 8


@in_a_loop
async def test_one_that_is_cancelled_while_it_wants_its_room_back_keeps_nobody_away() -> None:
    assignment, room = empty_room()
    room.take = lambda: None
    rested, arrival = taken(assignment, room, 0), asyncio.Event()
    arrival.set()
    resting = asyncio.create_task(rested.rest(arrival.wait()))
    await asyncio.sleep(0.01)
    resting.cancel()
    await asyncio.wait([resting])
    room.resume_rested()
    assert (assignment.weight, room.for_another()) == (0, True)


def empty_room() -> tuple[Assignment, Room]:
    assignment = Assignment()
    assignment.add([PARTITION])
    room = Room(assignment, threading.Lock(), ConsumerSettings(max_weight=8), lambda: None)
    room.take = room.resume_rested
    return assignment, room


def taken(assignment: Assignment, room: Room, offset: int) -> InFlight:
    tracker = assignment.start(PARTITION, offset, weight=8)
    assert tracker is not None
    return InFlight(KafkaMessage(*PARTITION, offset, None, b""), tracker, room)
