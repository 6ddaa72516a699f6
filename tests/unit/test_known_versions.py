"""The tree of weight versions, what a generator knows of the published ones, and on which of them samples run."""

import asyncio
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.generator.current_version import CurrentVersion
from rollstream.generator.known_versions import KnownVersions
from rollstream.history.ledger import LedgerFold
from rollstream.history.passing import RecordPlace
from rollstream.history.read import History
from rollstream.history.repair import foreign_versions
from rollstream.history.versions import VersionTree
from rollstream.schemas.errors import FailedSampleError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.weights import WeightsPublished
from tests.harness.builders import an_entry, published
from tests.harness.waits import in_a_loop


def known(*records: WeightsPublished) -> KnownVersions:
    versions = KnownVersions()
    for record in records:
        versions.note(record)
    return versions


def a_version(version: int, parent: int | None, step: int) -> WeightsPublished:
    return published(weight_version=version, parent_version=parent, step=step)


# 0 → 1 → 2, then a restart restores 1 as version 3, from which 4 is trained.
RECORDS = [a_version(0, None, 0), a_version(1, 0, 1), a_version(2, 1, 2), a_version(3, 1, 1), a_version(4, 3, 2)]


def test_behind_counts_optimizer_steps_on_the_path_and_not_numbers() -> None:
    assert (known().newest, known().behind(0)) == (None, None)
    assert known(*RECORDS[:4]).newest == 3, "although its step is lower"
    versions = known(*RECORDS)
    assert [versions.behind(version) for version in range(5)] == [2, 1, 2, 1, 0]
    assert [versions.parent(version) for version in (3, 1, 0, 9)] == [1, 0, None, None]


def test_only_recent_records_are_kept_but_every_distance_is_known() -> None:
    versions = known(*(a_version(number, number - 1 if number else None, number) for number in range(1000)))
    assert versions.record(0) is None
    assert versions.record(999) is not None
    assert versions.behind(0) == 999


def test_what_is_read_backwards_gives_the_same_distances() -> None:
    versions = known(*RECORDS[3:])
    assert [versions.behind(version) for version in range(5)] == [None, None, None, 1, 0]
    versions.note_older(RECORDS[1:3])
    assert [versions.behind(version) for version in range(5)] == [None, 1, 2, 1, 0]
    versions.note_older(RECORDS[:1])
    assert [versions.behind(version) for version in range(5)] == [2, 1, 2, 1, 0]
    assert versions.newest == 4
    assert [versions.record(number) for number in range(5)] == RECORDS


def test_memory_does_not_grow_with_the_age_of_a_run() -> None:
    count = 60_000
    versions = known(*(a_version(number, number - 1 if number else None, number) for number in range(count)))
    assert not versions.knows(0)
    assert versions.behind(count - 10_000) == 9_999


def test_the_last_of_the_older_records_is_the_newest_if_there_is_no_other() -> None:
    versions = known()
    versions.note_older([a_version(0, None, 0), a_version(1, 0, 1)])
    assert (versions.newest, versions.behind(0)) == (1, 1)


def test_records_that_name_each_other_as_parents_have_no_path() -> None:
    versions = known(a_version(3, 5, 3), a_version(5, 3, 5), a_version(5, 5, 5), a_version(4, 2**53, 0))
    assert [versions.behind(version) for version in (3, 4, 5)] == [None, 0, None]
    assert [versions.parent(version) for version in (3, 4, 5)] == [None, None, None]


def test_a_version_without_a_known_parent_can_be_passed_over_but_not_the_only_one() -> None:
    versions = known(a_version(0, None, 0))
    assert not versions.forget_orphan(0)
    versions.note(a_version(1, 0, 1))
    assert not versions.forget_orphan(1)
    versions.note(a_version(2**53, None, 7))
    assert versions.behind(1) is None
    assert versions.forget_orphan(2**53)
    assert (versions.newest, versions.behind(0)) == (1, 1)


DEADLINE_SECONDS = 30.0


async def load(current: CurrentVersion, version: int, hold_seconds: float = DEADLINE_SECONDS) -> None:
    async with current.changing(version, hold_seconds):
        pass


async def enter(current: CurrentVersion, version: int) -> None:
    await current.arrival(version)
    async with current.on_version(version):
        pass


@in_a_loop
async def test_an_evaluation_waits_for_the_version_it_names() -> None:
    current = CurrentVersion()
    entered = asyncio.Event()

    async def evaluation() -> None:
        await current.arrival(1)
        async with current.on_version(1):
            entered.set()

    task = asyncio.create_task(evaluation())
    await load(current, 0)
    assert not entered.is_set()
    await load(current, 1)
    await asyncio.wait_for(task, DEADLINE_SECONDS)
    assert entered.is_set()


@in_a_loop
async def test_a_version_that_nobody_published_is_not_waited_for() -> None:
    current = CurrentVersion(news_seconds=0.01)
    await load(current, 5)
    await current.published(5)
    with pytest.raises(FailedSampleError, match=r"version 7 .* is not published; the newest is 5") as gone:
        await asyncio.wait_for(enter(current, 7), DEADLINE_SECONDS)
    assert gone.value.code == FailureCode.VERSION_GONE


@in_a_loop
async def test_a_published_version_is_waited_for_while_it_is_loaded_but_not_longer_than_its_bound() -> None:
    current = CurrentVersion(news_seconds=0.01, load_seconds=DEADLINE_SECONDS)
    await load(current, 5)
    await current.published(6)
    waiting = asyncio.create_task(enter(current, 6))
    await asyncio.sleep(0.05)
    await load(current, 6)
    await asyncio.wait_for(waiting, DEADLINE_SECONDS)
    impatient = CurrentVersion(load_seconds=0.01)
    await load(impatient, 5)
    await impatient.published(6)
    with pytest.raises(FailedSampleError, match="version 6 was asked for, 5 is loaded"):
        await asyncio.wait_for(enter(impatient, 6), DEADLINE_SECONDS)


@in_a_loop
async def test_a_version_that_has_passed_is_gone() -> None:
    current = CurrentVersion()
    await load(current, 2)
    with pytest.raises(FailedSampleError, match="version 1 was asked for, 2 is loaded") as gone:
        await asyncio.wait_for(enter(current, 1), DEADLINE_SECONDS)
    assert gone.value.code == FailureCode.VERSION_GONE


@in_a_loop
async def test_a_newer_version_waits_for_running_evaluations() -> None:
    current = CurrentVersion()
    await load(current, 0)
    async with current.on_version(0):
        loading = asyncio.create_task(load(current, 1))
        await asyncio.sleep(0)
        assert current.version == 0
    await asyncio.wait_for(loading, DEADLINE_SECONDS)
    assert current.version == 1


@in_a_loop
async def test_a_newer_version_waits_no_longer_than_its_bound() -> None:
    current = CurrentVersion()
    await load(current, 0)
    with pytest.raises(FailedSampleError, match="version 0 was asked for, 1 is loaded, and did not wait") as gone:
        async with current.on_version(0):
            await asyncio.wait_for(load(current, 1, hold_seconds=0.01), DEADLINE_SECONDS)
    assert current.version == 1
    # Whatever its engine says: not every one can tell which version sampled which tokens.
    assert gone.value.code == FailureCode.VERSION_GONE


@in_a_loop
async def test_a_load_that_fails_leaves_the_old_version() -> None:
    current = CurrentVersion()
    await load(current, 0)
    with pytest.raises(OSError, match="disk"):
        async with current.changing(1, DEADLINE_SECONDS):
            raise OSError("disk")
    assert current.version == 0
    async with current.on_version(0):
        pass


ENTRY = an_entry()
OWN = published(1, created_at=ENTRY.started_at, uri="file:///store/1-trainer-1")
BEFORE = published(1, created_at=ENTRY.started_at - timedelta(days=1), uri="file:///store/1-stranger")
AFTER = published(1, created_at=ENTRY.finished_at + timedelta(days=1))
OTHER_PARENT = published(1, created_at=ENTRY.started_at, parent_version=None)


def found(*records: WeightsPublished, skipped: frozenset[RecordPlace] = frozenset()) -> list[str]:
    history = History(
        published={}, entries={1: ENTRY}, fold=LedgerFold(), newest_version=1, problems=(), skipped=skipped
    )
    on_topic = {RecordPlace("weights", offset): record for offset, record in enumerate(records)}
    return [f"{place}: {error}" for place, error in foreign_versions(on_topic, history)]


def test_a_version_is_the_trainers_if_an_entry_made_it() -> None:
    assert found(OWN) == []
    assert found(published(7)) == ["weights@0: no entry of the ledger made version 7"]
    # What readers pass over already is not found again.
    assert found(BEFORE, OWN, skipped=frozenset({RecordPlace("weights", 0)})) == []


@pytest.mark.parametrize("forged", [BEFORE, AFTER, OTHER_PARENT])
def test_of_two_records_with_one_number_the_one_that_agrees_with_the_ledger_is_the_trainers(
    forged: WeightsPublished,
) -> None:
    assert found(OWN, forged) == ["weights@1: version 1 is published at weights@0"]
    assert found(forged, OWN) == ["weights@0: version 1 is published at weights@1"]


def test_the_lag_of_a_sample_is_that_of_its_farthest_version_not_of_its_smallest_number() -> None:
    tree = VersionTree()
    tree.add(3, None, is_step=False)
    tree.add(4, 3, is_step=True)
    tree.add(5, 4, is_step=True)
    tree.add(6, 3, is_step=False)
    assert tree.policy_lag([3], 6) == 0
    assert tree.policy_lag([3, 5], 6) == 2
    assert tree.policy_lag([3, 9], 6) is None
    assert tree.policy_lag([], 6) is None


def test_lag_of_a_long_ledger_needs_no_recursion() -> None:
    tree = VersionTree()
    tree.add(0, None, is_step=False)
    for version in range(1, 20_000):
        tree.add(version, version - 1, is_step=True)
    assert tree.lag(0, 19_999) == 19_999


@given(choices=st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=40))
def test_the_lag_in_ranges_of_versions_is_that_on_the_path_through_single_ones(choices: list[tuple[int, bool]]) -> None:
    tree = VersionTree()
    tree.add(0, None, is_step=False)
    parents, steps = {0: 0}, {0: 0}
    for version, (choice, is_step) in enumerate(choices, start=1):
        # The newest version is the parent of most, as it is in a run.
        parents[version] = version - 1 if choice > 15 else choice % version
        steps[version] = int(is_step)
        tree.add(version, parents[version], is_step=is_step)

    def path(version: int) -> list[int]:
        return [version] if version == 0 else [version, *path(parents[version])]

    for one in parents:
        ancestors = path(one)
        assert [version for versions in tree.branch(one) for version in reversed(versions)] == ancestors
        for other in parents:
            apart = set(ancestors) ^ set(path(other))
            assert tree.lag(one, other) == sum(steps[version] for version in apart)


def test_a_version_whose_parent_is_unknown_or_not_smaller_is_no_part_of_the_tree() -> None:
    tree = VersionTree()
    tree.add(3, None, is_step=False)
    for version, parent in ((5, 4), (2, 3), (4, 4)):
        with pytest.raises(ValueError, match="is not in the tree, or not smaller"):
            tree.add(version, parent, is_step=True)
    assert [version for version in range(9) if version in tree] == [3]
