"""An ingest server as a process, and a client that posts to it."""

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rollstream.local.ports import free_ports
from tests.harness.processes import StartedProcess
from tests.harness.running import Run, readiness
from tests.harness.waits import wait_until

WEB: Final = "a key of the client web 0123"
APP: Final = "a key of the client app 4567"
KEYS: Final = {
    "web": {"key": WEB.replace(" ", "-"), "tenant": "acme", "environment": "sort_digits", "may_train": True},
    "app": {"key": APP.replace(" ", "-"), "tenant": "other"},
}
_ANSWER_SECONDS: Final = 60.0


class Answered(NamedTuple):
    """What a server answered; status 0: nothing came."""

    status: int
    headers: Mapping[str, str]
    body: Any


@dataclass
class IngestServer:
    """`rollstream ingest` on ports of its own; a later process of it has the same ones."""

    run: Run
    port: int
    health_port: int

    def start(self) -> StartedProcess:
        return self.run.start("ingest")

    def wait_until_ready(self) -> None:
        wait_until(lambda: self.is_ready("broker"), "ingest to know the topics")

    def is_ready(self, part: str) -> bool:
        return bool(readiness(self.health_port).get(part, {}).get("is_ok"))

    def post(self, path: str, body: Any, *, client: str = "web", idempotency_key: str | None = None) -> Answered:
        """Post a value as JSON, or bytes as they are."""
        headers = {"Authorization": f"Bearer {KEYS[client]['key']}", "Content-Type": "application/json"}
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask("POST", path, content, headers)

    def ask(self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]) -> Answered:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_SECONDS)
        try:
            connection.request(method, path, content, dict(headers))
            answer = connection.getresponse()
            return Answered(answer.status, dict(answer.getheaders()), json.loads(answer.read()))
        except (OSError, http.client.HTTPException):
            return Answered(0, {}, None)
        finally:
            connection.close()


def an_ingest_server(run: Run, **settings: Any) -> IngestServer:
    """A server of the run that is not started yet."""
    port, health_port = free_ports(2)
    run.tables["ingest"] = {"port": port, "health_port": health_port, **settings}
    for name, key in KEYS.items():
        run.tables[f"ingest.keys.{name}"] = key
    return IngestServer(run, port, health_port)
