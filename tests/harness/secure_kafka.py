"""A real broker that demands TLS and a password from every client, and allows nothing that no ACL allows."""

import datetime
import ipaddress
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydantic import SecretStr

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.clients import admin_client
from rollstream.local.java import find_java
from rollstream.local.kafka import FORMAT_SECONDS, JVM_FLAGS, LOG_SETTINGS, START_SECONDS, finish_formats
from rollstream.local.kafka_jars import kafka_class_path
from rollstream.local.kafka_properties import NodePlan, plan_cluster, server_properties
from rollstream.process.settings import KafkaSettings
from rollstream.schemas.errors import BrokerError
from tests.harness.processes import StartedProcess, start_process
from tests.harness.waits import wait_until

ADMIN = "admin"
_LISTENER = "SASL_SSL"


def password_of(user: str) -> str:
    """The password of a user; every one has another, which no message may hold."""
    return f"the-password-of-{user}-5f2c"


@dataclass(frozen=True, kw_only=True)
class SecureKafka:
    """Where the broker is, and what its clients must know."""

    bootstrap_servers: str
    ca: Path

    def security(self, user: str) -> dict[str, str]:
        """librdkafka's settings for a user."""
        return {
            "security.protocol": _LISTENER,
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password_of(user),
            "ssl.ca.location": str(self.ca),
        }

    def settings(self, user: str) -> KafkaSettings:
        """The same as settings of a process."""
        security = {name: SecretStr(value) for name, value in self.security(user).items()}
        return KafkaSettings(bootstrap_servers=self.bootstrap_servers, security=security)

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


@contextmanager
def a_secure_broker(directory: Path) -> Iterator[SecureKafka]:
    """One broker, whose administrator is a super user."""
    plan = plan_cluster(1)
    [node] = plan.nodes
    _write_certificates(directory)
    properties = directory / "server.properties"
    properties.write_text(server_properties(plan, node, directory / "log", _secure(directory, node)))
    java = (
        str(find_java().program), *JVM_FLAGS, "-cp", kafka_class_path(), f"-Dlog4j2.configurationFile={LOG_SETTINGS}"
    )  # fmt: skip
    scram = f"SCRAM-SHA-512=[name={ADMIN},password={password_of(ADMIN)}]"
    tool = ("kafka.tools.StorageTool", "format", "-t", plan.cluster_id, "-c", str(properties), "--standalone",
            "--add-scram", scram)  # fmt: skip
    finish_formats({directory: _run((*java, f"-Drollstream.log={directory / 'format.log'}", *tool))}, FORMAT_SECONDS)
    command = (*java, f"-Drollstream.log={directory / 'kafka.log'}", "kafka.Kafka", str(properties))
    broker = start_process(command, log=directory / "kafka.out", env={"CLASSPATH": ""})
    try:
        secure = SecureKafka(bootstrap_servers=node.address, ca=directory / "ca.pem")
        wait_until(lambda: _answers(secure, broker), lambda: f"the broker: {broker.said()[-2000:]}", START_SECONDS)
        yield secure
    finally:
        broker.kill()


def _run(command: tuple[str, ...]) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _answers(secure: SecureKafka, broker: StartedProcess) -> bool:
    assert not broker.has_ended, broker.said()[-2000:]
    try:
        return bool(KafkaAdmin(secure.settings(ADMIN)).identity([]).cluster_id)
    except BrokerError:
        return False


def _secure(directory: Path, node: NodePlan) -> dict[str, str]:
    jaas = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{ADMIN}" password="{password_of(ADMIN)}";'
    )
    listeners = f"{_LISTENER}://{node.address},CONTROLLER://{node.controller_address}"
    return {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "listener.security.protocol.map": f"{_LISTENER}:{_LISTENER},CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": _LISTENER,
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        f"listener.name.{_LISTENER.lower()}.scram-sha-512.sasl.jaas.config": jaas,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(directory / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory / "ca.pem"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # The controller's own listener has no passwords: brokers and controllers are one process here.
        "super.users": f"User:{ADMIN};User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "false",
    }


def _write_certificates(directory: Path) -> None:
    """A certificate authority, and the broker's key and certificate."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name, name = _named("rollstream test authority"), _named("broker")
    ca = _certificate(ca_name, ca_name, ca_key, ca_key, x509.BasicConstraints(ca=True, path_length=None))
    place = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")])
    broker = _certificate(name, ca_name, key, ca_key, place)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / "ca.pem").write_bytes(ca)
    (directory / "broker.pem").write_bytes(secret + broker + ca)
    (directory / "broker.pem").chmod(0o600)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> bytes:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
    )
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
