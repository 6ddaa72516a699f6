"""Builds what `promtool test rules` reads, from series that a scrape of a run would have brought."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

RULES: Final = Path(__file__).parents[2] / "helm" / "rollstream" / "files" / "rules"
RULE_FILES: Final = ("thresholds.yaml", "recording.yaml", "alerts.yaml")
RUN: Final = "math"

Series = Mapping[str, str]
"""A series with its labels → its values, in promtool's notation: `0+2x60` begins at 0 and adds 2, 60 times."""


@dataclass(frozen=True, slots=True)
class AlertCase:
    """When one alert fires, and when it does not.

    `fires` is asked at `at`; the alert then has `labels` and its severity. In each of `silent` it does not even begin.
    `interval`: between two values of a series, and between two evaluations.
    """

    alert: str
    fires: Series
    silent: Sequence[Series]
    at: str
    interval: str
    without_thresholds: bool
    labels: Mapping[str, str]


def case(
    alert: str,
    fires: Series,
    *silent: Series,
    at: str = "1h",
    interval: str = "1m",
    without_thresholds: bool = False,
    run: str = RUN,
    **labels: str,
) -> AlertCase:
    """A case of an alert that has the label `run` unless that is empty."""
    return AlertCase(
        alert, fires, silent, at, interval, without_thresholds, {**({"run": run} if run else {}), **labels}
    )


def series(metric: str, stage: str, values: str, *, number: int = 0, run: str = RUN, **labels: str) -> dict[str, str]:
    """One series of a process of this stage; `number` tells processes of a stage apart."""
    known = {"run": run, "stage": stage, "instance": instance(stage, number), **labels}
    return {selector(metric, known): values}


def selector(metric: str, labels: Mapping[str, str]) -> str:
    """The series as PromQL writes it."""
    return f"{metric}{{{', '.join(f'{name}={json.dumps(value)}' for name, value in labels.items())}}}"


def instance(stage: str, number: int = 0) -> str:
    """The label that Prometheus gives to a process."""
    return f"{stage}-{number}:9000"


def up(*stages: str, values: str = "1x400") -> dict[str, str]:
    """One process of each stage, which answers scrapes."""
    return {name: value for stage in stages for name, value in series("up", stage, values).items()}


def steps(values: str = "0+1x400") -> dict[str, str]:
    """A trainer that makes steps, one a minute by default."""
    return {
        **up("trainer"),
        **series("rollstream_trainer_ledger_entries_total", "trainer", values, kind="step"),
        **series("rollstream_trainer_ledger_entries_total", "trainer", "1x400", kind="restart"),
    }


def step_gauge(name: str, values: str) -> dict[str, str]:
    """A figure of the newest step."""
    return series(f"rollstream_trainer_{name}", "trainer", values)


def run_gauge(name: str, values: str) -> dict[str, str]:
    """A gauge of the run that the trainer exports, whether it has made a step or not."""
    return series(f"rollstream_trainer_{name}", "trainer", values)


def closed(values: str, outcome: str = "dropped", reason: str = "") -> dict[str, str]:
    """Groups that the trainer closed."""
    return series("rollstream_trainer_groups_total", "trainer", values, outcome=outcome, reason=reason)


def samples(values: str, status: str = "completed", *, number: int = 0) -> dict[str, str]:
    """Samples that a generator ended."""
    return series("rollstream_generator_samples_total", "generator", values, number=number, status=status)


def rules_of(alert: str, *, without_thresholds: bool = False) -> dict[str, Any]:
    """The alert, and the recording rules and thresholds that it asks for: all of them a minute would take long."""
    rules = [rule for name in RULE_FILES for group in _groups(name) for rule in group["rules"]]
    wanted = [rule for rule in rules if rule.get("alert") == alert]
    exprs = wanted[0]["expr"]
    for rule in reversed([rule for rule in rules if "record" in rule]):
        name, labels = rule["record"], rule.get("labels", {})
        is_asked = f'{name}{{name="{labels["name"]}"}}' in exprs or f"({name})" in exprs if labels else name in exprs
        if is_asked and not (labels and without_thresholds):
            wanted.insert(0, rule)
            exprs += rule["expr"]
    # One group: its rules are evaluated in their order, so that an alert sees what was recorded at the same time.
    return {"groups": [{"name": "rollstream", "rules": wanted}]}


def all_rules() -> dict[str, Any]:
    """Every rule, in the order in which they ask for each other."""
    rules = [rule for name in RULE_FILES for group in _groups(name) for rule in group["rules"]]
    return {"groups": [{"name": "rollstream", "rules": rules}]}


def _groups(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load((RULES / name).read_text())["groups"])


def one_test(
    given: Series, expr: str, at: str, expected: Sequence[Mapping[str, Any]], interval: str = "1m"
) -> dict[str, Any]:
    """Given these series, `expr` has these samples at `at`."""
    return {
        "interval": interval,
        "input_series": [{"series": name, "values": values} for name, values in given.items()],
        "promql_expr_test": [{"expr": expr, "eval_time": at, "exp_samples": list(expected)}],
    }


def run_promtool(
    promtool: str, rules: Mapping[str, Any], tests: Sequence[Mapping[str, Any]], folder: Path, interval: str = "1m"
) -> None:
    """Raises AssertionError with what promtool says if a test fails."""
    code, said = promtool_says(promtool, rules, tests, folder, interval)
    assert code == 0, said


def promtool_says(
    promtool: str, rules: Mapping[str, Any], tests: Sequence[Mapping[str, Any]], folder: Path, interval: str
) -> tuple[int, str]:
    """Its exit code, and where each expectation is not met."""
    (folder / "rules.yaml").write_text(json.dumps(rules))  # JSON is YAML
    path = folder / "rules_test.yaml"
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": interval, "tests": list(tests)}
    path.write_text(json.dumps(document))
    done = subprocess.run(
        [promtool, "test", "rules", str(path)], capture_output=True, text=True, check=False, timeout=300
    )
    return done.returncode, done.stdout + done.stderr
