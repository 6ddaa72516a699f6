"""What libraries and a user's code say reaches logs, errors, records and probes without the secrets that they know."""

import asyncio
import json
import logging
import os
import pty
import subprocess
import sys
import traceback
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from confluent_kafka.admin import AdminClient

from rollstream.agents.samples import SampleBounds
from rollstream.bus.clients import made
from rollstream.bus.message import KafkaMessage
from rollstream.environments.pool.pool import PoolBounds, ScoringPool
from rollstream.environments.pool.verdicts import ScoringSample
from rollstream.environments.rubric import RewardInput
from rollstream.generator.current_version import CurrentVersion
from rollstream.generator.handler import GeneratorHandler
from rollstream.history.weight_store import open_weight_store
from rollstream.local.supervisor import StageProcess
from rollstream.process.health import Health
from rollstream.process.masking import SECRETS, Secrets, secrets_in, without_values
from rollstream.process.settings.base import KafkaSettings
from rollstream.process.settings.storage import StorageSettings
from rollstream.schemas.errors import (
    ConfigurationError,
    DecodeError,
    RegistryError,
    UnknownSchemaError,
    WeightStoreError,
)
from rollstream.schemas.registry_url import ConfluentRegistry
from rollstream.stage.dead_letters import dead_letter
from tests.harness import paid_environment
from tests.harness.builders import NOON, a_generator, a_prompt
from tests.harness.planted import a_plain_secret, a_private_key, a_secret, assert_absent, in_url
from tests.harness.small_registry import a_small_registry

SECRET, KEY, PEM = a_secret(), a_plain_secret(), a_private_key()
PLANTED = {"secret": SECRET, "key": KEY, "private key": PEM}

_PROGRAM = """
import logging, sys, threading
from pathlib import Path
from rollstream.process.logs import be_verbose, configure_logging
from rollstream.process.settings.base import settings_class

def fail(text):
    raise RuntimeError(text)

be_verbose()
configure_logging("scorer")
settings = settings_class("scorer").load(Path(sys.argv[1]))
known = [secret.get_secret_value() for secret in settings.kafka.security.values()]
known += [settings.redis_url.get_secret_value(), f"http://proxy:{known[1]}@host"]
for library in ("faust", "aiokafka.conn", "rollstream.kafka_client", "vllm", "rollstream.bus"):
    for text in known:
        logging.getLogger(library).error("sent %s, %r", text, text)
        logging.getLogger(library).debug("sent", extra={"topic": text})
thread = threading.Thread(target=fail, args=(known[1],))
thread.start()
thread.join()
try:
    fail(known[0])
except RuntimeError:
    logging.getLogger("mode").exception("crashed: %s", known)
fail(" ".join(known))
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "rollstream.toml"
    security = {"sasl.password": SECRET, "ssl.key.password": KEY, "ssl.key.pem": PEM}
    path.write_text(
        tomli_w.dumps(
            {"run": "demo", "redis_url": f"redis://me:{in_url(SECRET)}@host?client_name={KEY}",
             "kafka": {"security": security}, "tracing": {"headers": {"key": KEY}}, "scorer": {}}
        )
    )  # fmt: skip
    return path


def test_no_line_for_machines_holds_what_a_library_was_given(config: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(config)], capture_output=True, text=True, timeout=60, check=False
    )
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert sum("***" in json.dumps(line) for line in lines) > 25
    assert [line["message"] for line in lines if "uncaught" in line["message"]] == ["uncaught RuntimeError"] * 2
    assert_absent(PLANTED, {"log": ended.stderr})


def test_no_line_on_a_terminal_holds_what_a_library_was_given(config: Path) -> None:
    own, terminal = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", _PROGRAM, str(config)], stdout=terminal, stderr=terminal):
        os.close(terminal)
        said = _read_to_end(own)
    assert said.count("***") > 25
    assert_absent(PLANTED, {"terminal": said})


def _read_to_end(terminal: int) -> str:
    said = b""
    try:
        while part := os.read(terminal, 65536):
            said += part
    except OSError:  # the other side is closed
        os.close(terminal)
    return said.decode()


def test_what_helps_to_find_a_mistake_stays_in_the_lines() -> None:
    security = {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "rollstream-trainer",
        "sasl.password": SECRET, "ssl.ca.location": "/etc/ca.pem",
    }  # fmt: skip
    known = Secrets()
    known.add(secrets_in(KafkaSettings(security=security).model_dump()))
    said = known.masked(f"SASL_SSL SCRAM-SHA-512 as rollstream-trainer with {SECRET} by /etc/ca.pem at 10.0.0.1:9092")
    assert said == "SASL_SSL SCRAM-SHA-512 as rollstream-trainer with *** by /etc/ca.pem at 10.0.0.1:9092"
    known.add(["", "short"])
    assert (
        known.masked("a short line about http://host:8080/path?a=b") == "a short line about http://host:8080/path?a=b"
    )


@pytest.mark.parametrize("how", [str, repr, json.dumps, in_url])
def test_a_value_is_found_however_it_is_written_and_where_it_was_cut(how: Any) -> None:
    said = without_values([SECRET, PEM], f"no such file: {how(SECRET)} and {how(PEM)[:300]}")
    assert_absent({"secret": SECRET}, {"said": said})
    assert said.count("***") == 2 or how is not str


STORES = {
    "s3": {"access_key_id": "a", "secret_access_key": "b", "region": "r", "endpoint": "http://127.0.0.1:9"},
    "gs": {"skip_signature": "true"},
    "az": {"account_name": "name", "skip_signature": "true", "endpoint": "http://127.0.0.1:9"},
}
OPTIONS = {
    "s3": (
        "access_key_id", "secret_access_key", "session_token", "checksum_algorithm", "conditional_put", "bucket",
        "skip_signature", "copy_if_not_exists", "s3_express", "server_side_encryption", "endpoint", "sts_endpoint",
        "no_such_option",
    ),
    "gs": ("service_account", "service_account_key", "application_credentials", "base_url", "skip_signature", "bucket"),
    "az": ("account_key", "sas_key", "credential_type", "endpoint", "use_emulator", "token", "container_name"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("scheme", "option"), [(scheme, option) for scheme, options in OPTIONS.items() for option in options]
)
def test_no_error_of_an_object_store_holds_an_option(scheme: str, option: str, tmp_path: Path) -> None:
    refusals = 0
    for wrong in (KEY, SECRET, f"https://me:{KEY}@127.0.0.1:9", json.dumps({"private_key": SECRET}), PEM):
        said = _said_with(scheme, {**STORES[scheme], option: wrong}, tmp_path)
        refusals += bool(said)
        assert_absent(PLANTED, {wrong: said or "nothing"})
    assert refusals >= 2


def _said_with(scheme: str, options: dict[str, str], tmp_path: Path) -> str:
    try:
        storage = StorageSettings.model_validate(
            {"options": options, "allow_http": True, "cache": tmp_path, "outage_seconds": 0, "timeout_seconds": 1}
        )
        store = open_weight_store(f"{scheme}://place/prefix", storage)
        if scheme != "gs":  # it is in a network
            store.probe(writes=False)
    except (ConfigurationError, WeightStoreError) as error:
        return "".join(traceback.format_exception(error))
    except ValueError as error:  # of the settings, which hide their input
        return str(error)
    return ""


SECURITY = (
    "security.protocol", "sasl.mechanism", "sasl.username", "ssl.key.pem", "ssl.key.location", "ssl.key.password",
    "ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem", "ssl.keystore.location",
    "ssl.cipher.suites", "ssl.providers", "ssl.endpoint.identification.algorithm", "sasl.oauthbearer.method",
    "enable.ssl.certificate.verification", "sasl.jaas.config", "sasl.pasword", "sasl.kerberos.min.time.before.relogin",
)  # fmt: skip


@pytest.mark.parametrize("name", SECURITY)
@pytest.mark.parametrize("wrong", [SECRET, KEY, PEM], ids=["secret", "key", "private key"])
def test_no_refusal_of_the_kafka_client_holds_a_setting(name: str, wrong: str) -> None:
    said = "accepted"
    try:
        kafka = KafkaSettings(security={"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", name: wrong})
        made(AdminClient, {**kafka.client_config(), "log_level": 0}, kafka).__exit__(None, None, None)
    except (ConfigurationError, ValueError) as error:
        said = f"{error} {error.__cause__}"
    assert_absent(PLANTED, {name: said})
    assert said != "accepted" or name in ("sasl.username", "ssl.key.password")


def test_no_line_or_error_of_the_registrys_client_holds_the_password(caplog: pytest.LogCaptureFixture) -> None:
    said = []
    with caplog.at_level(logging.DEBUG), a_small_registry(f"me:{SECRET}") as server:
        for password in (SECRET, KEY):
            url = server.url.replace("://", f"://me:{in_url(password)}@")
            with closing(ConfluentRegistry(url, run="demo")) as registry:
                with pytest.raises((RegistryError, UnknownSchemaError)) as refused:
                    registry.schema_of(4711)
                said.append("".join(traceback.format_exception(refused.value)))
    assert "is not in the registry" in said[0]
    assert "HTTP 401" in said[1]
    assert "GET http://127.0.0.1" in caplog.text
    assert_absent(PLANTED, {"log": caplog.text, "right": said[0], "wrong": said[1]})


@pytest.mark.parametrize("completion", [paid_environment.SHOWN, paid_environment.RAISED, paid_environment.BROKEN])
def test_an_error_of_a_reward_function_comes_without_the_options_of_its_environment(completion: str) -> None:
    async def score() -> Any:
        async with ScoringPool(PoolBounds(), paid_environment.declared(SECRET)) as pool:
            answer = RewardInput(completion=completion, assistant_messages=())
            return await pool.score([ScoringSample(environment=paid_environment.NAME, answer=answer)])

    [verdict] = asyncio.run(score())
    assert verdict.failure.code.value == "bad_reward"
    assert "401 for" in verdict.failure.message
    assert_absent(PLANTED, {"failure": repr(verdict)})


def test_an_error_of_a_handler_goes_without_secrets_into_records_and_probes() -> None:
    SECRETS.add([SECRET])
    error = DecodeError(f"the service refused {SECRET!r}")
    bounds = SampleBounds(deadline_seconds=1.0, max_tries=1)
    handler = GeneratorHandler(None, identity=a_generator(), bounds=bounds, current=CurrentVersion())  # type: ignore[arg-type]
    given_up = list(handler.give_up(a_prompt(group_size=2), error))
    message = KafkaMessage(topic="t", partition=0, offset=0, key=b"", value=b"", headers=(), timestamp_ms=0)
    letter = dead_letter(message, topic="d", group="g", error=error, attempts=1, failed_at=NOON)
    health = Health()
    health.check("partitions", False, str(error))
    outputs = {
        "rollouts": "".join(sample.model_dump_json() for sample in given_up),
        "dead letter": repr(letter.headers),
        "readiness": repr(health.readiness()),
    }
    assert all("the service refused" in text for text in outputs.values())
    assert_absent(PLANTED, outputs)


def test_what_is_started_is_not_shown_with_its_variables() -> None:
    process = StageProcess(name="trainer", command=("rollstream", "trainer"), env={"ROLLSTREAM_REDIS_URL": SECRET})
    assert_absent(PLANTED, {"repr": repr(process)})
