"""A real Prometheus on this machine, with the settings and rules that docker-compose.yml gives to its own."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from rollstream.local.ports import free_ports
from tests.harness.http_servers import serving
from tests.harness.processes import ROOT

RULES: Final = ROOT / "helm" / "rollstream" / "files" / "rules"
EVERY_SECONDS: Final = 1
"""Between two scrapes, and between two evaluations of the rules: a test does not last for hours."""
_SETTINGS: Final = ROOT / "services" / "compose" / "prometheus.yml"
_NAME_IN_SETTINGS: Final = "NAME_OF_THE_RUN"


@contextmanager
def a_prometheus(program: str, directory: Path, run: str, ports: Mapping[str, int]) -> Iterator[str]:
    """The address of a server that scrapes the stages of this run on `ports`."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = directory / "prometheus.yml"
    settings.write_text(json.dumps(settings_of(run, ports)))  # JSON is YAML
    address = f"127.0.0.1:{free_ports(1)[0]}"
    command = [
        program, f"--config.file={settings}", f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={address}",
    ]  # fmt: skip
    with serving(command, f"http://{address}/-/ready", log=directory / "log", env={}):
        yield f"http://{address}"


def settings_of(run: str, ports: Mapping[str, int]) -> dict[str, Any]:
    """The compose file's settings. Only what containers have by their network is given by hand: who is where."""
    settings: dict[str, Any] = yaml.safe_load(_SETTINGS.read_text().replace(_NAME_IN_SETTINGS, run))
    settings["global"] = dict.fromkeys(settings["global"], f"{EVERY_SECONDS}s")
    settings["rule_files"] = [str(RULES / Path(pattern).name) for pattern in settings["rule_files"]]
    # Without Kafka's exporter, which runs in a container alone.
    settings["scrape_configs"] = [job] = settings["scrape_configs"][:1]
    (found_by_name,) = job.pop("dns_sd_configs")
    job["static_configs"] = [
        {"targets": [f"127.0.0.1:{ports[name]}"], "labels": {"__meta_dns_name": name}}
        for name in found_by_name["names"]
        if name in ports
    ]
    return settings
