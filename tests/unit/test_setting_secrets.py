"""No value of a secret is in any message, whatever is mistyped around it."""

import json
import logging
import socket
import traceback
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollstream.cli.main import cli
from rollstream.process.fleet import Fleet
from rollstream.process.settings.base import STAGES, StageSettings, settings_class
from rollstream.process.settings.run_file import RunFile
from rollstream.schemas.errors import ConfigurationError, RegistryError
from rollstream.views.configuration import problems

SECRET = "hunter2"
TABLES = """
[producer]
environment = "sort_digits"
[generator.engine]
model_path = "model"
[scorer]
[trainer]
model_path = "model"
"""
WRONG_FILES = {
    "a mistyped table": f'[kafka.securty]\n"sasl.password" = "{SECRET}"',
    "a mistyped table at the top": f'[kafak.security]\n"sasl.password" = "{SECRET}"',
    "a table without its table": f'[security]\n"sasl.password" = "{SECRET}"',
    "a text for the table": f'[kafka]\nsecurity = "{SECRET}"',
    "a list for the table": f'[kafka]\nsecurity = ["{SECRET}"]',
    "a text for the table above": f'kafka = "{SECRET}"',
    "a list for the table above": f'kafka = [{{security = "{SECRET}"}}]',
    "a name without quotes": f'[kafka.security]\nsasl.password = "{SECRET}"',
    "a name that is not for security": f'[kafka.security]\npassword = "{SECRET}"',
    "a table for the password": f'[kafka.security]\n"sasl.password" = {{value = "{SECRET}"}}',
    "a list for the password": f'[kafka.security]\n"sasl.password" = ["{SECRET}"]',
    "the password as protocol": f'[kafka.security]\n"security.protocol" = "{SECRET}"',
    "a stray key": f'password = "{SECRET}"',
    "a stray key of kafka": f'[kafka]\nsasl_password = "{SECRET}"',
    "a stray key of a stage": f'[producer]\nenvironment = "sort_digits"\npassword = "{SECRET}"',
    "a text for a stage": f'producer = "{SECRET}"\ngenerator = "{SECRET}"\nscorer = "{SECRET}"\ntrainer = "{SECRET}"',
    "a Redis URL without a scheme": f'redis_url = ":{SECRET}@localhost:6379"',
    "a Redis URL of another scheme": f'redis_url = "http://:{SECRET}@localhost"',
    "a Redis URL with a mistyped scheme": f'redis_url = "redis:/:{SECRET}@localhost"',
    "a Redis URL with an @ in the password": f'redis_url = "redis:/me:p@{SECRET}@localhost"',
    "a Redis URL with a / in the password": f'redis_url = "redis://:p/{SECRET}@localhost"',
    "a Redis URL with a # in the password": f'redis_url = "redis://:p#{SECRET}@localhost"',
    "a Redis URL with the password as port": f'redis_url = "redis://localhost:{SECRET}"',
    "a Redis URL in a list": f'redis_url = ["redis://:{SECRET}@localhost"]',
    "a Redis URL in a table": f'redis_url = {{url = "redis://:{SECRET}@localhost"}}',
    "a mistyped key of Redis": f'redis_ulr = "redis://:{SECRET}@localhost"',
    "a registry URL without a scheme": f'registry_url = "me:{SECRET}@localhost"',
    "a registry URL with the password as port": f'registry_url = "https://me:{SECRET}"',
    "a file that is no TOML": f'[kafka.security]\n"sasl.password" = {SECRET}',
    "a password in a wrong list of brokers": f'[kafka]\nbootstrap_servers = ["SASL_SSL://me:{SECRET}@broker"]',
    "a key for the agent of every prompt": (
        f'[producer]\nenvironment = "sort_digits"\n[producer.agent.options]\napi_key = "{SECRET}"\n'
        '[generator.engine]\nmodel_path = "model"\n[trainer]\nmodel_path = "model"'
    ),
    "options of an environment that are no text": f'[environments.sort_digits]\nkey = ["{SECRET}"]',
    "a list for an option": f'[environments.sort_digits.options]\nkey = ["{SECRET}"]',
    "a table for an option": f'[agents.debate.options]\nkey = {{value = "{SECRET}"}}',
    "a text for the options": f'[agents.debate]\noptions = "{SECRET}"',
    "a mistyped table of options": f'[agents.debate]\noption = {{key = "{SECRET}"}}',
    "a text for an environment": f'[environments]\nsort_digits = "{SECRET}"',
}  # fmt: skip
WRONG_VARIABLES = {
    "broken JSON": ("ROLLSTREAM_KAFKA", f'{{"security": {{"sasl.password": "{SECRET}"'),
    "broken JSON below": ("ROLLSTREAM_KAFKA__SECURITY", f'{{"sasl.password": "{SECRET}"'),
    "JSON of another kind": ("ROLLSTREAM_KAFKA", f'["{SECRET}"]'),
    "JSON with a stray key": ("ROLLSTREAM_KAFKA", f'{{"password": "{SECRET}"}}'),
    "JSON with a mistyped table": ("ROLLSTREAM_KAFKA", f'{{"securty": {{"sasl.password": "{SECRET}"}}}}'),
    "a text for the table": ("ROLLSTREAM_KAFKA__SECURITY", SECRET),
    "a name that is not for security": ("ROLLSTREAM_KAFKA__SECURITY__SASL_PASSWORD", SECRET),
    "a mistyped table": ("ROLLSTREAM_KAFKA__SECURTY__X", SECRET),
    "a mistyped variable": ("ROLLSTREAM_REDIS_ULR", f"redis://:{SECRET}@localhost"),
    "a bad Redis URL": ("ROLLSTREAM_REDIS_URL", f":{SECRET}@localhost"),
    "a list of options that is broken": ("ROLLSTREAM_ENVIRONMENTS", f'{{"x": {{"key": "{SECRET}"'),
}


def everything_said(settings: type[StageSettings], config: Path) -> str:
    """The message of the error, and its traceback with all causes."""
    with pytest.raises(ConfigurationError) as raised:
        settings.load(config)
    return str(raised.value) + "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("wrong", WRONG_FILES)
def test_no_secret_in_a_mistyped_file_is_ever_shown(wrong: str, tmp_path: Path) -> None:
    config = tmp_path / "rollstream.toml"
    top = f'run = "demo"\n{WRONG_FILES[wrong]}\n'
    config.write_text(top if "[producer]" in top or "\nproducer" in top else top + TABLES)
    refused = [name for name in STAGES if settings_class(name).checked(file_of(config))[0] is None]
    assert refused, "nothing was refused"
    for name in refused:
        assert SECRET not in everything_said(settings_class(name), config)
    for words in (
        ["--check", str(config)],
        ["--check", str(config), "--json"],
        ["--resolved", "--config", str(config)],
    ):
        result = CliRunner().invoke(cli, ["config", *words])
        assert result.exit_code != 0
        assert SECRET not in result.output + str(result.exception)


@pytest.mark.parametrize("wrong", WRONG_VARIABLES)
def test_no_secret_in_a_mistyped_variable_is_ever_shown(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "rollstream.toml"
    config.write_text(f'run = "demo"\n{TABLES}')
    name, value = WRONG_VARIABLES[wrong]
    monkeypatch.setenv(name, value)
    said = everything_said(settings_class("producer"), config)
    assert SECRET not in said
    assert f"environment variable {name}" in said


def test_the_values_that_apply_are_shown_and_logged_without_secrets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "rollstream.toml"
    config.write_text(
        f'run = "demo"\nredis_url = "redis://me:p@{SECRET}@host:6379/0?password={SECRET}"\n'
        f'registry_url = "https://me:{SECRET}@registry"\n[kafka.security]\n"sasl.password" = "{SECRET}"\n'
        f'[environments.judged.options]\napi_key = "{SECRET}"\n'
        f'[agents.debate]\npath = "a.Debate"\noptions = {{key = "{SECRET}"}}\n{TABLES}'
    )
    with caplog.at_level(logging.INFO):
        settings_class("producer").load(config).log_resolved()
    result = CliRunner().invoke(cli, ["config", "--resolved", "--json", "--config", str(config)])
    assert SECRET not in caplog.text + result.output
    values = {(row["table"], row["name"]): row["value"] for row in json.loads(result.stdout)}
    assert values[("shared", "redis_url")] == "redis://***@host:6379/0?***"
    assert values[("kafka", "security")] == {"sasl.password": "**********"}
    assert values[("shared", "environments")] == {"judged": {"path": None, "options": {"api_key": "**********"}}}
    assert values[("shared", "agents")] == {"debate": {"path": "a.Debate", "options": {"key": "**********"}}}


def test_servers_that_do_not_answer_are_named_without_the_password(
    caplog: pytest.LogCaptureFixture, unused_port: int
) -> None:
    result = CliRunner().invoke(
        cli, ["schemas", "register", "--run", "demo", "--url", f"http://me:{SECRET}@127.0.0.1:{unused_port}"]
    )
    assert isinstance(result.exception, RegistryError), result.output
    assert f"http://***@127.0.0.1:{unused_port}" in str(result.exception)
    assert Fleet(f"redis://:{SECRET}@127.0.0.1:{unused_port}", "demo").members() == {}
    assert "Redis is gone" in caplog.text
    assert SECRET not in caplog.text + "".join(traceback.format_exception(result.exception))


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


def file_of(config: Path) -> RunFile:
    try:
        return RunFile.read(config)
    except ConfigurationError:
        return RunFile(path=config, document={"not": "TOML"})


def test_a_file_without_mistakes_is_refused_by_nobody(tmp_path: Path) -> None:
    config = tmp_path / "rollstream.toml"
    config.write_text(f'run = "demo"\n{TABLES}')
    assert problems(RunFile.read(config)) == []
