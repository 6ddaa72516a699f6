"""Prometheus and Grafana of docker-compose.yml: they find the stages, the chart's rules and its dashboards."""

import re
import shlex
import tomllib
from typing import Any

import yaml

from tests.compose.compose_file import OUR_IMAGE, ROOT, STAGES, Project, example_project, mounts

CONFIG = ROOT / "services" / "compose" / "prometheus.yml"
PROVISIONING = ROOT / "services" / "compose" / "grafana"
RULES = ROOT / "helm" / "rollstream" / "files" / "rules"
DASHBOARDS = ROOT / "helm" / "rollstream" / "files" / "dashboards"
OBSERVED = example_project(COMPOSE_PROFILES="cpu,observability", ROLLSTREAM_RUN="my-run")


def scrape_config(text: str | None = None) -> dict[str, Any]:
    loaded = yaml.safe_load(text or CONFIG.read_text())
    stages, _ = loaded["scrape_configs"]
    return {**stages, "rule_files": loaded["rule_files"]}


def names_in_the_network(project: Project) -> dict[str, str]:
    """By a name that is looked up: the stage that answers there."""
    found = {}
    for name, service in project.services.items():
        aliases = service.get("networks", {}).get("default", {}).get("aliases", [])
        found |= {known: service["command"][0] for known in (name, *aliases) if service["image"].startswith(OUR_IMAGE)}
    return found


def test_every_stage_is_scraped_by_its_name_whichever_kind_runs() -> None:
    (names,) = scrape_config()["dns_sd_configs"]
    assert sorted(names["names"]) == sorted(STAGES)
    assert names["type"] == "A"
    for kind in ("cpu", "gpu"):
        known = names_in_the_network(example_project(COMPOSE_PROFILES=f"{kind},serve"))
        assert {name: known[name] for name in names["names"]} == {stage: stage for stage in STAGES}


def test_the_stages_serve_where_they_are_scraped() -> None:
    dockerfile = (ROOT / "services" / "Dockerfile").read_text()
    (port,) = re.findall(r"^EXPOSE (\d+)$", dockerfile, re.MULTILINE)
    assert scrape_config()["dns_sd_configs"][0]["port"] == int(port)
    for stage in STAGES:
        assert not {"ROLLSTREAM_HEALTH_PORT", "ROLLSTREAM_HEALTH_HOST"} & OBSERVED.environment(stage).keys()


def test_every_series_carries_its_stage_and_the_name_of_the_run() -> None:
    (command,) = OBSERVED.all_services["prometheus"]["command"]
    words = shlex.split(command)
    assert words[0] == "sed"
    substitution = re.fullmatch(r"s/(\w+)/\$ROLLSTREAM_RUN/", words[1])
    assert substitution is not None
    assert CONFIG.read_text().count(substitution[1]) == 1
    run = OBSERVED.environment("prometheus")["ROLLSTREAM_RUN"]
    labels = scrape_config(CONFIG.read_text().replace(substitution[1], run))["relabel_configs"]
    assert labels == [
        {"source_labels": ["__meta_dns_name"], "target_label": "stage"},
        {"target_label": "run", "replacement": "my-run"},
    ]


def test_kafkas_exporter_is_scraped_and_asks_the_broker_about_this_run_alone() -> None:
    _, job = yaml.safe_load(CONFIG.read_text())["scrape_configs"]
    [[target]] = [targets["targets"] for targets in job["static_configs"]]
    name, _, port = target.partition(":")
    exporter = OBSERVED.all_services[name]
    assert exporter["healthcheck"]["test"][-1] == f"http://127.0.0.1:{port}/healthz"
    given = dict(word.removeprefix("--").split("=", 1) for word in exporter["command"])
    assert given["kafka.server"] == OBSERVED.environment("scorer")["ROLLSTREAM_KAFKA__BOOTSTRAP_SERVERS"]
    for pattern in (given["topic.filter"], given["group.filter"]):
        assert re.search(pattern, "my-run.scored")
        assert not re.search(pattern, "my-run-2.scored")
        assert not re.search(pattern, "not-my-run.scored")


def test_prometheus_reads_the_mounted_settings_and_keeps_its_series_on_its_volume() -> None:
    service = OBSERVED.all_services["prometheus"]
    (command,) = service["command"]
    words = shlex.split(command)
    assert mounts(service)[words[2]] == ("./services/compose/prometheus.yml", True)
    written = words[words.index(">") + 1].rstrip(";")
    assert f"--config.file={written}" in words
    assert f"{written.rpartition('/')[0]}" in service["tmpfs"]
    (kept,) = [word.partition("=")[2] for word in words if word.startswith("--storage.tsdb.path=")]
    assert mounts(service)[kept] == ("prometheus", False)
    assert {"--storage.tsdb.retention.time", "--storage.tsdb.retention.size"} <= {word.split("=")[0] for word in words}


def test_prometheus_takes_the_rules_of_the_chart() -> None:
    (pattern,) = scrape_config()["rule_files"]
    directory, _, glob = pattern.rpartition("/")
    source, _ = mounts(OBSERVED.all_services["prometheus"])[directory]
    assert (ROOT / source).resolve() == RULES
    files = {path.name for path in (ROOT / source).glob(glob)}
    assert files == {"alerts.yaml", "recording.yaml", "thresholds.yaml"} == {path.name for path in RULES.iterdir()}


def test_batches_that_end_at_the_scorers_deadline_are_slow_enough_for_the_alert() -> None:
    settings = tomllib.loads((ROOT / "services" / "compose" / "rollstream.toml").read_text())
    (group,) = yaml.safe_load((RULES / "thresholds.yaml").read_text())["groups"]
    (bound,) = [one["expr"] for one in group["rules"] if one["labels"]["name"] == "scoring_batch_seconds"]
    assert float(bound.removeprefix("vector(").removesuffix(")")) < settings["scorer"]["batch_deadline_seconds"]


def test_grafana_asks_that_prometheus_and_shows_the_dashboards_of_the_chart() -> None:
    (source,) = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yaml").read_text())["datasources"]
    port = OBSERVED.all_services["prometheus"]["ports"][0].rpartition(":")[2]
    # Dashboards find it by its type; addresses of dashboards that people keep name its uid.
    assert (source["type"], source["uid"], source["isDefault"]) == ("prometheus", "prometheus", True)
    assert source["url"] == f"http://prometheus:{port}"
    assert source["jsonData"]["timeInterval"] == yaml.safe_load(CONFIG.read_text())["global"]["scrape_interval"]
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards" / "rollstream.yaml").read_text())["providers"]
    path = provider["options"]["path"]
    mounted, _ = mounts(OBSERVED.all_services["grafana"])[path]
    assert (ROOT / mounted).resolve() == DASHBOARDS
    home = OBSERVED.environment("grafana")["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{path}/rollstream-overview.json"
    assert (DASHBOARDS / "rollstream-overview.json").is_file()


def test_grafana_is_provisioned_from_here_and_has_no_account_to_guess() -> None:
    grafana = OBSERVED.all_services["grafana"]
    source, _ = mounts(grafana)["/etc/grafana/provisioning"]
    assert (ROOT / source).resolve() == PROVISIONING
    given = OBSERVED.environment("grafana")
    assert given["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert given["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert given["GF_AUTH_BASIC_ENABLED"] == "false"
    assert [name for name in given if "PASSWORD" in name] == []
