"""What a rendered container's stage reads: its file and its environment, through the stage's own settings class."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import SecretStr

from rollstream.process.settings.base import Stage, StageSettings, settings_class
from tests.chart.rendering import Document, Release, container_of

POD_NAME: Final = "the-pod-0"
POD_IP: Final = "10.0.0.7"
# What the controller of a LeaderWorkerSet sets in every container.
IN_GROUP: Final = {"LWS_LEADER_ADDRESS": "the-pod-0.the-pod.training", "LWS_GROUP_SIZE": "2"}


def secret_of(secret: str, key: str) -> str:
    """The value that a secret holds under a key, in these tests."""
    return f"{secret}/{key}'\"\\$(X) #"


def settings_of(
    release: Release,
    stage: Stage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    secrets: Mapping[str, str] = {},
    member: str = "leader",
) -> StageSettings:
    """The settings as the stage's container finds them. `secrets`: values of `secret/key` other than `secret_of`.

    `member`: which pod of a group, where the stage has groups.
    """
    pod = release.pod(stage, member)
    container = container_of(pod, stage)
    in_group = IN_GROUP | {"LWS_WORKER_INDEX": "0" if member == "leader" else "1"}
    for name in [name for name in os.environ if name.startswith("ROLLSTREAM_")]:
        monkeypatch.delenv(name)
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], _value(variable, secrets, in_group))
    file = tmp_path / "rollstream.toml"
    file.write_text(_mounted(release, pod, container, os.environ["ROLLSTREAM_CONFIG"]))
    return settings_class(stage).load(file)


def _value(variable: Document, secrets: Mapping[str, str], in_group: Mapping[str, str]) -> str:
    if "value" in variable:
        text = str(variable["value"])
        return in_group[text[2:-1]] if text.startswith("$(") else text
    source = variable["valueFrom"]
    if "fieldRef" in source:
        return {"metadata.name": POD_NAME, "status.podIP": POD_IP}[source["fieldRef"]["fieldPath"]]
    name, key = source["secretKeyRef"]["name"], source["secretKeyRef"]["key"]
    return secrets.get(f"{name}/{key}", secret_of(name, key))


def _mounted(release: Release, pod: Document, container: Document, path: str) -> str:
    """The text that the container finds at `path`, from the config map that is mounted there."""
    (mount,) = [one for one in container["volumeMounts"] if path.startswith(f"{one['mountPath']}/")]
    (volume,) = [one for one in pod["spec"]["volumes"] if one["name"] == mount["name"]]
    (found,) = [one for one in release.of_kind("ConfigMap") if one["metadata"]["name"] == volume["configMap"]["name"]]
    text: str = found["data"][path.removeprefix(f"{mount['mountPath']}/")]
    return text


def plain(value: Any) -> Any:
    """Settings as JSON types, with the secrets."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def found_at(settings: StageSettings, path: str) -> Any:
    """The value of `kafka.bootstrap_servers`, for example. Quote a name with dots: `kafka.security."sasl.username"`."""
    above, _, quoted = path.partition('."')
    value = plain(settings.model_dump())
    for name in [*above.split("."), *([quoted.removesuffix('"')] if quoted else [])]:
        value = value[name]
    return value
