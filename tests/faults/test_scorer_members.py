"""Scorers that start and end while there is work: every rollout is scored, whichever scorer owns its partition."""

import signal
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from rollstream.process.crash_points import CRASH_AT
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.rollout import RolloutGenerated
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import ROLLOUTS, SCORED
from tests.harness import rewinding_stream
from tests.harness.builders import a_generated, a_prompt
from tests.harness.processes import StartedProcess
from tests.harness.running import Run, a_run
from tests.harness.unruly_environment import NAME, TABLE
from tests.harness.waits import wait_until

BATCH = 16
PARTITIONS = 4


@pytest.fixture
def run(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[Run]:
    with a_run(kafka, topic_prefix, tmp_path, partitions=PARTITIONS) as made:
        made.tables |= TABLE
        made.tables["scorer"] = {
            "batch_size": BATCH,
            "session_timeout_seconds": 4.0,
            "batch_deadline_seconds": 3.0,
            "load_deadline_seconds": 3.0,
            "sample_deadline_seconds": 3.0,
        }
        yield made


class Load:
    """Rollouts whose scoring takes a while, more of them whenever somebody looks."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._rows = count()
        self.rollout_ids: set[str] = set()

    def grow(self) -> None:
        """Two batches more."""
        rollouts = [self._rollout() for _ in range(2 * BATCH)]
        codec = AvroCodec(ROLLOUTS)
        self._run.publish("rollouts", [(rollout.group_id, codec.encode(rollout)) for rollout in rollouts])
        self.rollout_ids |= {rollout.rollout_id for rollout in rollouts}

    def until(self, is_true: Callable[[], object], what: str) -> None:
        """Keep the scorers busy until a condition holds."""

        def look() -> object:
            self.grow()
            return is_true()

        wait_until(look, what)

    def check_all_scored(self) -> list[RolloutScored]:
        """Once everything is committed, nothing lacks."""
        total = len(self.rollout_ids)
        wait_until(lambda: self._run.committed("scorers", "rollouts") == total, "everything to be committed")
        records = self._run.records(SCORED)
        missing = self.rollout_ids - {record.rollout.rollout_id for record in records}
        assert not missing, f"{len(missing)} of {total} rollouts were committed and never scored"
        return records

    def _rollout(self) -> RolloutGenerated:
        prompt = a_prompt(next(self._rows), run=self._run.name, environment=NAME, metadata={"order": "sleep 0.01"})
        return a_generated(prompt=prompt)


def start(run: Run, name: str, **environment: str) -> StartedProcess:
    return run.start("scorer", ROLLSTREAM_SCORER_ID=name, **environment)


def scored_by(run: Run, name: str) -> int:
    return sum(record.scoring.scorer == name for record in run.records(SCORED))


def test_what_was_polled_in_a_rebalance_is_read_again_although_nothing_was_committed_yet(
    run: Run, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    load = Load(run)
    load.grow()
    run.start_forked(partial(rewinding_stream.main, run.config, seen, len(load.rollout_ids)))

    def all_came_again() -> bool:
        # The first batch need not have records of each partition.
        before, _, after = (seen.read_text() if seen.exists() else "").partition(rewinding_stream.REWOUND)
        return bool(before) and set(before.split()) <= set(after.split())

    wait_until(all_came_again, "the records of the first batch to come once more")


def test_a_second_scorer_joins_a_busy_one_and_takes_over_and_no_rollout_is_skipped(run: Run) -> None:
    load = Load(run)
    first = start(run, "first")
    load.until(lambda: scored_by(run, "first") > 2 * BATCH, "the first scorer to be busy")
    start(run, "second")
    load.until(lambda: scored_by(run, "second") > BATCH, "the second scorer's share")
    assert first.terminate() == 0
    load.grow()
    load.check_all_scored()


@pytest.mark.parametrize("stopped_at", ["batch_scored:3:SIGSTOP", pytest.param("in mid-batch", marks=pytest.mark.slow)])
def test_a_scorer_stopped_past_its_session_harms_nothing_when_it_goes_on(run: Run, stopped_at: str) -> None:
    load = Load(run)
    first = start(run, "first", **({CRASH_AT: stopped_at} if ":" in stopped_at else {}))
    if ":" in stopped_at:
        load.until(lambda: first.is_stopped, "the first scorer to stop after a batch, before its commit")
    else:
        load.until(lambda: scored_by(run, "first") > BATCH, "the first scorer to be busy")
        first.signal(signal.SIGSTOP)
    start(run, "second")
    wait_until(lambda: run.committed("scorers", "rollouts") == len(load.rollout_ids), "the second to do everything")
    before = run.committed("scorers", "rollouts")
    first.signal(signal.SIGCONT)
    already = scored_by(run, "first")
    load.until(lambda: scored_by(run, "first") > already + BATCH, "the first scorer to have a share again")
    assert run.committed("scorers", "rollouts") >= before, "no commit goes back"
    records = load.check_all_scored()
    assert {record.rollout.rollout_id for record in records} == load.rollout_ids
