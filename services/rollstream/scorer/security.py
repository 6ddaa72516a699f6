"""Translates librdkafka's security settings for Faust's driver, so that every stage shares one `[kafka.security]`."""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import faust
from pydantic import SecretStr

from rollstream.process.settings.security_files import require_readable_files
from rollstream.schemas.errors import ConfigurationError

_KNOWN: Final = (
    "security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password", "ssl.ca.location",
    "ssl.certificate.location", "ssl.key.location", "ssl.key.password", "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
)  # fmt: skip


def faust_credentials(security: Mapping[str, SecretStr]) -> Any:
    """Faust's credentials; None without encryption and authentication.

    Raises `ConfigurationError`, which names the setting that Faust's driver does not have.
    """
    values = {key: secret.get_secret_value() for key, secret in security.items()}
    unknown = sorted(set(values) - set(_KNOWN))
    if unknown:
        raise ConfigurationError(f"[kafka.security] {unknown}: the scorer's driver has {', '.join(_KNOWN)}")
    protocol = values.get("security.protocol", "plaintext").upper()
    if protocol == "PLAINTEXT":
        return None
    require_readable_files(security)
    if protocol == "SSL":
        return faust.SSLCredentials(_ssl_context(values))
    if protocol not in ("SASL_PLAINTEXT", "SASL_SSL"):
        raise ConfigurationError("security.protocol: there are PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL")
    mechanism = values.get("sasl.mechanism") or values.get("sasl.mechanisms", "PLAIN")
    if mechanism not in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        raise ConfigurationError(
            "[kafka.security] sasl.mechanism: the scorer's driver has PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512"
        )
    return faust.SASLCredentials(
        username=values.get("sasl.username"),
        password=values.get("sasl.password"),
        mechanism=mechanism,
        ssl_context=_ssl_context(values) if protocol == "SASL_SSL" else None,
    )


def _ssl_context(values: Mapping[str, str]) -> ssl.SSLContext:
    try:
        file, directory = _authorities(values.get("ssl.ca.location", ""))
        context = ssl.create_default_context(cafile=file, capath=directory)
        if "ssl.certificate.location" in values:
            context.load_cert_chain(
                values["ssl.certificate.location"],
                values.get("ssl.key.location"),
                # Without one, OpenSSL would ask at the terminal for that of an encrypted key.
                values.get("ssl.key.password", ""),
            )
    except OSError as error:
        raise ConfigurationError(
            f"[kafka.security] the files of ssl.* can't be used ({error}): they must be PEM, and ssl.key.location and "
            "ssl.key.password must belong to ssl.certificate.location"
        ) from error
    # librdkafka's defaults: verify the certificate, and that it was made for this host.
    verifies = values.get("enable.ssl.certificate.verification", "true").lower() == "true"
    context.check_hostname = verifies and values.get("ssl.endpoint.identification.algorithm", "https") == "https"
    if not verifies:
        # In this order: ssl refuses CERT_NONE as long as check_hostname is on.
        context.verify_mode = ssl.CERT_NONE
    return context


def _authorities(location: str) -> tuple[str | None, str | None]:
    """The file or the directory with the certificates of authorities, as librdkafka reads it. Neither: the system's."""
    if location in ("", "probe"):
        return None, None
    return (None, location) if Path(location).is_dir() else (location, None)
