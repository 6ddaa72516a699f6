"""A generator is killed in the middle of samples of several turns: another goes on with them, and leaves nothing."""

import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from redis import Redis

from rollstream.bus.message import OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.ids import rollout_id
from rollstream.schemas.progress import ProgressKind
from rollstream.schemas.prompt import AgentChoice, PromptSubmitted, Sampling
from rollstream.schemas.rollout import RolloutGenerated, Status, Turn
from rollstream.schemas.topics import PROGRESS, ROLLOUTS
from rollstream.stage.starts import GIVEN_UP_AFTER
from tests.harness.builders import a_prompt, a_turn, a_turn_progress
from tests.harness.resources_server import ADD, Resources, resources
from tests.harness.running import Run, a_run
from tests.harness.waits import wait_until
from tests.hostile.corpus import FAMILIES, of_family
from tests.hostile.hostile import Context

pytestmark = pytest.mark.usefixtures("forks")

GROUP_SIZE = 2
NUM_TURNS = 5
SHAPE = np.zeros(1, dtype=np.float32)


@pytest.fixture
def server() -> Iterator[Resources]:
    with resources() as server:
        yield server


@pytest.fixture
def run(kafka: str, topic_prefix: str, tmp_path: Path, server: Resources) -> Iterator[Run]:
    with a_run(kafka, topic_prefix, tmp_path) as run:
        run.tables["agents.adder"] = {"path": "tests.harness.tool_agents.Adder"}
        run.tables["tools.count"] = {"kind": "http", "url": server.url, "reopens": True, "schemas": [ADD]}
        run.tables["generator.engine"] = {"kind": "scripted", "model_path": tmp_path}
        run.publish_weights(0)
        yield run


def submit(run: Run) -> PromptSubmitted:
    agent = AgentChoice(name="adder", options={"turns": str(NUM_TURNS - 1)})
    prompt = a_prompt(run=run.name, group_size=GROUP_SIZE, agent=agent, sampling=Sampling(max_tokens=16, seed=1))
    run.submit(prompt)
    return prompt


def turns_kept(run: Run) -> dict[tuple[str, int], Turn]:
    """The turns on `progress`, by sample and number, as they were kept last."""
    return {(one.rollout_id, one.number): one.turn for one in run.records(PROGRESS) if one.turn is not None}


def kill_in_the_third_call(run: Run, server: Resources) -> None:
    """A generator that is killed while the third call of each sample hangs, which arrived."""
    server.faults["add"] = [*["ok"] * 2 * GROUP_SIZE, "hang"]
    submit(run)
    killed = run.start("generator")
    wait_until(lambda: server.count("add") == 3 * GROUP_SIZE, lambda: f"third calls; {run.said()[-500:]}", 60)
    wait_until(lambda: len(turns_kept(run)) == 3 * GROUP_SIZE, lambda: f"their turns; {run.said()[-500:]}", 60)
    killed.signal(signal.SIGKILL)
    killed.wait()
    server.faults.clear()


def published(run: Run, num_before: int = 0) -> list[RolloutGenerated]:
    """The samples that the next generator publishes, when nothing is kept of them any more."""
    run.start("generator")
    found = wait_until(
        lambda: records[num_before:] if len(records := run.records(ROLLOUTS)) == num_before + GROUP_SIZE else None,
        lambda: f"the samples; {run.said()[-500:]}",
        60,
    )
    newest: dict[bytes | None, bytes | None] = {}

    def is_deleted() -> bool:
        newest.update({message.key: message.value for message in run.messages(PROGRESS.name)})
        return bool(newest) and not any(newest.values())

    wait_until(is_deleted, lambda: f"nothing to be kept of them: {newest}", 30)
    return found


def test_another_generator_goes_on_with_turns_calls_and_sessions(run: Run, server: Resources) -> None:
    run.tables["tools.count"] = {**run.tables["tools.count"], "replayable": ["add"]}
    kill_in_the_third_call(run, server)
    kept = turns_kept(run)
    for sample in published(run):
        assert (sample.status, len(sample.turns)) == (Status.COMPLETED, NUM_TURNS)
        for number in range(3):
            before = kept[sample.rollout_id, number]
            assert np.array_equal(sample.turns[number].token_ids, before.token_ids)
            assert sample.turns[number].latency_seconds == before.latency_seconds, "it was sampled again"
        said = [answer.content for turn in sample.turns for answer in turn.tool_answers]
        assert said == [f'{{"total": {number}}}' for number in range(1, NUM_TURNS)]
    # The call that hung arrived, and was made again: it is declared replayable.
    assert server.count("add") == (NUM_TURNS - 1 + 1) * GROUP_SIZE
    assert set(server.attempts.values()) == {1}
    assert server.totals == {}, "a session is open"


def test_a_call_that_may_have_arrived_is_not_made_twice(run: Run, server: Resources) -> None:
    kill_in_the_third_call(run, server)
    for sample in published(run):
        assert (sample.status, len(sample.turns)) == (Status.UNRESOLVED, 3)
        assert sample.failure is not None
        assert sample.failure.code is FailureCode.TOOL
    assert server.count("add") == 3 * GROUP_SIZE
    assert server.totals == {}, "a session is open"


def test_a_prompt_that_is_given_up_leaves_no_session_and_no_key(run: Run, server: Resources, redis_url: str) -> None:
    run.redis_url = redis_url
    kill_in_the_third_call(run, server)
    assert len(server.totals) == GROUP_SIZE
    with Redis.from_url(redis_url) as redis:
        (key,) = redis.keys(f"*{run.name}*starts*")
        redis.set(key, GIVEN_UP_AFTER)
    for sample in published(run):
        assert (sample.status, sample.failure and sample.failure.code) == (Status.UNRESOLVED, FailureCode.GIVEN_UP)
    assert server.count("add") == 3 * GROUP_SIZE
    assert server.totals == {}, "a session is open"


def test_samples_that_were_published_before_the_kill_are_given_back_whole(run: Run, server: Resources) -> None:
    submit(run)
    killed = run.start("generator", ROLLSTREAM_CRASH_AT="effects_confirmed")
    assert killed.wait() != 0
    before = {one.rollout_id: one for one in run.records(ROLLOUTS)}
    num_calls = server.count("add")
    assert num_calls == (NUM_TURNS - 1) * GROUP_SIZE
    for sample in published(run, num_before=GROUP_SIZE):
        first = before[sample.rollout_id]
        assert sample.attempt_id != first.attempt_id
        assert sample.turns == first.turns
        assert sample.observations == first.observations
    assert server.count("add") == num_calls, "a tool was called again"
    assert server.totals == {}, "a session is open"


def test_what_strangers_write_on_progress_makes_no_sample_another_one(run: Run, server: Resources) -> None:
    context = Context(run=run.name, outside=run.directory)
    corpus = [one for name in FAMILIES if name != "large" for one in of_family(context, name, (PROGRESS.name,))]
    assert len(corpus) > 100
    run.publish(PROGRESS.name, [(f"stranger-{number}", one.value) for number, one in enumerate(corpus)])
    prompt = submit(run)
    codec, other = AvroCodec(PROGRESS), a_turn(text="from elsewhere")
    forged = [
        a_turn_progress(rollout_id=rollout_id(prompt.group_id, index), **fields)
        for index in range(GROUP_SIZE)
        for fields in (
            {"turn": other},
            {"number": 10**9, "turn": other},
            {"kind": ProgressKind.PIECE, "turn": other, "attempt_id": "b" * 32},
            {"kind": ProgressKind.ENDED, "number": 10**12, "turn": None},
            {"kind": ProgressKind.ENDED, "number": 0, "turn": None, "observations": {"verify": '{"reward": 1}'}},
            {"kind": ProgressKind.SESSION, "tools": "/etc/passwd", "session_id": "x", "session_attempt": 2**53},
        )
    ]
    for partition in range(2):
        with Publisher(run.kafka, client_id="stranger") as publisher:
            for one in forged:
                value = codec.encode(one)
                topic = PROGRESS.of(run.name)
                publisher.publish_soon(OutRecord(topic=topic, key=one.key.encode(), value=value, partition=partition))
    run.start("generator")
    found = wait_until(
        lambda: records if len(records := run.records(ROLLOUTS)) == GROUP_SIZE else None,
        lambda: f"the samples; {run.said()[-500:]}",
        60,
    )
    for sample in found:
        assert (sample.status, len(sample.turns)) == (Status.COMPLETED, NUM_TURNS), sample.failure
        assert "from elsewhere" not in {turn.text for turn in sample.turns}
    assert set(server.attempts.values()) <= {0, 1}
    assert server.totals == {}, "a session is open"
