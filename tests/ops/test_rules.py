"""Every alert fires when it should and is silent when not, as promtool evaluates the rules."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.ops import cases_of_learning, cases_of_processes, cases_of_progress, cases_of_serving
from tests.ops.rule_tests import RULE_FILES, RULES, AlertCase, one_test, rules_of, run_promtool, selector

CASES = (*cases_of_processes.CASES, *cases_of_progress.CASES, *cases_of_learning.CASES, *cases_of_serving.CASES)
ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load((RULES / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
}


def _firing(case: AlertCase) -> str:
    severity = ALERTS[case.alert]["labels"]["severity"]
    known = {"alertname": case.alert, "alertstate": "firing", "severity": severity}
    return selector("ALERTS", {**known, **case.labels})


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    assert {case.alert for case in CASES} == set(ALERTS)
    assert {case.alert for case in CASES if case.silent} == set(ALERTS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_texts_name_only_labels_that_the_firing_alert_has(case: AlertCase) -> None:
    named = set(re.findall(r"\$labels\.(\w+)", " ".join(ALERTS[case.alert]["annotations"].values())))
    assert named <= case.labels.keys()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_an_alert_fires_when_it_should_and_is_silent_when_not(case: AlertCase, promtool: str, tmp_path: Path) -> None:
    name = f'ALERTS{{alertname="{case.alert}"'
    fires = one_test(
        case.fires, f'{name}, alertstate="firing"}}', case.at, [{"labels": _firing(case), "value": 1}], case.interval
    )
    silent = [one_test(given, f"{name}}}", case.at, [], case.interval) for given in case.silent]
    rules = rules_of(case.alert, without_thresholds=case.without_thresholds)
    run_promtool(promtool, rules, [fires, *silent], tmp_path, case.interval)


def test_promtool_finds_nothing_to_say_about_the_rules(promtool: str) -> None:
    paths = [str(RULES / name) for name in RULE_FILES]
    done = subprocess.run(
        [promtool, "check", "rules", "--lint=all", "--lint-fatal", *paths],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
