"""Certificates and keys that can't be read are named by their setting, and nothing that may be a secret is shown."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from rollstream.bus.clients import admin_client
from rollstream.local.doctor import CheckVerdict, check_certificates, examine
from rollstream.process.settings.base import KafkaSettings
from rollstream.process.settings.security_files import unreadable_files
from rollstream.schemas.errors import ConfigurationError
from rollstream.scorer.security import faust_credentials
from tests.harness.certificates import Authority

WRONG = {
    "missing": ("/no/such/client.crt", "/no/such/client.crt can't be read (No such file or directory)"),
    "a directory": ("/etc", "/etc can't be read (Is a directory)"),
    "a password": ("hunter2", "a text of 7 characters, which is no absolute path, can't be read"),
    "the key itself": ("-----BEGIN PRIVATE KEY-----\nhunter2\n", "a text of 36 characters"),
    "no path at all": ("/etc/\0hunter2", "a text of 13 characters"),
}


def kafka(**files: str | Path) -> KafkaSettings:
    """`ssl_key_location` stands for `ssl.key.location`."""
    named = {name.replace("_", "."): SecretStr(str(value)) for name, value in files.items()}
    return KafkaSettings(security={"security.protocol": SecretStr("SSL"), **named})


NAMES = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
# Authorities may be the files of a directory.
REFUSED = [(kind, name) for kind in WRONG for name in NAMES if (kind, name) != ("a directory", "ssl.ca.location")]


@pytest.mark.parametrize(("kind", "name"), REFUSED)
def test_a_file_that_cannot_be_read_is_named_by_its_setting(kind: str, name: str) -> None:
    given, said = WRONG[kind]
    settings = kafka(**{name.replace(".", "_"): given})
    with pytest.raises(ConfigurationError) as by_bus, admin_client(settings):
        pass
    with pytest.raises(ConfigurationError) as by_faust:
        faust_credentials(settings.security)
    for refused in (by_bus, by_faust):
        assert f"[kafka.security] {name}: {said}" in str(refused.value)
        assert "hunter2" not in str(refused.value)


def test_every_wrong_file_is_named_at_once_and_what_the_client_finds_by_itself_is_no_file(tmp_path: Path) -> None:
    wrong = kafka(ssl_certificate_location="/no/one", ssl_key_location="/no/other", ssl_ca_location="probe")
    assert [problem.partition(":")[0] for problem in unreadable_files(wrong.security)] == [
        "ssl.certificate.location",
        "ssl.key.location",
    ]
    assert not list(unreadable_files(kafka(ssl_ca_location=tmp_path).security))


@pytest.mark.parametrize("authorities", ["probe", "", "directory", "file"])
def test_the_scorers_driver_takes_authorities_and_certificate_as_the_other_stages_do(
    authorities: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("scorer", password="hunter2")
    given = {"directory": str(tmp_path), "file": str(authority.ca)}.get(authorities, authorities)
    settings = kafka(ssl_certificate_location=issued.certificate, ssl_key_location=issued.key, ssl_ca_location=given)
    right = {**settings.security, "ssl.key.password": SecretStr("hunter2")}
    assert faust_credentials(right).context is not None
    with admin_client(settings.model_copy(update={"security": right})):
        pass


@pytest.mark.parametrize("password", ["", "hunter2"])
def test_a_key_with_a_wrong_password_or_without_one_is_refused_and_nobody_is_asked(
    password: str, tmp_path: Path
) -> None:
    issued = Authority(tmp_path).issue("scorer", password="another")
    settings = kafka(
        ssl_certificate_location=issued.certificate, ssl_key_location=issued.key, ssl_key_password=password
    )
    with pytest.raises(ConfigurationError, match=r"ssl\.key\.password must belong") as by_faust:
        faust_credentials(settings.security)
    with pytest.raises(ConfigurationError, match="the Kafka client refuses") as by_bus, admin_client(settings):
        pass
    assert "hunter2" not in str(by_faust.value) + str(by_bus.value)


def test_doctor_looks_at_the_certificates_of_a_run(tmp_path: Path) -> None:
    config = tmp_path / "rollstream.toml"
    config.write_text(
        'run = "math"\n[trainer]\nmodel_path = "model"\n[kafka.security]\n"security.protocol" = "SSL"\n'
        '"ssl.certificate.location" = "/no/such/client.crt"\n'
    )
    found = {check.name: check for check in examine(tmp_path, config)}["certificates"]
    assert found.verdict is CheckVerdict.FAILED
    assert "ssl.certificate.location: /no/such/client.crt can't be read" in found.found
    ca = Authority(tmp_path).ca
    assert check_certificates(kafka(ssl_ca_location=ca)).verdict is CheckVerdict.OK


def test_the_scorers_driver_is_given_user_and_password_and_refuses_what_it_cannot_do() -> None:
    def credentials(**settings: str) -> Any:
        return faust_credentials({key.replace("_", "."): SecretStr(value) for key, value in settings.items()})

    assert credentials() is None
    sasl = {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512"}
    found = credentials(**sasl, sasl_username="ann", sasl_password="secret")
    assert (found.username, found.password) == ("ann", "secret")
    assert (found.mechanism.value, found.protocol.value) == ("SCRAM-SHA-512", "SASL_SSL")
    for wrong in (
        {**sasl, "sasl_mechanism": "OAUTHBEARER"}, {"security_protocol": "TLS"}, {"sasl_kerberos_keytab": "x"},
        {"security_protocol": "SSL", "ssl_ca_location": "/no/such/file"},
    ):  # fmt: skip
        with pytest.raises(ConfigurationError):
            credentials(**wrong)
