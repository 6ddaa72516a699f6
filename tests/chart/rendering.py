"""Renders the chart with Helm's own code, as `helm template` does, and finds documents in what it gives."""

import json
from collections.abc import Hashable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import helm_python
import yaml

from rollstream.process.settings.base import STAGES as SETTINGS_OF
from rollstream.process.settings.base import Stage

CHART: Final = Path(__file__).parents[2] / "helm" / "rollstream"
EXAMPLES: Final = tuple(sorted(path.name for path in (CHART / "values-examples").glob("*.yaml")))
STAGES: Final = ("producer", "generator", "scorer", "trainer")
"""Those that a release has by default; ingest is switched on."""
MINIMAL: Final[dict[str, Any]] = {
    "run": "math",
    "kafka": {"bootstrapServers": "kafka:9092"},
    "model": {"path": "/models/start"},
    "config": {"producer": {"environment": "sort_digits"}},
}

Document = dict[str, Any]


class _StrictLoader(yaml.CSafeLoader):
    """Refuses a key that stands twice, of which YAML takes the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1} if len(set(keys)) < len(keys) else set()
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"{twice} stand twice", node.start_mark)
        return super().construct_mapping(node, deep=deep)


@dataclass(frozen=True, slots=True)
class Release:
    """What one release consists of."""

    documents: tuple[Document, ...]
    notes: str
    texts: tuple[str, ...]

    def of_kind(self, kind: str) -> list[Document]:
        """All documents of this kind."""
        return [document for document in self.documents if document["kind"] == kind]

    def one(self, kind: str, suffix: str = "") -> Document:
        """The only document of this kind whose name ends so; tests share it, so copy it before a change."""
        (found,) = [one for one in self.of_kind(kind) if one["metadata"]["name"].endswith(suffix)]
        return found

    def stages(self) -> list[Stage]:
        """The stages that it has pods of; further producers not."""
        found = {labels_of(pod)["app.kubernetes.io/component"] for _, pod in self.pods()}
        return [stage for stage in SETTINGS_OF if stage in found]

    def workload(self, stage: str) -> Document:
        """The Deployment, StatefulSet, LeaderWorkerSet or Job of a stage."""
        kinds = ("Deployment", "StatefulSet", "LeaderWorkerSet", "Job")
        workloads = [one for kind in kinds for one in self.of_kind(kind)]
        (found,) = [one for one in workloads if labels_of(one)["app.kubernetes.io/component"] == stage]
        return found

    def pod(self, stage: str, member: str = "leader") -> Document:
        """The pod template of a stage; of a group that of its `member`, leader or worker."""
        spec = self.workload(stage)["spec"]
        found: Document = spec["template"] if "template" in spec else spec["leaderWorkerTemplate"][f"{member}Template"]
        return found

    def pods(self) -> Iterator[tuple[str, Document]]:
        """Every pod's metadata and spec, by the name of the document that holds it."""
        for document in self.documents:
            where = f"{document['kind']} {document['metadata']['name']}"
            group = document.get("spec", {}).get("leaderWorkerTemplate", {})
            for member in ("leader", "worker"):
                if f"{member}Template" in group:
                    yield f"{where} {member}", group[f"{member}Template"]
            pod = document if document["kind"] == "Pod" else document.get("spec", {}).get("template")
            if pod is not None and "containers" in pod.get("spec", {}):
                yield where, pod


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """The layers, later ones on top, as Helm merges values."""
    result: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            both = isinstance(result.get(name), dict) and isinstance(value, Mapping)
            result[name] = merged(result[name], value) if both else deepcopy(value)
    return result


def at(path: str, value: Any) -> dict[str, Any]:
    """`at("a.b", 1)` is {"a": {"b": 1}}."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return value  # type: ignore[no-any-return]


def example(name: str) -> dict[str, Any]:
    """The values of one of the examples."""
    loaded: dict[str, Any] = yaml.safe_load((CHART / "values-examples" / name).read_text())
    return loaded


@cache
def chart() -> helm_python.Chart:
    """The chart; one that Helm could not load would end here."""
    return helm_python.Chart.load(CHART)


def render(*layers: Mapping[str, Any], release: str = "rl", namespace: str = "training") -> Release:
    """What is made of MINIMAL with these values on top. Raises helm_python.HelmError for what the chart refuses."""
    return render_exactly(merged(MINIMAL, *layers), release=release, namespace=namespace)


def render_exactly(values: Mapping[str, Any], release: str = "rl", namespace: str = "training") -> Release:
    """What is made of these values."""
    return _rendered(json.dumps(values), release, namespace)


@cache
def _rendered(values: str, release: str, namespace: str) -> Release:
    rendered = chart().render(json.loads(values), name=release, namespace=namespace)
    manifests = {name: text for name, text in rendered.items() if name.endswith(".yaml")}
    documents = [one for text in manifests.values() for one in yaml.load_all(text, _StrictLoader) if one is not None]
    return Release(
        documents=tuple(documents), notes=rendered["rollstream/templates/NOTES.txt"], texts=tuple(rendered.values())
    )


def labels_of(document: Document) -> dict[str, str]:
    """Its labels."""
    labels: dict[str, str] = document["metadata"]["labels"]
    return labels


def container_of(pod: Document, name: str) -> Document:
    """The container of this name."""
    containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    (found,) = [one for one in containers if one["name"] == name]
    return found
