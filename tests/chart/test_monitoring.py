"""Monitors, rules and dashboards."""

import json
from typing import Any

import pytest
import yaml

from tests.chart.rendering import CHART, STAGES, Release, at, container_of, labels_of, render

RULES = at("metrics.prometheusRule.enabled", True)
DASHBOARDS = at("metrics.dashboards.enabled", True)
FILES = {
    name: (CHART / "files" / "rules" / f"{name}.yaml").read_text() for name in ("thresholds", "recording", "alerts")
}


def endpoint(release: Release, kind: str) -> dict[str, Any]:
    (found,) = release.one(kind)["spec"]["podMetricsEndpoints" if kind == "PodMonitor" else "endpoints"]
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["PodMonitor", "ServiceMonitor"])
def test_a_monitor_scrapes_every_stage_and_names_run_and_stage(kind: str) -> None:
    name = kind[0].lower() + kind[1:]
    release = render(at(f"metrics.{name}", {"enabled": True, "additionalLabels": {"release": "prometheus"}}))
    monitor, scraped = release.one(kind), endpoint(release, kind)
    assert labels_of(monitor)["release"] == "prometheus"
    assert scraped["path"] == "/metrics"
    rules = {one["targetLabel"]: one for one in scraped["relabelings"]}
    assert rules["run"]["replacement"] == "math"
    assert rules["stage"]["sourceLabels"] == ["__meta_kubernetes_pod_label_app_kubernetes_io_component"]
    selector = monitor["spec"]["selector"]
    (only,) = selector["matchExpressions"]
    assert (only["key"], only["operator"]) == ("app.kubernetes.io/component", "In")
    assert set(only["values"]) == set(STAGES)
    for stage in STAGES:
        # A PodMonitor looks for the port of the pod, a ServiceMonitor for that of the service.
        pod = release.workload(stage)["spec"]["template"]
        service = release.one("Service", stage)
        ports = container_of(pod, stage)["ports"] if kind == "PodMonitor" else service["spec"]["ports"]
        selected = pod if kind == "PodMonitor" else service
        assert [port["name"] for port in ports] == [scraped["port"]]
        assert selector["matchLabels"].items() <= labels_of(selected).items()
        assert labels_of(selected)["app.kubernetes.io/component"] == stage
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["training"]}


def test_what_is_set_of_a_monitor_reaches_it() -> None:
    more = {"targetLabel": "cluster", "replacement": "a"}
    drop = {"action": "drop", "sourceLabels": ["__name__"], "regex": "python_.*"}
    values = {
        "enabled": True,
        "interval": "30s",
        "scrapeTimeout": "20s",
        "relabelings": [more],
        "metricRelabelings": [drop],
    }
    scraped = endpoint(render(at("metrics.podMonitor", values)), "PodMonitor")
    assert (scraped["interval"], scraped["scrapeTimeout"]) == ("30s", "20s")
    assert scraped["relabelings"][-1] == more
    assert scraped["metricRelabelings"] == [drop]


def test_the_rules_are_those_of_the_files() -> None:
    groups = render(RULES).one("PrometheusRule")["spec"]["groups"]
    of_files = [group for text in FILES.values() for group in yaml.safe_load(text)["groups"]]
    alerts = alerts_of(groups)
    assert len(alerts) >= 20
    assert any("{{ $labels.run }}" in alert["annotations"]["summary"] for alert in alerts)
    for alert, written in zip(alerts, alerts_of(of_files), strict=True):
        written["annotations"]["runbook"] = alert["annotations"]["runbook"]
    assert groups == of_files


def alerts_of(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def test_an_alert_says_how_its_runbook_is_read_in_the_cluster_where_it_fires() -> None:
    release = render(RULES)
    pages = {path.stem: path.read_text() for path in (CHART / "runbooks").glob("*.md")}
    map_ = release.one("ConfigMap", "-runbooks")
    assert map_["data"] == pages
    assert len(json.dumps(map_)) < 240_000, "`kubectl apply` notes the whole object in an annotation"
    where = f"kubectl --namespace {map_['metadata']['namespace']} get configmap {map_['metadata']['name']}"
    for alert in alerts_of(release.one("PrometheusRule")["spec"]["groups"]):
        assert alert["annotations"]["runbook"] == f"{where} --output jsonpath='{{.data.{alert['alert']}}}'"
        assert alert["alert"] in pages
        assert "runbook_url" not in alert["annotations"], "it would be no URL"


def thresholds(release: Release) -> dict[str, str]:
    rules = [rule for group in release.one("PrometheusRule")["spec"]["groups"] for rule in group["rules"]]
    return {rule["labels"]["name"]: rule["expr"] for rule in rules if rule.get("record") == "rollstream:threshold"}


def test_the_thresholds_among_the_values_are_those_of_the_file() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())["metrics"]["prometheusRule"]["thresholds"]
    rules = [rule for group in yaml.safe_load(FILES["thresholds"])["groups"] for rule in group["rules"]]
    assert values == {rule["labels"]["name"]: yaml.safe_load(rule["expr"][len("vector(") : -1]) for rule in rules}


def test_a_threshold_is_changed_by_its_name() -> None:
    before = thresholds(render(RULES))
    after = thresholds(render(RULES, at("metrics.prometheusRule.thresholds", {"dead_letters": 12, "too_old_ratio": 0})))
    assert after == before | {"dead_letters": "vector(12)", "too_old_ratio": "vector(0)"}
    assert before["dead_letters"] != after["dead_letters"]


def test_runbooks_can_be_elsewhere() -> None:
    base = "https://runbooks.example.com/rl/"
    groups = render(RULES, at("metrics.prometheusRule.runbookBaseUrl", base)).one("PrometheusRule")["spec"]["groups"]
    for alert in alerts_of(groups):
        assert alert["annotations"]["runbook_url"] == f"{base}{alert['alert']}.md"
        assert alert["annotations"]["summary"]


def test_every_dashboard_of_the_files_gets_a_config_map_for_the_sidecar() -> None:
    files = {path.name: path.read_text() for path in (CHART / "files" / "dashboards").glob("*.json")}
    assert len(files) >= 6
    release = render(DASHBOARDS, at("metrics.dashboards.annotations", {"folder": "rl"}))
    maps = [one for one in release.of_kind("ConfigMap") if "-dashboard-" in one["metadata"]["name"]]
    assert {name: text for one in maps for name, text in one["data"].items()} == files
    for one in maps:
        assert len(one["data"]) == 1
        assert labels_of(one)["grafana_dashboard"] == "1"
        assert one["metadata"]["annotations"]["folder"] == "rl"
        # Above 262,144 bytes `kubectl apply` fails, which notes the whole object in an annotation.
        assert len(json.dumps(one)) < 240_000
