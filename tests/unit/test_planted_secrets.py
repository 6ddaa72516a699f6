"""A secret in the settings is in nothing that shows them, and in no error, whatever is mistyped around it.

Every setting that may hold a secret is found by its type. A new one without a case here fails a test.
"""

import json
import logging
import socket
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from click.testing import CliRunner, Result

from rollstream.cli.main import cli
from rollstream.process.fleet import Fleet
from rollstream.process.settings.base import STAGES, Stage, StageSettings, settings_class
from rollstream.process.settings.errors import PREFIX, variable_name
from rollstream.process.settings.keys import Key, keys_of
from rollstream.process.settings.run_file import RunFile
from rollstream.schemas.errors import ConfigurationError, RegistryError
from tests.harness.planted import a_numeric_secret, a_plain_secret, a_private_key, a_secret, assert_absent, in_url

SECRET, KEY, NUMBER, PEM = a_secret(), a_plain_secret(), a_numeric_secret(), a_private_key()
PLANTED = {"secret": SECRET, "key": KEY, "number": str(NUMBER), "private key": PEM}
WITH_PASSWORD = f"me:{in_url(SECRET)}@host"
# What each setting with secrets holds here.
HOLDING: dict[str, Any] = {
    "kafka.security": {
        "security.protocol": "SASL_SSL", "sasl.username": "me", "sasl.password": SECRET, "ssl.key.password": KEY,
        "ssl.key.pem": PEM,
    },
    "storage.options": {"endpoint": "https://s3", "secret_access_key": SECRET, "session_token": KEY},
    "tracing.headers": {"authorization": f"Bearer {KEY}"},
    "environments.NAME.options": {"api_key": SECRET},
    "agents.NAME.options": {"api_key": KEY},
    "tools.NAME.options": {"api_key": KEY},
    "engine.http.api_key": KEY,
    "engines.NAME.http.api_key": KEY,
    "serve.subject_secret": KEY,
    "serve.keys.NAME.key": KEY,
    "keys.NAME.key": KEY,
    "registry_url": f"https://{WITH_PASSWORD}:8081",
    "redis_url": f"rediss://{WITH_PASSWORD}:6379/0?ssl_ca_certs={KEY}",
}  # fmt: skip
# Where a person may put an address with a password, which is refused unseen.
REFUSING = ("kafka.bootstrap_servers", "weight_store", "checkpoints", "tracing.endpoint", "tools.NAME.url")
ADDRESSES = (
    f"redis://{WITH_PASSWORD}:6379/0", f"https://host/path?signature={KEY}", f"{WITH_PASSWORD}:9092",
    f"SASL_SSL://{WITH_PASSWORD}:9092",
)  # fmt: skip
OWN_TABLES = {"engine": "generator", "engines": "generator", "serve": "generator", "keys": "ingest"}
TABLES: dict[str, dict[str, Any]] = {
    "producer": {"environment": "sort_digits"},
    "ingest": {},
    "generator": {"engine": {"model_path": "model"}},
    "scorer": {},
    "trainer": {"model_path": "model"},
}
NEEDED: dict[str, Any] = {"run": "demo", **TABLES}

Change = Callable[[dict[str, Any]], None]


def place_of(key: Key | str) -> tuple[str, ...]:
    return tuple((key if isinstance(key, str) else ".".join(key.path)).replace("NAME", "mine").split("."))


def put(document: dict[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
    """`document` with `value` at a place; what is a stage's own lies in its table."""
    place = (OWN_TABLES[place[0]], *place) if place[0] in OWN_TABLES else place
    copy: dict[str, Any] = json.loads(json.dumps(document))
    table = copy
    for name in place[:-1]:
        table = table.setdefault(name, {})
    table[place[-1]] = value
    return copy


def everything_planted() -> dict[str, Any]:
    document = NEEDED
    for key, value in HOLDING.items():
        document = put(document, place_of(key), value)
    others = {
        ("environments", "mine", "path"): "a.B",
        ("agents", "mine", "path"): "a.B",
        ("tools", "mine", "kind"): "python",
        ("tools", "mine", "path"): "a.B",
        ("engines", "mine", "kind"): "openai_http",
        ("engines", "mine", "http", "urls"): ["http://127.0.0.1:8000"],
        ("engines", "mine", "http", "model"): "scribe",
        ("serve", "keys", "mine", "tenant"): "acme",
        ("keys", "mine", "tenant"): "acme",
    }
    for place, value in others.items():
        document = put(document, place, value)
    return document


def as_variables(document: Mapping[str, Any]) -> dict[str, str]:
    """The planted part of the document as environment variables: of tables as JSON."""
    planted = {name: value for name, value in document.items() if name not in NEEDED}
    return {variable_name([name]): value if isinstance(value, str) else json.dumps(value)
            for name, value in planted.items()}  # fmt: skip


def commands_on(config: Path) -> Iterator[tuple[str, Result]]:
    for words in (["--check", str(config)], ["--resolved", "--json", "--config", str(config)]):
        yield words[0], CliRunner().invoke(cli, ["config", *words])


def said_of(config: Path) -> dict[str, str]:
    """Everything that is said by who loads this file, whether it is accepted or refused."""
    said = {}
    for stage in STAGES:
        try:
            settings = settings_class(stage).load(config)
            said[f"repr of {stage}"] = repr(settings) + str(settings)
        except ConfigurationError as error:
            said[f"error of {stage}"] = "".join(traceback.format_exception(error)) + repr(error.args)
    for command, result in commands_on(config):
        shown = "" if result.exception is None else "".join(traceback.format_exception(result.exception))
        said[command] = f"{result.output} {shown} {result.exception!r}"
    return said


def written(path: Path, text: str | Mapping[str, Any]) -> Path:
    path.write_text(text if isinstance(text, str) else tomli_w.dumps(text))
    return path


def all_keys() -> dict[str, Key]:
    return {".".join(key.path): key for stage in STAGES for key in keys_of(settings_class(stage))}


def test_every_setting_that_may_hold_a_secret_has_a_case_here() -> None:
    assert {name for name, key in all_keys().items() if key.is_secret} == {*HOLDING, *REFUSING}


@pytest.mark.parametrize("way", ["file", "variables"])
@pytest.mark.parametrize("stage", STAGES)
def test_what_shows_the_settings_shows_no_secret(
    stage: Stage, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    document = everything_planted()
    config = written(tmp_path / "rollstream.toml", document if way == "file" else NEEDED)
    for name, value in as_variables(document).items() if way == "variables" else ():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.DEBUG):
        settings = settings_class(stage).load(config)
        settings.log_resolved()
    assert settings.kafka.security["sasl.password"].get_secret_value() == SECRET
    assert settings.redis_url is not None
    assert in_url(SECRET) in settings.redis_url.get_secret_value()
    file = RunFile.read(config)
    outputs = {
        **said_of(config),
        "table": CliRunner().invoke(cli, ["config", "--resolved", "--config", str(config)]).output,
        "repr": repr(settings),
        "str": str(settings),
        "JSON": settings.model_dump_json(),
        "dump": repr(settings.model_dump()),
        "resolved": json.dumps(settings.resolved()),
        "log": caplog.text,
        "tables": f"{settings.kafka!r} {settings.storage!r} {settings.tracing!r} {settings.environments!r}",
        "file": repr(file),
        "sources": repr(settings.sources(file)),
    }
    assert "rediss://***@host:6379/0?***" in outputs["JSON"]
    assert_absent(PLANTED, outputs)


def misspelled(name: str) -> str:
    return name[:2] + name[3:]


def mistakes(key: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Files in which somebody got the setting wrong."""
    place = place_of(key)
    for depth, name in enumerate(place):
        elsewhere = (*place[:depth], misspelled(name), *place[depth + 1 :])
        yield f"{'.'.join(elsewhere)} misspelled", put(NEEDED, elsewhere, value)
    yield "at the top", put(NEEDED, (place[-1],), value)
    yield "in a stage's table", put(NEEDED, ("scorer", place[-1]), value)
    if isinstance(value, dict):
        secret = next(name for name, text in value.items() if SECRET in text or KEY in text)
        entries: dict[str, Any] = {"list": [SECRET], "table": {"value": SECRET}, "number": NUMBER, "empty": ""}
        for kind, entry in entries.items():
            yield f"{secret} is a {kind}", put(NEEDED, place, {**value, secret: entry})
        yield "a misspelled entry", put(NEEDED, place, {**value, misspelled(secret): SECRET})
        yield "very long", put(NEEDED, place, {**value, secret: KEY * 100})
        yield "of other characters", put(NEEDED, place, {**value, secret: f"\0\ud7ff{SECRET}\n{KEY}"})
    others = {"text": SECRET, "list": [SECRET], "number": NUMBER, "table": {"x": {"y": SECRET}}, "tables": [{"x": KEY}]}
    for kind, other in others.items():
        yield f"a {kind} instead", put(NEEDED, place, other)


def malformed_urls() -> Iterator[tuple[str, dict[str, Any]]]:
    raw = SECRET.replace("&", "/")
    for name, scheme in (("registry_url", "https"), ("redis_url", "redis")):
        for url in (
            f"me:{SECRET}@host", f"{scheme}:/{WITH_PASSWORD}", f"{scheme}//{WITH_PASSWORD}", f"ftp://{WITH_PASSWORD}",
            f"{scheme}://me:{raw}@host", f"{scheme}://me:{raw}#@host", f"{scheme}://host:{KEY}", f"{scheme}://me:{KEY}@",
            f"{scheme}://{WITH_PASSWORD}:99999", f" {scheme}://{WITH_PASSWORD}", f"{scheme}://me:{KEY}@[host", SECRET,
        ):  # fmt: skip
            yield f"{name} = {url}", {**NEEDED, name: url}


# What the generated mistakes do not have.
OTHER_FILES: dict[str, dict[str, Any]] = {
    **{f"a text for {stage}": {stage: KEY} for stage in STAGES},
    "a text for the table above": {"kafka": KEY},
    "a list for the table above": {"kafka": [{"security": KEY}]},
    "a name without quotes": {"kafka": {"security": {"sasl": {"password": KEY}}}},
    "the password as protocol": {"kafka": {"security": {"security.protocol": KEY}}},
    "a stray key": {"password": KEY},
    "a password among the brokers": {"kafka": {"bootstrap_servers": [f"SASL_SSL://me:{KEY}@broker"]}},
    "a key for the agent of every prompt": {
        "producer": {"environment": "sort_digits", "agent": {"options": {"api_key": KEY}}}
    },
    "options that are no table": {"environments": {"sort_digits": {"key": [KEY]}}},
    "a mistyped table of options": {"agents": {"debate": {"option": {"key": KEY}}}},
}


@pytest.mark.parametrize("wrong", OTHER_FILES)
def test_no_other_mistake_of_the_file_shows_it(wrong: str, tmp_path: Path) -> None:
    said = said_of(written(tmp_path / "rollstream.toml", {**NEEDED, **OTHER_FILES[wrong]}))
    assert any(where.startswith("error") for where in said)
    assert_absent(PLANTED, said)


@pytest.mark.parametrize("key", HOLDING)
def test_no_mistake_around_a_secret_of_the_file_shows_it(key: str, tmp_path: Path) -> None:
    for number, (mistake, document) in enumerate(mistakes(key, HOLDING[key])):
        said = said_of(written(tmp_path / f"{number}.toml", document))
        assert_absent(PLANTED, {f"{mistake}: {where}": text for where, text in said.items()})


def test_no_malformed_address_is_shown(tmp_path: Path) -> None:
    for number, (mistake, document) in enumerate(malformed_urls()):
        said = said_of(written(tmp_path / f"{number}.toml", document))
        assert all(where.startswith("error") for where in said if " of " in where), mistake
        assert_absent(PLANTED, {f"{mistake}: {where}": text for where, text in said.items()})


LINES = {
    "without quotes": f"key = {KEY}",
    "with one quote": f'key = "{KEY}',
    "with a colon": f"key: {KEY}",
    "with a bad escape": f'key = "\\q{KEY}"',
    "twice": f'key = "{KEY}"\nkey = "{KEY}"',
    "with more after it": f'key = "{KEY}" {KEY}',
    "in an open list": f'key = ["{KEY}", ',
    "as a broken key": f'{KEY} {KEY} = "x"',
    "as a number that is none": f"key = {NUMBER}x",
    "with a control character": f'key = "{KEY}\x01"',
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_that_is_no_toml_is_told_by_its_number_alone(line: str, tmp_path: Path) -> None:
    config = written(tmp_path / "rollstream.toml", f'run = "demo"\n[kafka.security]\n{LINES[line]}\n')
    said = said_of(config)
    assert all("is not valid TOML" in text for where, text in said.items() if where.startswith("error"))
    assert_absent(PLANTED, said)


def test_a_file_that_cannot_be_read_is_told_by_its_path_alone(tmp_path: Path) -> None:
    config = tmp_path / "rollstream.toml"
    config.write_bytes(f'[kafka.security]\n"sasl.password" = "{KEY}'.encode() + b'\xff"\n')
    assert_absent(PLANTED, said_of(config))


@pytest.mark.parametrize("key", HOLDING)
def test_no_mistake_around_a_secret_of_a_variable_shows_it(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, value = written(tmp_path / "rollstream.toml", NEEDED), HOLDING[key]
    text, name = value if isinstance(value, str) else json.dumps(value), variable_name(place_of(key))
    below = [f"{name}__{misspelled(entry)}" for entry in value] if isinstance(value, dict) else [f"{name}__X"]
    broken = [text[:-3], f"[{text}", f'"{text}"', f"[{json.dumps(value)}]", SECRET]
    elsewhere = [f"{PREFIX}{misspelled(name.removeprefix(PREFIX))}", *below]
    for variable, given in [*((one, text) for one in elsewhere), *((name, one) for one in broken)]:
        with monkeypatch.context() as one:
            one.setenv(variable, given)
            said = said_of(config)
        assert_absent(PLANTED, {f"{variable}: {where}": text for where, text in said.items()})


def keys_for_addresses(stage: Stage) -> list[Key]:
    """Settings that hold one value. A stop string is no secret: each prompt's record has it."""
    own = [key for key in keys_of(settings_class(stage)) if stage == "trainer" or not is_shared(key)]
    return [key for key in own if not key.is_table and key.path != ("sampling", "stop")]


def is_shared(key: Key) -> bool:
    return key.path[0] in StageSettings.model_fields


@pytest.mark.parametrize("stage", STAGES)
def test_an_address_with_a_password_in_a_wrong_setting_is_refused_unseen(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = written(tmp_path / "rollstream.toml", NEEDED)
    keys = keys_for_addresses(stage)
    assert keys
    for key in keys:
        for address in ADDRESSES:
            variable = variable_name(place_of(key))
            with monkeypatch.context() as one:
                one.setenv(variable, address)
                settings, problems = settings_class(stage).checked(RunFile.read(config))
            is_its_place = key.path[-1] in ("redis_url", "registry_url") and address.startswith(("redis", "https"))
            # A key may be any text.
            is_its_place = is_its_place or key.path[-1] in ("api_key", "subject_secret")
            assert (settings is None) or is_its_place, f"{variable}={address} is accepted"
            assert_absent(PLANTED, {variable: " ".join(problems) or repr(settings)})


def test_an_address_in_a_wrong_setting_of_the_file_is_told_with_its_line(tmp_path: Path) -> None:
    config = written(tmp_path / "rollstream.toml", f'run = "demo"\nmodel = "{ADDRESSES[0]}"\n')
    with pytest.raises(ConfigurationError, match=r"line 2: model: looks like an address with a user, password or"):
        StageSettings.load(config)


COMMANDS = {
    "without its option": ["schemas", "register", ADDRESSES[0], "--run", "demo"],
    "without a host": ["schemas", "register", "--url", f"https://me:{KEY}@", "--run", "demo"],
    "as the port": ["schemas", "register", "--url", f"https://host:{KEY}", "--run", "demo"],
    "as the run": ["schemas", "register", "--url", "https://host", "--run", ADDRESSES[0]],
    "as a subcommand": ["schemas", ADDRESSES[0]],
    "as a command": [ADDRESSES[0]],
    "as a number": ["topics", "create", "--partitions", ADDRESSES[0]],
    "as another number": ["tail", "prompts", "--lines", ADDRESSES[1]],
    "as a principal": ["acls", "print", "--principal", ADDRESSES[0]],
    "in an unknown option": ["status", "--once", f"--redis={ADDRESSES[0]}"],
    "as a file": ["doctor", "--config", ADDRESSES[2]],
    "as a choice": ["probe", ADDRESSES[0]],
    "not as text": ["status", "--once", f"\udc80{ADDRESSES[0]}"],
}


@pytest.mark.parametrize("where", COMMANDS)
def test_an_address_in_a_wrong_place_of_the_command_line_is_not_repeated(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLSTREAM_RUN", "demo")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, COMMANDS[where])
    assert result.exit_code == 2, result.output
    assert_absent(PLANTED, {"output": result.output})


def test_servers_that_do_not_answer_are_named_without_the_password(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{nobody.getsockname()[1]}"
        words = ["schemas", "register", "--run", "demo", "--url", f"http://me:{KEY}@{host}"]
        refused = CliRunner().invoke(cli, words).exception
        assert Fleet(f"redis://:{KEY}@{host}", "demo").members() == {}
    assert isinstance(refused, RegistryError)
    assert f"http://***@{host}" in str(refused)
    assert "Redis is gone" in caplog.text
    assert_absent(PLANTED, {"log": caplog.text, "error": "".join(traceback.format_exception(refused))})
