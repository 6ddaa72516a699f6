"""The stage loop on a real broker: a crash, a duplicate, a poison record, a rebalance, a stop."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Literal

import pytest
import redis
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from prometheus_client import REGISTRY

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.in_flight import InFlight
from rollstream.bus.message import OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.process.settings.base import KafkaSettings
from rollstream.process.stop import Stop
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import (
    BrokenWorldError,
    BrokerError,
    ConfigurationError,
    StuckRecordError,
    TooManyFailuresError,
)
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.rollout import RolloutGenerated, Status
from rollstream.schemas.topics import EVAL_PROMPTS, EVAL_ROLLOUTS, PROMPTS, ROLLOUTS
from rollstream.stage.dead_letters import DeadLetter
from rollstream.stage.loop import MAX_FAILURES_A_MINUTE, Stage
from rollstream.stage.replay import list_dead_letters, replayed
from tests.harness.builders import a_failure, a_generated, a_prompt
from tests.harness.echo_stage import build_stage, run_built
from tests.harness.processes import ROOT
from tests.harness.running import run_on
from tests.harness.stage_runs import Bus, process, run, running
from tests.harness.waits import until, wait_until


@pytest.fixture(params=["consumer"])
def protocol(request: pytest.FixtureRequest) -> Literal["consumer", "classic"]:
    return request.param


@pytest.fixture
def bus(kafka: str, topic_prefix: str, protocol: Literal["consumer", "classic"], tmp_path: Path) -> Iterator[Bus]:
    settings = KafkaSettings(bootstrap_servers=kafka, group_protocol=protocol)
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=2)
    publisher = Publisher(settings, client_id="test")
    yield Bus(settings, topic_prefix, publisher, tmp_path)
    publisher.close()


def test_every_prompt_of_both_topics_is_handled_and_committed(bus: Bus) -> None:
    async def scenario() -> None:
        bus.submit(range(20))
        bus.submit(range(20, 25), topic=EVAL_PROMPTS)
        async with running(bus.stage()) as task:
            await until(lambda: bus.committed() == 20 and len(bus.samples(EVAL_ROLLOUTS)) == 20, "all of it", task=task)

    run(scenario())
    assert bus.rows() == Counter(dict.fromkeys(range(20), 4))
    assert {message.key for message in bus.read(ROLLOUTS)} == {s.group_id.encode() for s in bus.samples()}


def test_what_ends_out_of_order_is_committed_up_to_the_lowest_unfinished(bus: Bus) -> None:
    released = asyncio.Event()

    async def first_waits(prompt: PromptSubmitted) -> AsyncGenerator[RolloutGenerated, None]:
        if prompt.source.row == 0:
            await released.wait()
        yield a_generated(prompt=prompt)

    async def scenario() -> None:
        codec: AvroCodec[PromptSubmitted] = AvroCodec(PROMPTS)
        for row in range(6):
            record = OutRecord(topic=PROMPTS.of(bus.run), key=b"one partition", value=codec.encode(a_prompt(row)))
            bus.publisher.publish_soon(record).result(10)
        async with running(bus.stage(first_waits)) as task:
            await until(lambda: bus.rows() == Counter(range(1, 6)), "the others to be handled", task=task)
            await asyncio.sleep(0.5)  # more than two commit intervals
            assert bus.committed() == 0
            released.set()
            await until(lambda: bus.committed() == 6, "all to be committed", task=task)

    run(scenario())
    assert bus.rows() == Counter(range(6))


def test_what_cannot_be_read_ends_in_dead_letters_and_the_partition_moves_on(bus: Bus) -> None:
    good = AvroCodec(PROMPTS).encode(a_prompt(1))
    unreadable = [b"garbage", good[:-7], b"\0\0\1\2\3" + good[5:], None, good + b"more"]

    for value in (*unreadable, good):
        bus.publisher.publish_soon(OutRecord(topic=PROMPTS.of(bus.run), key=b"k", value=value)).result(10)
    bus.handle(6)
    letters = list_dead_letters(run_on(bus.kafka, bus.run))
    assert {letter.value for letter in letters} == set(unreadable)
    assert {letter.identity.offset for letter in letters} == set(range(5))
    assert {(letter.error_class, letter.key, letter.attempts) for letter in letters} == {("DecodeError", b"k", 1)}
    assert {letter.schema_id for letter in letters} >= {None, 0x00010203}
    assert bus.rows() == Counter({1: 4})


def test_a_replayed_dead_letter_goes_through_once_and_is_listed_as_replayed(bus: Bus) -> None:
    async def cause(prompt: PromptSubmitted) -> AsyncGenerator[RolloutGenerated, None]:
        raise RuntimeError(f"the cause is there for {prompt.source.row}")
        yield a_generated(prompt=prompt)

    def replay(letter: DeadLetter) -> str | None:
        (outcome,) = replayed(bus.publisher, run_on(bus.kafka, bus.run), [letter])
        return outcome.refusal

    async def scenario() -> None:
        bus.submit([3])
        async with running(bus.stage(cause)) as task:
            await until(lambda: bus.committed() == 1, "the prompt to be committed", task=task)
        (letter,) = list_dead_letters(run_on(bus.kafka, bus.run))
        assert letter.error_message == "the cause is there for 3"
        assert await asyncio.to_thread(replay, letter) is None
        async with running(bus.stage()) as task:
            await until(lambda: bus.committed() >= 2, "the replayed prompt to be committed", task=task)

    run(scenario())
    (letter,) = list_dead_letters(run_on(bus.kafka, bus.run))
    assert letter.replayed_at is not None
    assert bus.rows() == Counter({3: 4})
    assert "was replayed at" in (replay(letter) or "")


def test_a_failing_handler_publishes_what_the_route_says_instead_of_a_dead_letter(bus: Bus) -> None:
    def all_failed(prompt: PromptSubmitted, error: Exception, _: InFlight) -> list[RolloutGenerated]:
        return [
            a_generated(index, prompt=prompt, status=Status.UNRESOLVED, failure=a_failure(str(error)))
            for index in range(prompt.group_size)
        ]

    bus.submit([1], "raise")
    bus.handle(1, bus.stage(on_failure=all_failed))
    unresolved = [sample for sample in bus.samples() if sample.status is Status.UNRESOLVED]
    assert [sample.sample_index for sample in unresolved] == list(range(4))
    assert {str(sample.failure) for sample in unresolved} == {"engine: as ordered"}
    assert not list_dead_letters(run_on(bus.kafka, bus.run))


def test_one_result_that_the_broker_refuses_ends_the_process_with_nothing_committed(bus: Bus) -> None:
    async def the_last_is_large(prompt: PromptSubmitted) -> AsyncGenerator[RolloutGenerated, None]:
        yield a_generated(0, prompt=prompt)
        yield a_generated(1, prompt=prompt.model_copy(update={"metadata": {"large": os.urandom(50_000).hex()}}))

    limit = ConfigEntry("max.message.bytes", "20000", incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ConfigResource.Type.TOPIC, ROLLOUTS.of(bus.run), incremental_configs=[limit])
    client = AdminClient(bus.kafka.client_config())
    client.incremental_alter_configs([topic])[topic].result(30)
    bus.submit([1])
    with pytest.raises(BrokerError, match=rf"delivery to {ROLLOUTS.of(bus.run)} failed: .*MSG_SIZE_TOO_LARGE"):
        run(run_built(bus.stage(the_last_is_large), Stop()))
    assert bus.committed() == 0


def test_handlers_that_keep_failing_end_the_process_while_garbage_does_not(bus: Bus) -> None:
    def failures() -> float | None:
        return REGISTRY.get_sample_value("rollstream_bus_handler_failures_total", {"topic": PROMPTS.of(bus.run)})

    bus.put(*[b"garbage"] * (MAX_FAILURES_A_MINUTE + 5))

    bus.handle(MAX_FAILURES_A_MINUTE + 5)
    assert failures() == 0
    bus.submit(range(MAX_FAILURES_A_MINUTE + 5), "raise")
    with pytest.raises(TooManyFailuresError, match="RuntimeError: as ordered"):
        run(run_built(bus.stage(), Stop()))
    assert (failures() or 0) > MAX_FAILURES_A_MINUTE


def test_a_stuck_record_ends_the_process_and_its_start_alone_stays_counted(bus: Bus, redis_url: str) -> None:
    async def scenario() -> None:
        bus.submit([1], "sleep 60")
        stage = bus.stage(redis_url=redis_url, bounds={"record_deadline_seconds": 6.0, "revoke_drain_seconds": 0.2})
        async with running(stage) as task:
            await until(lambda: bus.rows() == Counter([1]), "the first to begin", task=task)
            began = time.monotonic()
            await until(lambda: time.monotonic() - began > 1.5, "the second to be much younger", task=task)
            bus.submit([2], "sleep 60")
            await until(lambda: bus.rows() == Counter([1, 2]), "the second to begin", task=task)
            await until(lambda: False, "the stage to end", task=task)

    with pytest.raises(StuckRecordError, match="unfinished for more than 6"):
        run(scenario())
    assert bus.committed() == 0
    with redis.Redis.from_url(redis_url) as client:
        counts = sorted(int(client.get(key) or 0) for key in client.scan_iter(f"{{{bus.run}.generators}}:starts:*"))
    assert counts == [0, 1]


def test_a_handler_that_blocks_the_loop_for_good_ends_the_process(bus: Bus) -> None:
    bus.submit([1], "hang")
    with process(bus, record_deadline_seconds=1.0) as stage:
        assert stage.wait() == BrokenWorldError.exit_code


def test_a_handler_that_cancels_itself_breaks_the_world_instead_of_hanging(bus: Bus) -> None:
    async def cancelled(prompt: PromptSubmitted) -> AsyncGenerator[RolloutGenerated, None]:
        raise asyncio.CancelledError
        yield a_generated(prompt=prompt)

    bus.submit([1])
    with pytest.raises(BrokenWorldError, match="cancelled itself"):
        run(run_built(bus.stage(cancelled), Stop()))


def test_kill_9_in_mid_handling_loses_nothing(bus: Bus) -> None:
    bus.submit(range(5), "sleep 60")
    bus.submit(range(5, 8))
    with process(bus) as stage:
        wait_until(lambda: set(bus.rows()) == set(range(8)), "a sample of every prompt")
        stage.kill()

    async def quick(prompt: PromptSubmitted) -> AsyncGenerator[RolloutGenerated, None]:
        for index in range(prompt.group_size):
            yield a_generated(index, prompt=prompt)

    bus.handle(8, bus.stage(quick))
    assert all(count >= 4 for count in bus.rows().values())
    assert {s.rollout_id for s in bus.samples()} == {
        a_generated(i, prompt=a_prompt(r)).rollout_id for r in range(8) for i in range(4)
    }


def test_sigterm_lets_handlers_finish_within_the_bound_and_exits_0(bus: Bus) -> None:
    bus.submit([1], "sleep 1")
    bus.submit([2], "sleep 60")
    with process(bus) as stage:
        # A look may take longer than a sample.
        wait_until(lambda: bus.rows().keys() == {1, 2}, "a sample of both")
        assert stage.terminate() == 0, stage.said()
    assert bus.rows() == Counter({1: 4, 2: 1})
    assert bus.committed() <= 1


@pytest.mark.parametrize("protocol", ["consumer", "classic"], indirect=True)
def test_a_second_member_takes_over_partitions_and_nothing_is_lost(bus: Bus) -> None:
    num_prompts = 30
    shared = asyncio.Event()

    async def late_ones_wait(prompt: PromptSubmitted) -> AsyncGenerator[RolloutGenerated, None]:
        if prompt.source.row % num_prompts > 5:
            await shared.wait()
        yield a_generated(prompt=prompt)

    async def scenario() -> None:
        bus.submit(range(num_prompts))
        bus.submit(range(num_prompts, 2 * num_prompts), topic=EVAL_PROMPTS)
        bounds = {"max_in_flight": 2 * num_prompts, "revoke_drain_seconds": 0.2}
        async with running(bus.stage(late_ones_wait, bounds=bounds)) as first:
            await until(lambda: len(bus.rows()) > 3, "the first member's rows", task=first)
            joining = bus.stage(late_ones_wait, bounds=bounds)
            async with running(joining) as second:
                await until(lambda: joining.consumer.num_in_flight > 0, "the joiner to have work", task=second)
                shared.set()
                await until(lambda: bus.committed() == num_prompts, "every prompt to be committed", task=second)
                await until(lambda: bus.committed(EVAL_PROMPTS) == num_prompts, "every evaluation", task=second)
            assert not first.done()

    run(scenario())
    assert set(bus.rows()) == set(range(num_prompts))
    assert set(bus.rows(EVAL_ROLLOUTS)) == set(range(num_prompts, 2 * num_prompts))


def test_what_a_revoked_handler_would_yield_later_is_not_published(bus: Bus) -> None:
    released = asyncio.Event()

    async def held(prompt: PromptSubmitted) -> AsyncGenerator[RolloutGenerated, None]:
        yield a_generated(0, prompt=prompt)
        await released.wait()
        yield a_generated(1, prompt=prompt)

    async def scenario() -> None:
        bounds = {"max_in_flight": 20, "revoke_drain_seconds": 0.2}
        bus.submit(range(20))
        async with running(bus.stage(held, bounds=bounds)) as first:
            await until(lambda: len(bus.rows()) == 20, "a first sample of each", task=first)
            heir = bus.stage(held, bounds=bounds)
            async with running(heir) as second:
                await until(lambda: heir.consumer.num_in_flight > 0, "the heir to have work", task=second)
                moved = heir.consumer.num_in_flight
                released.set()
                await until(lambda: bus.committed() == 20, "every prompt to be committed", task=second)
        # Of a moved prompt, only the first sample came twice.
        assert Counter(sample.sample_index for sample in bus.samples()) == {0: 20 + moved, 1: 20}

    run(scenario())


def test_a_pause_takes_nothing_and_a_resume_goes_on(bus: Bus) -> None:
    async def scenario() -> None:
        bus.submit(range(4))
        stage = bus.stage()
        stage.consumer.pause_for("weights too old")
        async with running(stage) as task:
            await until(lambda: stage.health.readiness()["assignment"].is_ok, "an assignment", task=task)
            await asyncio.sleep(0.5)  # a record would have come long ago
            assert bus.rows() == Counter()
            stage.consumer.resume_for("weights too old")
            await until(lambda: len(bus.rows()) == 4, "every prompt to be handled", task=task)

    run(scenario())


def test_records_in_flight_stay_within_the_weight_bound(bus: Bus) -> None:
    seen: list[int] = []
    stage: Stage

    async def measured(prompt: PromptSubmitted) -> AsyncGenerator[RolloutGenerated, None]:
        seen.append(stage.consumer.num_in_flight)
        await asyncio.sleep(0.02)
        yield a_generated(prompt=prompt)

    async def scenario() -> None:
        nonlocal stage
        stage = bus.stage(
            measured, bounds={"max_weight": 12 * 4 * 3}, weight=lambda p: p.sampling.max_tokens * p.group_size
        )
        bus.submit(range(30))
        async with running(stage) as task:
            await until(lambda: len(bus.rows()) == 30, "every prompt to be handled", task=task)

    run(scenario())
    assert max(seen) == 3


DIE_ON_THREE_STARTS = """
import asyncio, os, sys
from rollstream.bus.message import KafkaMessage
from rollstream.stage.starts import PoisonGuard

async def die(redis_url, run):
    message = KafkaMessage(topic=f"{run}.prompts", partition=0, offset=0, key=None, value=None)
    for _ in range(3):
        await PoisonGuard(redis_url, f"{run}.generators").start(message).__aenter__()
    os.kill(os.getpid(), 9)

asyncio.run(die(*sys.argv[1:]))
"""


def test_a_record_that_kills_the_process_each_time_is_given_up_after_five_starts(bus: Bus, redis_url: str) -> None:
    codec: AvroCodec[PromptSubmitted] = AvroCodec(PROMPTS)
    deadly = OutRecord(topic=PROMPTS.of(bus.run), key=b"a", value=codec.encode(a_prompt(1, metadata={"order": "die"})))
    assert bus.publisher.publish_soon(deadly).result(10).partition == 0

    died = subprocess.run([sys.executable, "-c", DIE_ON_THREE_STARTS, redis_url, bus.run], cwd=ROOT, check=False)
    assert died.returncode == -signal.SIGKILL
    for _ in range(2):
        with process(bus, redis_url=redis_url) as stage:
            assert stage.wait() == -signal.SIGKILL
    bus.submit([2])
    with process(bus, redis_url=redis_url) as stage:
        wait_until(lambda: bus.committed() == 2, "both to be committed")
    (letter,) = list_dead_letters(run_on(bus.kafka, bus.run))
    assert (letter.error_class, letter.attempts) == ("PoisonError", 6)
    assert "died on this record 5 times" in letter.error_message
    assert bus.rows()[2] == 4


def test_missing_topics_are_named(kafka: str, topic_prefix: str) -> None:
    stage = build_stage(KafkaSettings(bootstrap_servers=kafka), topic_prefix)
    with pytest.raises(ConfigurationError, match=f"{PROMPTS.of(topic_prefix)}.*`rollstream topics create`"):
        run(run_built(stage, Stop()))
