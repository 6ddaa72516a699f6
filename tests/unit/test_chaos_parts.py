"""The parts of a campaign: which faults come, what garbage is, and which ends of a process are explained."""

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from rollstream.process.settings.base import Stage
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import DecodeError
from rollstream.schemas.topics import PROMPTS, TOPICS
from tests.chaos.faults import EVERY_KIND, faults, unreadable
from tests.chaos.fleet import Fleet
from tests.harness.builders import a_prompt
from tests.harness.processes import StartedProcess, start_process
from tests.harness.waits import wait_until


def test_a_seed_always_gives_the_same_faults_and_another_seed_others() -> None:
    def drawn(seed: int) -> list[tuple[str, float]]:
        return [(fault.kind, fault.random.random()) for fault in islice(faults(seed), 120)]

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


def test_every_round_has_every_kind_as_often_as_asked() -> None:
    num_each_round = sum(EVERY_KIND.values())
    kinds = [fault.kind for fault in islice(faults(3), 2 * num_each_round)]
    assert Counter(kinds[:num_each_round]) == Counter(kinds[num_each_round:]) == Counter(EVERY_KIND)


def test_garbage_is_a_record_of_no_topic() -> None:
    draw, record = random.Random(5), AvroCodec(PROMPTS).encode(a_prompt())
    for value in [unreadable(draw, known) for known in (None, record) for _ in range(200)]:
        for topic in TOPICS:
            if topic.record is not None:
                with pytest.raises(DecodeError):
                    AvroCodec(topic).decode(value)


class Scripts:
    """Starts a script in place of a stage, the next one at each start."""

    def __init__(self, *scripts: str) -> None:
        self._scripts = iter(scripts)
        self.started: list[StartedProcess] = []

    def __call__(self, stage: Stage, name: str, log: Path) -> StartedProcess:
        script = f"print('here', flush=True)\nimport sys, time\n{next(self._scripts)}"
        self.started.append(start_process([sys.executable, "-c", script], log=log))
        return self.started[-1]


WAITS = "time.sleep(60)"


FleetOf = Callable[..., Fleet]


@pytest.fixture
def fleet_of(tmp_path: Path) -> Iterator[FleetOf]:
    """Gives what makes a fleet whose processes run these scripts, one after the other; all are ended."""
    made: list[Scripts] = []

    def make(*scripts: str) -> Fleet:
        made.append(Scripts(*scripts))
        return Fleet(made[-1], tmp_path)

    yield make
    for process in (process for scripts in made for process in scripts.started):
        process.kill()


def until_ends(fleet: Fleet, **ends: int) -> None:
    wanted = {name.replace("_", " ").replace("minus ", "-"): count for name, count in ends.items()}

    def look() -> bool:
        fleet.tick()
        return dict(fleet.ends) == wanted

    wait_until(look, lambda: f"{wanted}, there are {fleet.ends}", 20.0)


def test_a_killed_process_is_started_again_and_explained(fleet_of: FleetOf) -> None:
    fleet = fleet_of(WAITS, WAITS)
    fleet.kill(fleet.start("scorer", "scorer-0"))
    until_ends(fleet, scorer_minus_9=1)
    wait_until(lambda: fleet.tick() or fleet.members("scorer"), "the next scorer", 20.0)
    assert fleet.unexpected == []


@pytest.mark.parametrize(
    ("script", "why"),
    [("sys.exit(3)", "ended with 3"), ("sys.exit(78)", "ended with 78"), ("raise OSError", "wrote a traceback")],
)
def test_an_end_that_no_fault_explains_is_noted(fleet_of: FleetOf, script: str, why: str) -> None:
    fleet = fleet_of(script, WAITS)
    fleet.start("generator", "generator-0")
    wait_until(lambda: fleet.tick() or fleet.unexpected, "the end to be noted", 20.0)
    assert why in " ".join(fleet.unexpected)


def test_an_end_that_is_expected_of_one_process_is_explained_once_and_for_it_alone(fleet_of: FleetOf) -> None:
    fleet = fleet_of("sys.exit(70)", "time.sleep(1); sys.exit(70)", WAITS)
    fleet.start("generator", "asks-a-server")
    fleet.expect_end("asks-a-server", 70)
    until_ends(fleet, generator_70=1)
    assert fleet.unexpected == []
    until_ends(fleet, generator_70=2)
    assert "asks-a-server ended with 70" in " ".join(fleet.unexpected)


def test_a_refusal_is_explained_and_tried_again_only_as_long_as_it_is_expected(fleet_of: FleetOf) -> None:
    fleet = fleet_of("sys.exit(78)", "time.sleep(1); sys.exit(78)")
    fleet.expect_refusal(60.0, "scorer")
    fleet.start("scorer", "scorer-0")
    until_ends(fleet, scorer_78=1)
    assert fleet.unexpected == []
    fleet.expect_refusal(0.0, "scorer")
    until_ends(fleet, scorer_78=2)
    assert "ended with 78" in " ".join(fleet.unexpected)
    assert fleet.count("scorer") == 0


def test_a_commit_that_meets_its_own_fencing_may_end_in_a_broken_world(fleet_of: FleetOf) -> None:
    fleet = fleet_of("time.sleep(1); sys.exit(70)", WAITS, WAITS)
    for name in ("trainer", "heir"):
        fleet.start("trainer", name)
    until_ends(fleet, trainer_70=1)
    assert fleet.unexpected == []


def test_a_trainer_that_nobody_replaces_has_no_reason_to_meet_a_broken_world(fleet_of: FleetOf) -> None:
    fleet = fleet_of("sys.exit(70)", WAITS)
    fleet.start("trainer", "trainer")
    until_ends(fleet, trainer_70=1)
    assert "ended with 70" in " ".join(fleet.unexpected)


def test_a_trainer_that_was_replaced_stays_away_and_the_last_one_is_started_again(fleet_of: FleetOf) -> None:
    fleet = fleet_of("sys.exit(75)", "time.sleep(1); sys.exit(75)", WAITS)
    for name in ("trainer", "heir"):
        fleet.start("trainer", name)
    until_ends(fleet, trainer_75=1)
    assert [member.name for member in fleet.members("trainer")] == ["heir"]
    fleet.expect_fencing()
    until_ends(fleet, trainer_75=2)
    wait_until(lambda: fleet.tick() or fleet.members("trainer"), "a trainer", 20.0)
    assert fleet.unexpected == []
