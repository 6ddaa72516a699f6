"""The rules: complete, named consistently, and asking only for metrics and labels that exist."""

import re

import pytest
import yaml

from rollstream.schemas.failure import FailureCode
from rollstream.trainer.intake.groups import DropReason
from tests.observability.boards import NAMES, expressions
from tests.observability.expressions import (
    ROOT,
    RULES,
    asked,
    grouped_by,
    known_metrics,
    nodes,
    recorded_metrics,
    rules,
)

ALERTS = {rule["alert"]: rule for rule in rules("alerts")}
each_alert = pytest.mark.parametrize("name", ALERTS)
_DURATION = re.compile(r"\d+[mh]")
_THRESHOLD = re.compile(r'scalar\(rollstream:threshold\{name="(\w+)"\}\)')


def test_alerts_compare_with_thresholds_and_every_threshold_is_a_number_that_is_used() -> None:
    named = [rule["labels"]["name"] for rule in rules("thresholds")]
    used = [name for rule in ALERTS.values() for name in _THRESHOLD.findall(rule["expr"])]
    assert sorted(set(named)) == sorted(named), "a name twice"
    assert set(used) == set(named)
    for rule in rules("thresholds"):
        assert (set(rule), rule["record"]) == ({"record", "labels", "expr"}, "rollstream:threshold")
        (call,) = (node for node in nodes(rule["expr"]) if hasattr(node, "func"))
        assert call.func.name == "vector"
    assert f"< {len(named)}\n" in ALERTS["RollstreamThresholdMissing"]["expr"]


def test_there_are_three_files_and_no_group_twice() -> None:
    assert {path.name for path in RULES.iterdir()} == {"alerts.yaml", "recording.yaml", "thresholds.yaml"}
    names = [group["name"] for path in RULES.iterdir() for group in yaml.safe_load(path.read_text())["groups"]]
    assert len(set(names)) == len(names)
    assert all(name.startswith("rollstream-") for name in names)
    assert len(ALERTS) == len(rules("alerts")) >= 20
    assert all(name.startswith("Rollstream") for name in ALERTS)


@each_alert
def test_an_alert_says_what_happened_and_what_to_read(name: str) -> None:
    rule = ALERTS[name]
    assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
    assert _DURATION.fullmatch(rule["for"])
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"].keys() == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] == f"runbooks/{name}.md"
    assert rule["annotations"]["description"].strip().endswith(".")
    assert not rule["annotations"]["summary"].endswith(".")


@pytest.mark.parametrize("rule", rules("recording", "alerts"), ids=lambda rule: rule.get("alert") or rule["record"])
def test_every_expression_asks_for_metrics_and_labels_that_exist(rule: dict[str, str]) -> None:
    known = known_metrics()
    found = list(asked(rule["expr"]))
    assert found
    for one in found:
        assert one.metric in known, one.metric
        assert one.labels <= known[one.metric], one
    assert grouped_by(rule["expr"]) <= {label for one in found for label in known[one.metric]}
    # What every process of the cluster has is asked for ours alone.
    of_all = [one for one in found if one.metric == "up" or one.metric.startswith("process_")]
    assert not of_all or any("run" in one.labels for one in of_all)


def test_recorded_metrics_are_named_alike_made_before_they_are_used_and_all_used() -> None:
    made: list[str] = []
    for rule in rules("recording"):
        assert re.fullmatch(r"rollstream:[a-z_0-9]+(:[a-z_0-9]+)?", rule["record"])
        assert rule["record"] not in made
        made.append(rule["record"])  # what is remembered asks for itself
        assert all(one.metric in made for one in asked(rule["expr"]) if one.metric.startswith("rollstream:"))
    exprs = [rule["expr"] for rule in (*rules("recording"), *ALERTS.values())]
    exprs += [expr for name in NAMES for _, expr in expressions(name)]
    assert recorded_metrics().keys() <= {one.metric for expr in exprs for one in asked(expr)}, "all are used"


@each_alert
def test_texts_name_only_labels_that_the_alert_may_have(name: str) -> None:
    rule = ALERTS[name]
    named = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    assert named <= {label for one in asked(rule["expr"]) for label in known_metrics()[one.metric]}


def test_every_reason_of_a_drop_is_refused_or_has_an_alert_of_its_own() -> None:
    own = {DropReason.LOST, DropReason.NON_FINITE, DropReason.NO_SPREAD, DropReason.TOO_OLD}
    # By RollstreamSamplesFailed, RollstreamSamplesUnresolved, RollstreamTruncationHigh; the last one is no fault.
    own |= {DropReason.FAILED, DropReason.UNRESOLVED, DropReason.ALL_TRUNCATED, DropReason.NOT_FOR_TRAINING}
    assert _values_of("rollstream:groups_refused:zero_filled", "reason") == {*DropReason} - own
    page = (ROOT / "helm" / "rollstream" / "runbooks" / "RollstreamGroupsRefused.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == {*DropReason} - own


def test_codes_of_rewards_that_fail_are_codes_of_the_scorer() -> None:
    of_generators = {
        FailureCode.BAD_PROMPT,
        FailureCode.PROMPT_TOO_LONG,
        FailureCode.UNKNOWN_AGENT,
        FailureCode.BAD_AGENT_OPTIONS,
        FailureCode.UNSUPPORTED_SAMPLING,
        FailureCode.REFUSED,
        FailureCode.VERSION_GONE,
        FailureCode.TOO_LARGE,
        FailureCode.DEADLINE,
        FailureCode.ENGINE,
        FailureCode.GIVEN_UP,
        FailureCode.TOOL,
        FailureCode.DIVERGED,
    }
    found = _values_of("rollstream:reward_failures:zero_filled", "code")
    assert found == {*FailureCode} - of_generators - {FailureCode.UNKNOWN}


def _values_of(record: str, label: str) -> set[str]:
    """The values of a label that a recording rule chooses."""
    (expr,) = (rule["expr"] for rule in rules("recording") if rule["record"] == record)
    (found,) = re.findall(rf'{label}=~"([^"]+)"', expr)
    return set(found.split("|"))
