"""The table `[tracing]`: what it takes, and that no mistake shows a key."""

import traceback
from pathlib import Path

import pytest

from rollstream.process.settings.base import STAGES, StageSettings, settings_class
from rollstream.process.settings.run_file import RunFile
from rollstream.process.tracing.settings import TracingSettings
from rollstream.schemas.errors import ConfigurationError

SECRET = "hunter2hunter2"
TABLES = '[producer]\nenvironment = "sort_digits"\n[generator.engine]\nmodel_path = "m"\n[trainer]\nmodel_path = "m"\n'
WRONG = {
    "a password in the endpoint": f'endpoint = "https://me:{SECRET}@collector"',
    "a key in the endpoint's query": f'endpoint = "https://collector/otlp?key={SECRET}"',
    "an endpoint without a scheme": f'endpoint = "{SECRET}@collector:4318"',
    "another scheme": f'endpoint = "grpc://{SECRET}@collector:4317"',
    "a header with a second line": f'headers = {{ authorization = "{SECRET}\\nX-Other: 1" }}',
    "a header that is not ASCII": f'headers = {{ authorization = "{SECRET}é" }}',
    "a header with a space at its end": f'headers = {{ authorization = "{SECRET} " }}',
    "a header whose name is none": f'headers = {{ "{SECRET}:" = "x" }}',
    "a list of headers": f'headers = ["{SECRET}"]',
    "a text for the headers": f'headers = "{SECRET}"',
    "a ratio that is none": f'headers = {{ authorization = "{SECRET}" }}\nsample_ratio = 2',
}


def load(tmp_path: Path, lines: str) -> StageSettings:
    config = tmp_path / "rollstream.toml"
    config.write_text(f'run = "demo"\n[tracing]\n{lines}\n{TABLES}')
    return settings_class("scorer").load(config)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_mistake_is_refused_at_its_place_and_shows_no_key(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"rollstream\.toml line \d: tracing\.") as raised:
        load(tmp_path, WRONG[wrong])
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_every_stage_has_it_and_it_is_off_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "rollstream.toml"
    config.write_text(f'run = "demo"\n{TABLES}[scorer]\ntracing = {{ sample_ratio = 0.5 }}\n')
    for stage in STAGES:
        settings, problems = settings_class(stage).checked(RunFile.read(config))
        assert settings is not None, problems
        assert not settings.tracing.is_on
        assert settings.tracing.sample_ratio == (0.5 if stage == "scorer" else 1.0)
    monkeypatch.setenv("ROLLSTREAM_TRACING__ENDPOINT", "http://collector:4318")
    monkeypatch.setenv("ROLLSTREAM_TRACING__HEADERS__X-KEY", SECRET)
    assert settings_class("scorer").load(config).tracing.headers["x-key"].get_secret_value() == SECRET


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("https://collector/", "https://collector/v1/traces"),
        ("https://vendor.example.org/otlp", "https://vendor.example.org/otlp/v1/traces"),
        ("https://vendor.example.org/v1/traces", "https://vendor.example.org/v1/traces"),
    ],
)
def test_the_path_for_traces_is_added_once(endpoint: str, url: str) -> None:
    assert TracingSettings(endpoint=endpoint).url == url
