"""The producer of states on a real broker: each state once, under its credit, across kills and repeats."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollstream.bus.reader import TopicReader
from rollstream.producers.settings import ProducerSettings
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.prompt import AgentChoice
from rollstream.schemas.rollout import Status
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import PRODUCERS, PROMPTS, SERVE_SCORED
from tests.harness.builders import a_rollout, a_served
from tests.harness.cycles import a_cycled
from tests.harness.forking import start_command
from tests.harness.producer_runs import Run, producing
from tests.harness.waits import wait_until

STATES = 4
"""Of a rollout of three cycles."""


@pytest.fixture
def run(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[Run]:
    made = Run(kafka, topic_prefix, tmp_path)
    yield made
    made.publisher.close()
    made.reader.close()


def settings(run: Run, **fields: Any) -> ProducerSettings:
    return run.settings(source="states", path=None, states={"per_rollout": 65}, **fields)


def put(run: Run, *scored: RolloutScored) -> None:
    for one in scored:
        run.put(SERVE_SCORED.of(run.name), AvroCodec(SERVE_SCORED).encode(one))


def places(run: Run) -> list[str]:
    return [prompt.metadata["state_of"] for prompt in run.prompts]


def expected(*scored: RolloutScored) -> set[str]:
    return {f"{one.rollout.rollout_id}/{turn}" for one in scored for turn in (0, 2, 4, 6)}


def test_each_state_of_completed_cycles_is_posed_once_and_nothing_else(run: Run) -> None:
    cycled = [a_cycled(row, run.name) for row in range(3)]
    consented, refused = (
        a_cycled(row, run.name, served=a_served(may_train=is_free)) for row, is_free in ((10, True), (11, False))
    )
    failed = a_cycled(12, run.name, status=Status.UNRESOLVED)
    unusable = a_cycled(13, run.name, options={"use_think_tags": "perhaps"})
    put(run, *cycled, consented, refused, failed, unusable, a_rollout(), cycled[0])
    run.put(SERVE_SCORED.of(run.name), b"garbage")
    with producing(settings(run, share=100, groups_per_step=100)):
        run.wait_for(4 * STATES)
    assert set(places(run)) == expected(*cycled, consented)
    assert all(prompt.agent == AgentChoice() for prompt in run.prompts)


def test_states_wait_for_credit_and_a_later_process_goes_on_where_this_one_was(run: Run) -> None:
    first, second = a_cycled(1, run.name), a_cycled(2, run.name)
    put(run, first)
    with producing(settings(run, share=3)):
        run.wait_for(3)
        run.step(*run.groups()[:2])
        run.wait_for(STATES)
    put(run, second, first)
    with producing(settings(run, share=3)):
        run.wait_for(STATES + 1)
        run.step(*run.groups()[2:])
        run.wait_for(2 * STATES)
    assert sorted(places(run)) == sorted(expected(first, second))
    assert sorted(prompt.sequence for prompt in run.prompts) == list(range(2 * STATES))


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_a_kill_after_states_were_submitted_submits_none_of_them_twice(run: Run, passes: int) -> None:
    cycled = [a_cycled(row, run.name) for row in range(6)]
    put(run, *cycled)
    closed: list[str] = []

    def close_all() -> None:
        run.poll()
        if fresh := [group for group in run.groups() if group not in closed]:
            run.step(*fresh)
            closed.extend(fresh)

    config = written(run, share=2)
    crash_at = {"ROLLSTREAM_CRASH_AT": f"states_submitted:{passes}"}
    dying = start_command("producer", "--config", str(config), log=config.with_name("producer.log"), env=crash_at)
    wait_until(lambda: close_all() or dying.has_ended, dying.said)
    assert dying.wait() == -signal.SIGKILL
    with producing(settings(run, share=2)):
        wait_until(lambda: close_all() or len(run.prompts) >= 6 * STATES, "all states")
        run.wait_for(6 * STATES)
    assert sorted(places(run)) == sorted(expected(*cycled))


def written(run: Run, **fields: Any) -> Path:
    """A run's file with the producer of states."""
    path = run.directory / "run.toml"
    values = {"source": "states", "group_size": 2, "share": fields["share"]}
    lines = [f'run = "{run.name}"', "[kafka]", f'bootstrap_servers = "{run.kafka.bootstrap_servers}"', "[producer]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    path.write_text("\n".join([*lines, "[producer.states]", "per_rollout = 65"]) + "\n")
    return path


def test_a_mark_that_anybody_wrote_is_no_place_and_costs_nothing(run: Run) -> None:
    cycled = a_cycled(1, run.name)
    put(run, cycled)
    with producing(settings(run, share=4)):
        run.wait_for(STATES)
    with TopicReader(run.kafka, [PRODUCERS.of(run.name)]) as reader:
        newest = AvroCodec(PRODUCERS).decode([message.value for message in reader.to_end()][-1] or b"")
    forged = newest.model_copy(update={"mark": '{"0": -5, "x": 1, "1": "7"}', "prompts_offsets": {}})
    run.put(PRODUCERS.of(run.name), AvroCodec(PRODUCERS).encode(forged))
    with producing(settings(run, share=4)):
        run.wait_for(STATES)


def test_a_number_that_anybody_wrote_moves_its_own_no_further(run: Run) -> None:
    put(run, a_cycled(1, run.name))
    with producing(settings(run, share=STATES)):
        run.wait_for(STATES)
    forged = run.prompts[0].model_copy(update={"sequence": 2**53, "group_id": "a-stranger-s", "prompt_id": "none"})
    run.put(PROMPTS.of(run.name), AvroCodec(PROMPTS).encode(forged))
    put(run, a_cycled(2, run.name))
    with producing(settings(run, share=3 * STATES)):
        run.wait_for(2 * STATES + 1)
    assert sorted(prompt.sequence for prompt in run.prompts) == [*range(2 * STATES), 2**53]
