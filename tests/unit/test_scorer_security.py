"""librdkafka's security settings, translated for the Kafka client that Faust uses."""

import pytest
from pydantic import SecretStr

from rollstream.schemas.errors import ConfigurationError
from rollstream.scorer.security import faust_credentials


def credentials(**settings: str) -> object:
    return faust_credentials({key.replace("_", "."): SecretStr(value) for key, value in settings.items()})


def test_plain_text_needs_no_credentials() -> None:
    assert credentials() is None


def test_a_user_and_a_password_are_passed_on() -> None:
    found = credentials(
        security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512", sasl_username="ann", sasl_password="secret"
    )
    assert (found.username, found.password) == ("ann", "secret")  # type: ignore[attr-defined]
    assert found.mechanism.value == "SCRAM-SHA-512"  # type: ignore[attr-defined]
    assert found.protocol.value == "SASL_SSL"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "settings",
    [
        {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"},
        {"security_protocol": "TLS"},
        {"sasl_kerberos_keytab": "x"},
        {"security_protocol": "SSL", "ssl_ca_location": "/no/such/file"},
    ],
)
def test_what_the_driver_cannot_do_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        credentials(**settings)
