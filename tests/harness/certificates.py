"""A certificate authority of a test's own: it signs the certificates that brokers and clients show each other."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, kw_only=True)
class Issued:
    """A certificate, and the key that belongs to it; `both` has them in one file, with the authority's certificate."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """Writes all its files into `directory`. `ca` is its own certificate, which those who trust it need."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named("rollstream test authority")
        self.ca = directory / "ca.pem"
        is_ca = x509.BasicConstraints(ca=True, path_length=None)
        self.ca.write_bytes(self._signed(self._name, self._key.public_key(), is_ca))

    def issue(self, name: str, *, password: str = "") -> Issued:
        """The certificate `CN=<name>` for this machine; with a password its key is encrypted."""
        files = [self._directory / f"{name}{ending}" for ending in ("-certificate.pem", "-key.pem", ".pem")]
        issued = Issued(certificate=files[0], key=files[1], both=files[2])
        if not issued.both.exists():
            self._write(issued, name, password)
        return issued

    def _write(self, issued: Issued, name: str, password: str) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        here = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        certificate = self._signed(_named(name), key.public_key(), x509.SubjectAlternativeName(here))
        hidden = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)
        issued.certificate.write_bytes(certificate)
        for path, content in ((issued.key, secret), (issued.both, secret + certificate + self.ca.read_bytes())):
            path.touch(mode=0o600)
            path.write_bytes(content)

    def _signed(self, subject: x509.Name, public: ec.EllipticCurvePublicKey, extension: x509.ExtensionType) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
