"""The runbooks: one for each alert, with commands, settings and panels that exist."""

import re
from functools import cache

import pytest

from rollstream.schemas.failure import FailureCode
from rollstream.trainer.intake.groups import DropReason
from rollstream.views.configuration import all_keys
from tests.observability.boards import NAMES, board, panels
from tests.observability.commands import commands_in, problem_of
from tests.observability.expressions import ROOT, rules

RUNBOOKS = ROOT / "helm" / "rollstream" / "runbooks"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(RUNBOOKS.glob("*.md"))}
ALERTS = [rule["alert"] for rule in rules("alerts")]
each_page = pytest.mark.parametrize("name", PAGES)


def test_every_alert_has_a_runbook_with_a_command_and_every_runbook_an_alert() -> None:
    assert set(PAGES) == {*ALERTS, "README"}
    without = {name for name in ALERTS if not commands_in(PAGES[name])}
    assert without == {"RollstreamThresholdMissing"}  # it is about Prometheus alone


@each_page
def test_every_command_exists_with_its_options_and_links_lead_to_runbooks(name: str) -> None:
    for command in commands_in(PAGES[name]):
        assert problem_of(command) is None, (command, problem_of(command))
    for target in re.findall(r"\]\(([^)]+)\)", PAGES[name]):
        assert (RUNBOOKS / target).is_file(), (name, target)


@pytest.mark.parametrize("name", ALERTS)
def test_a_runbook_has_four_parts_and_each_says_something(name: str) -> None:
    heading, *parts = re.split(r"^## (\w+)\n", PAGES[name], flags=re.MULTILINE)
    assert heading == f"# {name}\n\n"
    assert parts[::2] == ["Meaning", "Impact", "Diagnosis", "Mitigation"]
    assert all(len(text.split()) >= 4 for text in parts[1::2])


@pytest.mark.parametrize(
    "mistaken",
    [
        "rollstream statsu",
        "rollstream status --onec",
        "rollstream weights",
        "rollstream weights show",
        "rollstream weights show 3 4",
        "rollstream probe health",
        "rollstream config --table trainers",
    ],
)
def test_a_command_that_does_not_exist_is_noticed(mistaken: str) -> None:
    assert problem_of(mistaken) is not None


@each_page
def test_names_in_code_are_settings_reasons_codes_or_files(name: str) -> None:
    known = _names()
    for word in re.findall(r"`([a-z]+(?:_[a-z]+)+)(?: = [^`]+)?`", PAGES[name]):
        assert word in known, (name, word)


@cache
def _names() -> set[str]:
    """Settings, reasons of drops, codes of failures."""
    return {part for key in all_keys() for part in key.key.path} | {*DropReason} | {*FailureCode}


@each_page
def test_panels_and_dashboards_that_are_named_exist(name: str) -> None:
    titles = {panel["title"] for one in NAMES for panel in panels(one)}
    titles |= {board(one)["title"].removeprefix("rollstream / ") for one in NAMES}
    prose = re.sub(r"```.*?```|`[^`]*`", "", PAGES[name], flags=re.DOTALL)
    for named in re.findall(r'"([^"]+)"', prose):
        assert " ".join(named.split()) in titles, (name, named)
