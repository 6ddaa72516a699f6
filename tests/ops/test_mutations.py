"""Changes can be planted, one at a time and in a copy; by night, `.ci/night` looks whether the tests notice them."""

import ast
import subprocess
from pathlib import Path

import pytest

from tests.harness.lanes import ROOT
from tests.mutations.__main__ import main, planned, rounds, who_notices
from tests.mutations.kinds import KINDS, mutations
from tests.mutations.tree import NoVerdictError, TreeCopy

each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
def test_every_kind_has_places_and_each_change_is_one(kind: str) -> None:
    places = mutations(ROOT, kind)
    assert len(places) >= 5
    for place in places:
        before = (ROOT / place.file).read_text(encoding="utf-8")
        after = place.apply(before)
        assert after != before
        if place.file.endswith(".py"):
            ast.parse(after)


def test_a_seed_gives_the_same_changes_and_none_twice() -> None:
    chosen = planned(ROOT, 40, 7)
    assert len({(one.file, one.start) for one in chosen}) == 40
    assert [str(one) for one in chosen] == [str(one) for one in planned(ROOT, 40, 7)]
    assert [str(one) for one in chosen] != [str(one) for one in planned(ROOT, 40, 8)]


@each_kind
def test_a_change_reaches_tests_of_its_lane(kind: str) -> None:
    assert rounds(mutations(ROOT, kind)[0])[0]


def test_tests_that_are_most_likely_to_notice_come_first() -> None:
    first = {kind: rounds(mutations(ROOT, kind)[0])[0][0] for kind in ("severity", "panel removed", "value")}
    assert first == {
        "severity": "tests/ops/test_figures.py",
        "panel removed": "tests/observability/test_dashboards.py",
        "value": "tests/chart/test_renderings.py",
    }


def test_a_change_is_planted_in_a_copy_and_taken_back(tmp_path: Path) -> None:
    before = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    tree = TreeCopy(tmp_path)
    (change,) = planned(tree.root, 1, 0)
    with tree.planted(change) as refused:
        assert refused == ""
        assert (tree.root / change.file).read_text() != (ROOT / change.file).read_text()
    assert (tree.root / change.file).read_text() == (ROOT / change.file).read_text()
    after = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert after == before


_THREE_TESTS = """
import logging
from pathlib import Path

def test_that_fails_every_other_time() -> None:
    mark = Path({mark!r})
    assert not (mark.unlink() if mark.exists() else mark.write_text("failed"))

def test_that_always_fails() -> None:
    logging.getLogger("a log").error("names no test")
    assert not "anything"

def test_that_fails_with_the_change() -> None:
    with Path({mark!r}).with_name("asked").open("a") as asked:
        asked.write("x")
    assert Path({file!r}).read_text()[{start}:].startswith({before!r})
"""


@pytest.mark.timeout(600)
def test_a_test_that_fails_anyway_or_now_and_then_has_not_noticed_the_change(tmp_path: Path) -> None:
    tree = TreeCopy(tmp_path)
    change = mutations(tree.root, "compose: order")[0]
    written = _THREE_TESTS.format(
        mark=str(tmp_path / "mark"), file=change.file, start=change.start, before=change.before
    )
    (tree.root / "test_three.py").write_text(written, encoding="utf-8")
    subprocess.run(["git", "add", "test_three.py"], cwd=tree.root, check=True)
    assert who_notices(tree, change, [["test_three.py"]]) == "test_three.py::test_that_fails_with_the_change"
    assert tree.passing == {"test_three.py::test_that_fails_with_the_change"}
    # Twice with the change, and once as it is.
    assert len((tmp_path / "asked").read_text()) == 3
    only = [["test_three.py::test_that_fails_with_the_change"]]
    assert who_notices(tree, change, only) == only[0][0]
    assert len((tmp_path / "asked").read_text()) == 5, "that it passes as it is was known"


def test_a_run_that_names_no_test_says_nothing_about_the_change(tmp_path: Path) -> None:
    tree = TreeCopy(tmp_path)
    with pytest.raises(NoVerdictError, match="pytest ended with 4"):
        tree.first_failure(["test_that_is_not_there.py"])


def test_the_changes_of_a_seed_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--count", "3", "--seed", "7"]) == 0
    assert capsys.readouterr().out.splitlines() == [str(one) for one in planned(ROOT, 3, 7)]


def test_changes_are_planted_each_night_by_another_seed() -> None:
    assert "  schedule:" in (ROOT / ".github" / "workflows" / "night.yml").read_text()
    assert "run: .ci/night" in (ROOT / ".github" / "workflows" / "night.yml").read_text()
    planted = 'python -m tests.mutations --count 30 --seed "${1:-$(date +%Y%m%d)}"'
    assert planted in (ROOT / ".ci" / "night").read_text()
