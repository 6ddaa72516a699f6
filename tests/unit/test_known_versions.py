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


def test_nothing_is_newest_before_the_first_version() -> None:
    assert known().newest is None
    assert known().behind(0) is None


def test_the_newest_record_counts_even_if_its_step_is_lower() -> None:
    versions = known(a_version(0, None, 0), a_version(1, 0, 1), a_version(2, 1, 2), a_version(3, 1, 1))
    assert versions.newest == 3


def test_behind_counts_optimizer_steps_on_the_path_and_not_numbers() -> None:
    # 0 → 1 → 2, then a restart restores 1 as version 3, from which 4 is trained.
    versions = known(
        a_version(0, None, 0), a_version(1, 0, 1), a_version(2, 1, 2), a_version(3, 1, 1), a_version(4, 3, 2)
    )
    assert versions.behind(4) == 0
    assert versions.behind(3) == 1
    assert versions.behind(1) == 1
    assert versions.behind(2) == 2
    assert versions.behind(0) == 2


def test_a_joiner_tries_the_newest_version_and_then_its_parents() -> None:
    versions = known(a_version(0, None, 0), a_version(1, 0, 1), a_version(2, 1, 2), a_version(3, 1, 1))
    assert [record.weight_version for record in versions.ancestry(3)] == [3, 1, 0]


def test_only_recent_records_are_kept_but_every_distance_is_known() -> None:
    versions = known(*(a_version(number, number - 1 if number else None, number) for number in range(200)))
    assert versions.record(0) is None
    assert versions.record(199) is not None
    assert versions.behind(0) == 199
