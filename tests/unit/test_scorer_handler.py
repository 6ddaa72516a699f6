"""What the scorer makes of a rollout, without Kafka; how its Faust application is set up, and how its buffer fills."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from mode.utils.queues import FlowControlEvent

from rollstream.bus.message import KafkaMessage
from rollstream.environments.pool.verdicts import ScoringSample, Verdict
from rollstream.environments.rubric import Rubric, WeightedReward
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import RecordTooLargeError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.rollout import Status
from rollstream.schemas.topics import SCORED
from rollstream.scorer.app import MAX_BUFFER_BYTES, BoundedBuffer, StreamSettings, build_app
from rollstream.scorer.handler import ScorerIdentity, annotated, sample_of, without_tokens
from rollstream.scorer.settings import ScorerSettings
from tests.harness.builders import RUN, a_failure, a_generated, a_prompt, a_rollout, a_turn
from tests.harness.cycles import a_cycled
from tests.harness.waits import in_a_loop

SCORER = ScorerIdentity(scorer_id="scorer-1", version="0.1.0")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_a_rubric_sees_the_texts_of_all_turns_and_never_the_tokens() -> None:
    prompt = a_prompt(metadata={"difficulty": "5"})
    asked = sample_of(a_generated(prompt=prompt, turns=(a_turn(text="first"), a_turn(text="last"))))
    assert isinstance(asked, ScoringSample)
    assert asked.environment == "sort_digits"
    assert (asked.answer.completion, asked.answer.assistant_messages) == ("last", ("first", "last"))
    assert (asked.answer.messages, asked.answer.reference_answer) == (prompt.messages, "01259")
    assert asked.answer.metadata == {"difficulty": "5"}


@pytest.mark.parametrize("status", [Status.FAILED, Status.UNRESOLVED])
def test_a_rollout_that_did_not_complete_keeps_its_status_and_failure_and_gets_no_reward(status: Status) -> None:
    why = a_failure("why")
    rollout = a_generated(status=status, failure=why)
    verdict = sample_of(rollout)
    assert verdict == Verdict(status=status, failure=why)
    scoring = annotated(rollout, verdict, SCORER, NOON).scoring
    assert (scoring.status, scoring.failure, scoring.reward) == (status, why, None)
    unknown = sample_of(a_generated(prompt=a_prompt(environment="")))
    assert isinstance(unknown, Verdict)
    assert (unknown.status, unknown.failure and unknown.failure.code) == (Status.FAILED, FailureCode.NO_ENVIRONMENT)


def test_a_verdict_is_written_beside_the_untouched_rollout() -> None:
    rollout = a_generated()
    verdict = Verdict(status=Status.COMPLETED, reward=1.3, components={"exact": 1.0, "format": 1.0})
    scored = annotated(rollout, verdict, SCORER, NOON)
    assert scored.rollout == rollout
    assert (scored.scoring.reward, scored.scoring.components) == (1.3, {"exact": 1.0, "format": 1.0})
    assert (scored.scoring.scorer, scored.scoring.scorer_version) == ("scorer-1", "0.1.0")


def test_an_error_that_no_text_can_hold_is_still_written() -> None:
    verdict = Verdict(status=Status.UNRESOLVED, failure=a_failure("lone \udc80 surrogate " + "x" * 10_000))
    scored = annotated(a_generated(), verdict, SCORER, NOON)
    codec = AvroCodec(SCORED)
    assert codec.decode(codec.encode(scored)).scoring.failure == scored.scoring.failure


def test_a_result_over_the_size_limit_fails_without_its_tokens() -> None:
    small = without_tokens(a_rollout(1.0), RecordTooLargeError("8 MiB"))
    assert (small.rollout.turns, small.rollout.status) == ((), Status.FAILED)
    assert (small.scoring.reward, small.scoring.status) == (None, Status.FAILED)
    assert str(small.scoring.failure) == "too_large: 8 MiB"
    codec = AvroCodec(SCORED)
    assert codec.decode(codec.encode(small)) == small


@pytest.mark.parametrize(
    "deadlines",
    [
        {"batch_deadline_seconds": 20.0, "session_timeout_seconds": 20.0},
        {"sample_deadline_seconds": 16.0},
        {"load_deadline_seconds": 16.0},
    ],
)
def test_deadlines_that_do_not_nest_are_refused(deadlines: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="_seconds"):
        ScorerSettings(run="demo", **deadlines)  # type: ignore[arg-type]


async def handle(messages: Sequence[KafkaMessage]) -> None:
    raise AssertionError(f"nothing is read here, got {messages}")


def an_app() -> Any:
    """Within an event loop."""
    stream = StreamSettings(
        group="demo.scorers",
        topics=["demo.rollouts"],
        watch=asyncio.get_running_loop().create_future(),
        batch_size=128,
        session_timeout_seconds=20.0,
    )
    return build_app(KafkaSettings(), stream, handle, lambda count: None)


def test_the_last_commit_is_made_also_when_one_is_under_way_that_began_before() -> None:
    """Faust only waits for that one: what was scored meanwhile would be scored again."""

    async def end() -> list[set[str]]:
        app = an_app()
        consumer = app._new_consumer()
        consumer._thread.thread_loop.close()  # of a thread that is never started
        done, began, go_on, committed = {"the first batch"}, asyncio.Event(), asyncio.Event(), []

        async def commit_what_is_done(*args: object, **options: object) -> bool:
            found = set(done)
            began.set()
            await go_on.wait()
            committed.append(found)
            return True

        consumer.force_commit = commit_what_is_done
        under_way = asyncio.create_task(consumer.commit())
        await began.wait()
        done.add("the last batch")
        last = asyncio.create_task(consumer.commit_and_end_transactions())
        go_on.set()
        await asyncio.gather(under_way, last)
        return committed

    assert asyncio.run(end()) == [{"the first batch"}, {"the first batch", "the last batch"}]


@in_a_loop
async def test_a_new_leader_is_known_within_seconds_and_the_buffer_is_bounded_by_bytes() -> None:
    app = an_app()
    assert app.conf.consumer_metadata_max_age_ms == 5000
    assert isinstance(app.FlowControlQueue(maxsize=10), BoundedBuffer)


MEGABYTE = 2**20


def an_event(num_bytes: int) -> Any:
    return SimpleNamespace(message=SimpleNamespace(value=bytes(num_bytes)))


def a_buffer() -> BoundedBuffer:
    """A buffer of the running event loop."""
    return BoundedBuffer(maxsize=2048, flow_control=FlowControlEvent())


def fill(buffer: BoundedBuffer, num_bytes: int) -> tuple[int, int]:
    """Put events in as Faust does: how many before it stops fetching, and how many before the buffer is full."""
    stopped_after: list[int] = []
    count = 0
    while not buffer.full():
        buffer.put_nowait_enhanced(
            an_event(num_bytes),
            on_pressure_high=lambda: stopped_after.append(count),  # noqa: B023
            on_pressure_drop=lambda: None,
        )
        count += 1
    return stopped_after[0], count


@in_a_loop
async def test_large_records_fill_it_by_their_bytes_and_small_ones_by_their_number() -> None:
    stopped_after, count = fill(a_buffer(), 7 * MEGABYTE)
    assert stopped_after < count
    assert MAX_BUFFER_BYTES <= count * 7 * MEGABYTE < MAX_BUFFER_BYTES + 7 * MEGABYTE
    assert fill(a_buffer(), 1000) == (1638, 2048)


@in_a_loop
async def test_it_has_room_again_when_records_are_taken_or_cleared() -> None:
    buffer = a_buffer()
    fill(buffer, 7 * MEGABYTE)
    for _ in range(3):
        await buffer.get()
    assert not buffer.full()
    fill(buffer, 7 * MEGABYTE)
    buffer.clear()
    assert buffer.qsize() == 0
    assert buffer.empty()


def test_cycles_are_scored_by_their_last_reasoning_and_each_reasoning_by_itself() -> None:
    scored = a_cycled(5, RUN, num_cycles=2)
    asked = sample_of(scored.rollout)
    assert isinstance(asked, ScoringSample)
    assert (asked.answer.completion, asked.answer.assistant_messages) == ("r2", ("r2",))
    assert [turn.text for turn in asked.answer.turns] == ["r1", "s1", "r2", "s2"]
    assert scored.rollout.answer is scored.rollout.turns[2]
    assert Rubric(WeightedReward("any", lambda _: 1.0)).scored_turn_types == {"reasoning"}
