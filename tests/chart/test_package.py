"""What the packaged chart holds, and that what is made from other files is up to date."""

import json
import tarfile
import tomllib
from pathlib import Path

import helm_python
import jsonschema
import pytest
import yaml

from helm import chart_readme, chart_schema
from rollstream.process.settings.base import key_tables
from tests.chart.rendering import CHART, EXAMPLES

PROJECT = tomllib.loads((CHART.parents[1] / "pyproject.toml").read_text())["project"]
METADATA = yaml.safe_load((CHART / "Chart.yaml").read_text())


def test_the_package_holds_the_schema_and_the_files_and_renders(tmp_path: Path) -> None:
    with tarfile.open(helm_python.package(CHART, destination=tmp_path)) as archive:
        names = {name.removeprefix("rollstream/") for name in archive.getnames()}
        archive.extractall(tmp_path / "out", filter="data")
    wanted = {"Chart.yaml", "values.yaml", "values.schema.json", "README.md", "UPGRADING.md", "templates/NOTES.txt"}
    wanted |= {str(path.relative_to(CHART)) for path in (CHART / "files").rglob("*") if path.is_file()}
    wanted |= {str(path.relative_to(CHART)) for path in (CHART / "runbooks").glob("*.md")}
    assert wanted <= names
    assert not [name for name in names if name.startswith("values-examples")]
    chart = helm_python.Chart.load(tmp_path / "out" / "rollstream")
    with pytest.raises(helm_python.HelmValuesError, match="additional properties 'rum' not allowed"):
        chart.render({"rum": "typo"}, name="a")


def test_the_schema_is_made_of_the_values_and_of_the_settings_of_the_stages() -> None:
    committed = json.loads(chart_schema.SCHEMA_FILE.read_text())
    assert committed == chart_schema.chart_schema(), "run `python -m helm.chart_schema`"
    # Helm reads patterns as Go does, so Python's opinion of them does not count.
    jsonschema.Draft7Validator.check_schema(committed, format_checker=jsonschema.FormatChecker(formats=()))


def test_the_schema_knows_every_key_of_a_runs_file() -> None:
    config = chart_schema.chart_schema()["properties"]["config"]
    shared, *_ = (tables := key_tables()).values()
    assert set(config["properties"]) == set(shared) | {stage for stage in tables if stage}
    for stage, keys in tables.items():
        table = config["properties"][stage] if stage else config
        assert set(keys) <= set(table["properties"])
        assert table["additionalProperties"] is False


def test_no_object_of_the_schema_takes_keys_that_it_does_not_name_but_those_that_are_free() -> None:
    free: set[str] = set()

    def walk(schema: object, path: str) -> None:
        if not isinstance(schema, dict) or schema.get("type") != "object":
            return
        if "properties" in schema:
            assert schema["additionalProperties"] is False, path
            for name, below in schema["properties"].items():
                walk(below, f"{path}.{name}".lstrip("."))
        elif "patternProperties" in schema:
            assert schema["additionalProperties"] is False, path
        elif isinstance(schema.get("additionalProperties"), dict):
            # Names are the user's; what stands below each is not.
            walk(schema["additionalProperties"], f"{path}.NAME")
        elif "additionalProperties" not in schema:
            free.add(path.rpartition(".")[2])

    walk(chart_schema.chart_schema(), "")
    assert free == {
        "global",
        "affinity",
        "dnsConfig",
        "lifecycle",
        "strategy",
        "updateStrategy",
        "behavior",
        "fallback",
    }


def test_the_readme_has_the_values_as_they_are() -> None:
    readme = chart_readme.README.read_text()
    assert readme == chart_readme.with_table(readme), "run `python -m helm.chart_readme`"


def test_every_value_is_explained() -> None:
    unexplained = {".".join(one.path) for one in chart_readme.values() if not one.meaning}
    assert unexplained == {"producer.resources", "generator.resources", "generator.shmSize", "scorer.resources",
                           "ingest.resources", "trainer.resources", "trainer.shmSize"}  # fmt: skip
    every_stage = {one.path[1] for one in chart_readme.values() if one.path[0] == "stageDefaults"}
    assert {path.split(".")[1] for path in unexplained} <= every_stage


def test_the_versions_are_those_of_the_project() -> None:
    assert METADATA["appVersion"] == PROJECT["version"]
    assert METADATA["kubeVersion"] == ">=1.29.0-0"
    assert f"## {METADATA['version']}" in (CHART / "UPGRADING.md").read_text()


def test_every_example_says_what_it_is_for() -> None:
    for name in EXAMPLES:
        assert (CHART / "values-examples" / name).read_text().startswith("# ")
