"""Real brokers that demand TLS, a client's certificate and a password, and allow nothing that no ACL allows."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from pydantic import SecretStr

from rollstream.bus.clients import admin_client
from rollstream.local.kafka import KafkaCluster
from rollstream.local.kafka_properties import plan_cluster
from rollstream.process.settings.base import KafkaSettings
from tests.harness.certificates import Authority

ADMIN: Final = "admin"
_BROKER: Final = "broker"
_LISTENER: Final = "SASL_SSL"


def password_of(user: str) -> str:
    """The password of a user; every one has another, which no message may hold."""
    return f"the-password-of-{user}-5f2c"


def key_password_of(user: str) -> str:
    """The password of the key of a user's certificate."""
    return f"the-password-of-the-key-of-{user}-a07d"


@dataclass(frozen=True, kw_only=True)
class SecureKafka:
    """Where the brokers are, and what their clients must know."""

    bootstrap_servers: str
    authority: Authority

    def security(self, user: str) -> dict[str, str]:
        """librdkafka's settings for a user."""
        return client_security(self.authority, user)

    def settings(self, user: str) -> KafkaSettings:
        """The same as settings of a process."""
        return KafkaSettings(bootstrap_servers=self.bootstrap_servers, security=_hidden(self.security(user)))

    def variable(self, user: str) -> dict[str, str]:
        """The same as the environment of a stage, as a secret store hands it over."""
        return {"ROLLSTREAM_KAFKA__SECURITY": json.dumps(self.security(user))}

    def add_users(self, *users: str) -> None:
        """Make users, who may do nothing yet."""
        wanted = [
            UserScramCredentialUpsertion(
                user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), password_of(user).encode()
            )
            for user in users
        ]
        with admin_client(self.settings(ADMIN)) as admin:
            for future in admin.alter_user_scram_credentials(wanted).values():
                future.result(30)


def client_security(authority: Authority, user: str) -> dict[str, str]:
    """What a user needs: password, certificate and key."""
    issued = authority.issue(user, password=key_password_of(user))
    return {
        "security.protocol": _LISTENER,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": password_of(user),
        "ssl.ca.location": str(authority.ca),
        "ssl.certificate.location": str(issued.certificate),
        "ssl.key.location": str(issued.key),
        "ssl.key.password": key_password_of(user),
    }


@contextmanager
def a_secure_cluster(directory: Path, brokers: Literal[1, 3] = 1) -> Iterator[SecureKafka]:
    """Brokers, whose administrator is a super user."""
    directory.mkdir(parents=True, exist_ok=True)
    authority = Authority(directory)
    cluster = KafkaCluster(
        directory,
        plan_cluster(brokers),
        properties=_properties(authority),
        format_words=("--add-scram", f"SCRAM-SHA-512=[name={ADMIN},password={password_of(ADMIN)}]"),
        client=_hidden(client_security(authority, ADMIN)),
    )
    try:
        cluster.start()
        yield SecureKafka(bootstrap_servers=cluster.bootstrap_servers, authority=authority)
    finally:
        cluster.stop()


def _properties(authority: Authority) -> dict[str, str]:
    """Of every broker: all have the same certificate. By password come clients and brokers, by certificate all."""
    jaas = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{ADMIN}" password="{password_of(ADMIN)}";'
    )
    listener = f"listener.name.{_LISTENER.lower()}"
    return {
        "listener.security.protocol.map": f"{_LISTENER}:{_LISTENER},CONTROLLER:SSL",
        "inter.broker.listener.name": _LISTENER,
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        f"{listener}.scram-sha-512.sasl.jaas.config": jaas,
        # A listener with passwords passes over the same key without its name.
        f"{listener}.ssl.client.auth": "required",
        "listener.name.controller.ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue(_BROKER).both),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.ca),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN};User:CN={_BROKER}",
        "allow.everyone.if.no.acl.found": "false",
    }


def _hidden(values: dict[str, str]) -> dict[str, SecretStr]:
    return {name: SecretStr(value) for name, value in values.items()}
