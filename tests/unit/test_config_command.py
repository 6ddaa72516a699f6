"""`rollstream config`: the list of keys comes from the settings classes, so it can't be out of date."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollstream.cli.main import cli
from rollstream.process.settings.base import STAGES, StageSettings, settings_class

FILE = """run = "demo"
[kafka]
bootstrap_servers = "broker:9092"
[producer]
environment = "sort_digits"
"""


def shown(*words: str) -> str:
    result = CliRunner().invoke(cli, ["config", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def listed(*words: str) -> dict[tuple[str, str], dict[str, object]]:
    return {(row["table"], row["name"]): row for row in json.loads(shown(*words, "--json"))}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "rollstream.toml"
    path.write_text(FILE)
    return path


def test_every_key_of_every_stage_is_listed_with_its_meaning() -> None:
    keys = listed()
    assert {name for table, name in keys if table == "shared"} == set(StageSettings.model_fields)
    for stage in STAGES:
        own = {name for name in settings_class(stage).model_fields if name not in StageSettings.model_fields}
        assert {name for table, name in keys if table == stage} == own
    assert [key for key, row in keys.items() if not row["meaning"]] == []


@pytest.mark.parametrize(
    ("table", "name", "facts"),
    [
        ("shared", "run", {"type": "text", "is_required": True, "variable": "ROLLSTREAM_RUN"}),
        ("shared", "health_port", {"type": "whole number", "bound": "at least 0, at most 65535", "default": 0}),
        ("shared", "weight_store", {"type": "text", "default": "weights"}),
        ("shared", "max_policy_lag", {"unit": "steps"}),
        ("shared", "redis_url", {"is_secret": True, "default": None}),
        ("kafka", "security", {"type": "table of secret texts", "is_secret": True, "is_open": True}),
        ("kafka", "group_protocol", {"bound": "one of consumer, classic", "default": "consumer",
         "variable": "ROLLSTREAM_KAFKA__GROUP_PROTOCOL"}),
        ("producer", "share", {"type": "whole number", "unit": "groups", "bound": "at least 1, at most 100000",
         "default": 40}),
        ("producer.sampling", "stop", {"type": "list of texts"}),
        ("generator.engine", "model_path", {"type": "path", "is_required": True}),
        ("generator.engine", "kv_cache_bytes", {"unit": "bytes", "bound": "at least 1048576"}),
        ("generator.engine", "enforce_eager", {"type": "true or false", "default": False}),
        ("scorer", "sample_deadline_seconds", {"type": "number", "unit": "seconds", "bound": "above 0"}),
        ("trainer.learning", "clip_low", {"bound": "above 0, below 1", "default": None}),
    ],
)  # fmt: skip
def test_a_key_is_listed_with_type_unit_bound_and_default(table: str, name: str, facts: dict[str, object]) -> None:
    assert listed()[(table, name)].items() >= facts.items()


def test_one_table_is_shown_with_the_tables_in_it_and_an_unknown_one_is_refused() -> None:
    assert {table for table, _ in listed("--table", "trainer")} == {"trainer", "trainer.learning"}
    assert {table for table, _ in listed("--table", "kafka")} == {"kafka"}
    text = shown("--table", "trainer.learning")
    assert "[trainer.learning]" in text
    assert "number, at least 0, default 1e-06" in text
    assert "AdamW's, after warm-up" in text
    assert "no table trainers; there are shared, kafka, " in str(
        CliRunner().invoke(cli, ["config", "--table", "trainers"]).exception
    )


def test_a_file_without_mistakes_is_fine_for_the_stages_that_it_has(config: Path) -> None:
    assert shown("--check", str(config)) == f"{config} is fine for producer\n"


def test_check_without_a_name_takes_the_runs_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "elsewhere.toml"
    config.write_text('run = "math"\n')
    monkeypatch.setenv("ROLLSTREAM_CONFIG", str(config))
    assert shown("--check").startswith(f"{config} is fine")
    monkeypatch.delenv("ROLLSTREAM_CONFIG")
    monkeypatch.setenv("ROLLSTREAM_RUN", "math")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["config", "--check"])
    assert "there is no file to check" in str(result.exception)


def test_mistakes_are_told_for_all_tables_each_with_its_line(config: Path) -> None:
    config.write_text(f'{FILE}shre = 3\n[scorer]\nnum_processes = 0\n[kafkas]\nx = 1\n[trainer]\nmodel_path = "m"\n')
    result = CliRunner().invoke(cli, ["config", "--check", str(config)])
    assert result.exit_code == 78
    assert result.stdout.splitlines() == [
        f"{config} line 9: kafkas: no such key; did you mean kafka?",
        f"{config} line 6: producer.shre: no such key; did you mean share?",
        f"{config} line 8: scorer.num_processes: must be greater than or equal to 1, got 0",
    ]
    as_json = CliRunner().invoke(cli, ["config", "--check", str(config), "--json"])
    assert len(json.loads(as_json.stdout)["problems"]) == 3


def test_the_values_that_apply_are_shown_with_where_they_come_from(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLSTREAM_GROUP_SIZE", "5")
    rows = {
        (row["table"], row["name"]): (row["value"], row["origin"])
        for row in json.loads(shown("--resolved", "--config", str(config), "--json"))
    }
    assert rows[("shared", "run")] == ("demo", f"{config} line 1")
    assert rows[("kafka", "bootstrap_servers")] == ("broker:9092", f"{config} line 3")
    assert rows[("producer", "group_size")] == (5, "ROLLSTREAM_GROUP_SIZE")
    assert rows[("producer", "share")] == (40, "default")
    assert rows[("producer", "sampling")] == (None, "default")
    assert not any(table == "trainer" for table, _ in rows)
    assert "broker:9092" in shown("--resolved", "--config", str(config), "--table", "kafka")
