"""What a generator knows of the published versions."""

from rollstream.generator.known_versions import KnownVersions
from rollstream.schemas.weights import WeightsPublished
from tests.harness.builders import published


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
