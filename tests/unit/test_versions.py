"""The tree of weight versions: policy lag follows the parents, however many versions there are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.history.versions import VersionTree


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
