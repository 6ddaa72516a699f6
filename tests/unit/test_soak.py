"""What a soak does when, and what counts as growth."""

from dataclasses import replace
from itertools import pairwise

import pytest

from rollstream.schemas.errors import ConfigurationError
from tests.chaos.small_run import servers_of
from tests.soak.conduct import REPLACED, Kind, schedule
from tests.soak.samples import Sample, Start, disk_mib, draw
from tests.soak.verdict import Verdict, unjudged, verdicts


def a_sample(
    step: int, *, memory: float = 300.0, handles: int = 40, disk: float = 20.0, kept: float = 1.0, pid: int = 1
) -> Sample:
    """One look at a trainer; `kept`: MiB of the topics whose records never expire."""
    return Sample(
        seconds=step / 10, step=step, pids={"trainer": pid}, memory_mib={"trainer": memory},
        handles={"trainer": handles},
        disk_mib={"topics that expire": disk, "weights and ledger": kept}, lag={"prompts": 3},
    )  # fmt: skip


def by_what(found: list[Verdict]) -> dict[str, bool]:
    return {verdict.what: verdict.holds for verdict in found}


def test_every_stage_is_restarted_and_killed_early_and_late_and_the_run_is_rolled_back() -> None:
    events = schedule()
    assert [event.at for event in events] == sorted(event.at for event in events)
    trainers = [event.at for event in events if event.stage == "trainer"]
    assert max(later - earlier for earlier, later in pairwise(trainers)) > 0.5
    for stage in REPLACED:
        for begin, end in ((0.05, 0.25), (0.8, 1.0)):
            kinds = [event.kind for event in events if event.stage == stage and begin <= event.at < end]
            assert {Kind.RESTART, Kind.KILL} <= set(kinds)
    others = [event.kind for event in events if event.kind not in (Kind.RESTART, Kind.KILL)]
    assert others == [Kind.ROLL_BACK, Kind.JOIN, Kind.LEAVE, Kind.ROLL_BACK]
    assert all(0 < event.at < 1 for event in events)


def test_what_stays_flat_holds() -> None:
    assert by_what(verdicts([a_sample(step) for step in range(0, 1001, 10)], [])) == {
        "memory of trainer, MiB": True, "handles of trainer": True, "disk of topics that expire, MiB": True
    }  # fmt: skip


@pytest.mark.parametrize(
    ("figure", "what"),
    [
        ("memory", "memory of trainer, MiB"),
        ("handles", "handles of trainer"),
        ("disk", "disk of topics that expire, MiB"),
    ],
)
def test_what_grows_with_the_steps_does_not_hold(figure: str, what: str) -> None:
    samples = [a_sample(step, **{figure: 50 + step // 10}) for step in range(0, 1001, 10)]  # type: ignore[arg-type]
    found = by_what(verdicts(samples, []))
    assert [name for name, holds in found.items() if not holds] == [what]


def test_the_disk_has_no_verdict_where_topics_do_not_expire_yet() -> None:
    samples = [a_sample(step, disk=step) for step in range(0, 1001, 10)]
    assert not all(verdict.holds for verdict in verdicts(samples, [], settled_seconds=0))
    assert all(verdict.holds for verdict in verdicts(samples, [], settled_seconds=85))


def test_the_disk_is_compared_from_when_on_as_much_expires_as_is_written() -> None:
    def disk_at(step: int, *, grows: bool) -> float:
        return min(step, 400.0) + (step / 2 if grows else 0.0)

    for grows, holds in ((False, True), (True, False)):
        samples = [a_sample(step, disk=disk_at(step, grows=grows)) for step in range(0, 1001, 10)]
        found = by_what(verdicts(samples, [], settled_seconds=40))
        assert found["disk of topics that expire, MiB"] is holds


def test_a_run_that_goes_faster_later_may_keep_as_much_more() -> None:
    def at(second: int, *, grows: float) -> Sample:
        step = second * 10 if second < 60 else 600 + (second - 60) * 20
        kept = 10.0 if second < 60 else grows * 10.0
        return replace(a_sample(step, disk=kept), seconds=float(second))

    for grows, holds in ((2.0, True), (3.0, False)):
        samples = [at(second, grows=grows) for second in range(80)]
        found = by_what(verdicts(samples, [], settled_seconds=10))
        assert found["disk of topics that expire, MiB"] is holds


def test_growth_in_the_longest_life_of_a_process_does_not_hold_although_a_young_one_takes_its_place() -> None:
    def memory_at(step: int) -> float:
        return 300.0 + step if 300 <= step < 800 else 300.0

    samples = [a_sample(step, memory=memory_at(step), pid=1 + (step >= 300) + (step >= 800)) for step in range(1001)]
    found = by_what(verdicts(samples, []))
    assert [what for what, holds in found.items() if not holds] == ["memory of trainer in its longest life, MiB"]


def test_what_a_soak_was_too_short_for_is_said() -> None:
    assert unjudged([]) == ["memory", "handles", "disk", "start"]
    samples = [a_sample(step) for step in range(0, 1001, 10)]
    assert unjudged(verdicts(samples, [], settled_seconds=95)) == ["disk", "start"]


def test_what_grows_at_the_start_alone_holds() -> None:
    samples = [a_sample(step, memory=min(300, 100 + 2 * step)) for step in range(0, 1001, 10)]
    assert by_what(verdicts(samples, []))["memory of trainer, MiB"]


def test_the_topics_that_are_kept_for_ever_may_grow() -> None:
    samples = [a_sample(step, kept=step) for step in range(0, 1001, 10)]
    assert all(verdict.holds for verdict in verdicts(samples, []))


@pytest.mark.parametrize(("late", "holds"), [(2.3, True), (2.5, False)])
def test_a_start_that_takes_longer_after_many_steps_does_not_hold(late: float, holds: bool) -> None:
    starts = [Start(stage="trainer", step=step, seconds=2.0) for step in (60, 120, 180)]
    starts += [Start(stage="trainer", step=step, seconds=9.0) for step in (0, 500)]  # neither early nor late
    starts += [Start(stage="trainer", step=step, seconds=late) for step in (820, 880, 940)]
    found = verdicts([a_sample(step) for step in range(0, 1001, 10)], starts)
    assert by_what(found)["start of the trainer, seconds"] is holds


def test_disk_is_that_of_the_runs_topics_by_how_long_they_are_kept(tmp_path) -> None:
    for name in ("demo.prompts-0", "demo.ledger-0", "other.prompts-0"):
        folder = tmp_path / "kafka" / "node-1" / "log" / name
        folder.mkdir(parents=True)
        (folder / "00000000000000000000.log").write_bytes(b"x" * 2**20)
    (tmp_path / "weights").mkdir()
    found = disk_mib("demo", tmp_path / "kafka", [tmp_path / "weights"])
    assert found == {"topics that expire": 1.0, "weights and ledger": 1.0, "weights": 0.0}


def test_a_soak_is_drawn(tmp_path) -> None:
    starts = [Start(stage="trainer", step=5, seconds=2.0)]
    draw([a_sample(step) for step in range(3)], starts, tmp_path / "soak.png")
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")


def test_a_soak_that_ended_before_any_stage_was_ready_is_drawn_too(tmp_path) -> None:
    draw([a_sample(0)], [], tmp_path / "soak.png")
    assert (tmp_path / "soak.png").is_file()


def test_of_two_runs_that_start_at_once_in_one_directory_one_is_refused(tmp_path) -> None:
    (tmp_path / "kafka").mkdir()  # the other one's first act
    refused = pytest.raises(ConfigurationError, match="another run is there; choose a new --run-dir")
    with refused, servers_of(tmp_path, 1):
        pytest.fail("it started")
