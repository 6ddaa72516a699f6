"""Whether a continuous collection counts as stuck: only where nothing goes on, however long a round takes."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollstream.offline.collection import CollectReport
from rollstream.offline.continuous.production import PROGRESS, Production, Schedule
from rollstream.offline.continuous.sources import FoundRow
from rollstream.offline.continuous.taken import BatchRows, TakenRows
from rollstream.offline.continuous.watch import Watch, WatchedRows, stuck_seconds
from rollstream.offline.live import LiveCounts
from rollstream.offline.progress import Progress
from rollstream.process.health import Health
from rollstream.process.stop import Stop
from rollstream.rows.open import open_rows
from rollstream.rows.row import ReadRow
from tests.harness.collecting import settings_for
from tests.harness.waits import wait_until

STUCK_SECONDS = 100.0


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class HeldSource:
    """Gives a row each time that it is let."""

    name = "held"
    is_endless = True

    def __init__(self) -> None:
        self.let = threading.Semaphore(0)

    def look(self, taken: TakenRows) -> Iterator[FoundRow]:
        """Two rows."""
        for number in range(2):
            self.let.acquire()
            yield FoundRow(ReadRow(number, f"row {number}", {"prompt": f"{number}="}))

    def marks(self) -> dict[str, Any]:
        """None."""
        return {}


def is_alive(health: Health) -> bool:
    return all(check.is_ok for check in health.liveness().values())


def is_ready(health: Health) -> bool:
    return all(check.is_ok for check in health.readiness().values())


def production(
    directory: Path, taken: TakenRows, source: HeldSource, watch: Watch, asked: threading.Event, begun: threading.Event
) -> Production:
    """One whose batches are asked once `asked` is set; `begun` is set when one is to be."""

    def collect_batch(rows: BatchRows, output: Path, progress: Progress) -> CollectReport:
        begun.set()
        assert asked.wait(60)
        return CollectReport(settings=settings_for(output), counts=LiveCounts(), was_complete=True)

    return Production(
        directory=directory, taken=taken, source=source, kind="jsonl", prompt_key="prompt", max_attempts=1,
        collect_batch=collect_batch, sink=None, say=lambda line: None, watch=watch,
    )  # fmt: skip


def test_a_round_is_stuck_when_nothing_goes_on_for_too_long_and_not_because_it_is_long(tmp_path: Path) -> None:
    clock, source, asked, stop = Clock(), HeldSource(), threading.Event(), Stop()
    begun = threading.Event()
    health = Health(clock)

    def run() -> None:
        # SQLite wants the thread that opened it.
        with TakenRows(tmp_path / PROGRESS) as taken:
            made = production(tmp_path, taken, source, Watch(health, stuck_seconds=STUCK_SECONDS), asked, begun)
            made.run(Schedule(every_seconds=1000.0), stop)

    def passes(seconds: float) -> bool:
        clock.seconds += seconds
        return is_alive(health)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(health.liveness, "the first look")
        assert passes(90.0)
        assert not passes(20.0), "110 s without a row"
        source.let.release()
        wait_until(lambda: is_alive(health), "a row")
        assert passes(90.0)
        source.let.release()
        wait_until(begun.is_set, "the batch")
        wait_until(lambda: passes(0.0) and health.liveness()["round"].detail.startswith("0.0 s ago"), "the second row")
        assert not passes(STUCK_SECONDS + 1), "a part that nothing is heard of"
        assert not is_ready(health), "no look has ended"
        asked.set()
        wait_until(lambda: is_ready(health), "the end of the look")
        # The next look is due in 1000 s, by the clock of the machine.
        wait_until(lambda: "at most 1" in health.liveness()["round"].detail, "the wait")
        assert passes(1000.0)
        assert not passes(STUCK_SECONDS + 1)
    finally:
        stop.ask()
        asked.set()
        source.let.release(2)
        thread.join(60)
    assert not thread.is_alive()


def test_each_row_that_a_part_is_asked_for_shows_that_it_goes_on(tmp_path: Path) -> None:
    clock = Clock()
    health = Health(clock)
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps({"prompt": f"{row}="}) + "\n" for row in range(4)))
    rows = WatchedRows(open_rows(source), Watch(health, stuck_seconds=STUCK_SECONDS))
    for _ in rows:
        assert is_alive(health)
        clock.seconds += 90.0
    assert rows.identity() == open_rows(source).identity()
    assert (rows.name, rows.num_rows) == ("rows.jsonl", 4)
    clock.seconds += 11.0
    assert not is_alive(health)


@pytest.mark.parametrize(
    ("deadline", "num_samples", "concurrency", "expected"),
    [(600.0, 1, 64, 2409.375), (600.0, 64, 64, 3000.0), (600.0, 1000, 1, 602_400.0)],
)
def test_samples_that_wait_for_room_are_no_sign_of_being_stuck(
    deadline: float, num_samples: int, concurrency: int, expected: float
) -> None:
    assert stuck_seconds(deadline, num_samples, concurrency) == expected
