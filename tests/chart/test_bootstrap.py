"""The Job that makes the topics, the containers that wait for them, and the pod of `helm test`."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rollstream.cli.main import cli
from tests.chart.rendering import STAGES, Document, Release, at, container_of, example, render
from tests.harness.small_registry import a_small_registry

WITHOUT_HOOKS = at("bootstrapJob.useHelmHooks", False)
REGISTRY = at("schemaRegistry.url", "http://registry:8081")
SECRET_REGISTRY = at("schemaRegistry", {"existingSecret": "registry", "urlKey": "address"})


def annotations(document: Document) -> dict[str, str]:
    return document["metadata"].get("annotations", {})  # type: ignore[no-any-return]


def commands(release: Release) -> list[list[str]]:
    spec = release.workload("bootstrap")["spec"]["template"]["spec"]
    return [one["args"] for one in [*spec.get("initContainers", []), *spec["containers"]]]


def test_without_hooks_it_is_a_job_like_any_other_whose_name_changes_with_what_it_does() -> None:
    def name(*values: dict[str, Any]) -> str:
        job = render(WITHOUT_HOOKS, *values).workload("bootstrap")
        assert "helm.sh/hook" not in annotations(job)
        assert job["spec"]["ttlSecondsAfterFinished"] == 86400
        assert job["spec"]["template"]["spec"]["serviceAccountName"] == "rl-rollstream"
        return str(job["metadata"]["name"])

    assert name() == name(at("generator.replicas", 2))
    names = [name(), name(at("bootstrapJob.partitions", 8)), name(at("image.tag", "2")), name(at("run", "b")),
             name(at("kafka.bootstrapServers", "c:9092"))]  # fmt: skip
    assert len(set(names)) == len(names)
    release = render(WITHOUT_HOOKS)
    assert [one for one in release.of_kind("ConfigMap") if "bootstrap" in one["metadata"]["name"]] == []


def test_it_makes_the_topics_and_registers_the_schemas_where_there_is_a_registry() -> None:
    topics = ["topics", "create", "--partitions", "16"]
    assert commands(render()) == [topics]
    register = ["schemas", "register"]
    assert commands(render(REGISTRY)) == [topics, register]
    assert commands(render(SECRET_REGISTRY)) == [topics, register]
    assert commands(render(REGISTRY, at("bootstrapJob.registerSchemas", False))) == [topics]
    assert commands(render(at("bootstrapJob.partitions", 3)))[0][-1] == "3"


def test_it_registers_with_the_password_of_the_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = render(SECRET_REGISTRY)
    variables = container_of(release.pod("bootstrap"), "bootstrap")["env"]
    (source,) = [one["valueFrom"] for one in variables if one["name"] == "ROLLSTREAM_REGISTRY_URL"]
    assert source == {"secretKeyRef": {"name": "registry", "key": "address"}}
    (file,) = [one["value"] for one in variables if one["name"] == "ROLLSTREAM_CONFIG"]
    mounts = container_of(release.pod("bootstrap"), "bootstrap")["volumeMounts"]
    assert {"name": "run", "mountPath": str(Path(file).parent), "readOnly": True} in mounts
    config = tmp_path / Path(file).name
    config.write_text(release.one("ConfigMap", "-bootstrap")["data"][config.name])
    with a_small_registry("key:hunter2") as registry:
        monkeypatch.setenv("ROLLSTREAM_CONFIG", str(config))
        monkeypatch.setenv("ROLLSTREAM_REGISTRY_URL", registry.url.replace("://", "://key:hunter2@"))
        result = CliRunner().invoke(cli, commands(release)[1])
        assert result.exit_code == 0, result.output
        assert "math.prompts-value" in registry.subjects


@pytest.mark.parametrize(
    "values",
    [
        {},
        example("strimzi.yaml"),
        {name: {"enabled": False} for name in STAGES if name != "producer"} | at("model.path", ""),
    ],
    ids=["minimal", "strimzi", "producer alone"],
)
def test_the_command_that_the_test_runs_finds_the_rendered_file_fine(values: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "rollstream.toml"
    file.write_text(render(values).one("ConfigMap", "rl-rollstream")["data"]["rollstream.toml"])
    result = CliRunner().invoke(cli, ["config", "--check", str(file)])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("values", [{}, SECRET_REGISTRY, example("keda.yaml")], ids=["minimal", "registry", "keda"])
def test_the_command_knows_every_argument_that_a_container_is_started_with(values: dict[str, Any]) -> None:
    asked = {
        tuple(container["args"])
        for _, pod in render(values).pods()
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    }
    assert len(asked) >= 7
    for arguments in asked:
        # With --help everything before it is parsed, and nothing is done.
        result = CliRunner().invoke(cli, [*arguments, "--help"])
        assert result.exit_code == 0, result.output
        for option in (word for word in arguments if word.startswith("--")):
            assert option in result.output
