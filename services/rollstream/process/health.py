"""Liveness, readiness and metrics of this process, over HTTP on a port and a thread of their own.

Liveness shows hangs: every loop of the process leaves heartbeats, and `/livez` fails when the last one is too old. It
never asks Kafka or Redis: a restart of this process would not repair them. Readiness is what each part of the process
reports: `/readyz` fails while one is not ready. Both say in a line each what fails and why.

A lane is a part that others outlive. What it reports decides neither; `?verbose` shows it, and metrics tell.
"""

import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import urlsplit

from prometheus_client import CONTENT_TYPE_LATEST, Gauge, disable_created_metrics, generate_latest

from rollstream.process.masking import SECRETS
from rollstream.schemas.errors import ConfigurationError

_LOG = logging.getLogger(__name__)

_TEXT: Final = "text/plain; charset=utf-8"
READY: Final = Gauge("rollstream_process_ready", "1 while every part of the process is ready, as /readyz says, else 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One condition of liveness or readiness, and whether it holds."""

    is_ok: bool
    detail: str


class Health:
    """Collects the heartbeats and readiness of the process's parts, and serves them. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._beats: dict[str, tuple[float, float]] = {}
        self._checks: dict[str, Check] = {}
        self._lanes: dict[str, Health] = {}
        self._server: ThreadingHTTPServer | None = None

    def heartbeat(self, name: str, max_age_seconds: float) -> None:
        """Note that the loop `name` goes on; if that is more than `max_age_seconds` ago, the process counts as hung."""
        with self._lock:
            self._beats[name] = (self._clock(), max_age_seconds)

    def check(self, name: str, is_ready: bool, detail: str = "") -> None:
        """Set whether the part `name` is ready; the process is ready when every part is."""
        with self._lock:
            self._checks[name] = Check(is_ok=is_ready, detail=SECRETS.masked(detail))

    def lane(self, name: str) -> "Health":
        """What the lane `name` reports to, which begins anew: nothing of a former one counts any more."""
        lane = Health(self._clock)
        with self._lock:
            self._lanes[name] = lane
        return lane

    @property
    def is_well(self) -> bool:
        """Whether every part is ready and every loop goes on."""
        return all(check.is_ok for check in (*self.readiness().values(), *self.liveness().values()))

    def draining(self) -> None:
        """Report not ready from now on, because the process ends."""
        self.check("draining", False, "the process ends")

    def liveness(self) -> dict[str, Check]:
        """Every heartbeat with its age."""
        with self._lock:
            beats = dict(self._beats)
        ages = {name: (self._clock() - moment, bound) for name, (moment, bound) in beats.items()}
        return {
            name: Check(is_ok=age <= bound, detail=f"{age:.1f} s ago, at most {bound:g} s")
            for name, (age, bound) in ages.items()
        }

    def readiness(self) -> dict[str, Check]:
        """Every part that has reported; before the first report, one check that is not ok."""
        with self._lock:
            return dict(self._checks) or {"starting": Check(is_ok=False, detail="no part is ready yet")}

    def of_lanes(self, wanted: Callable[["Health"], dict[str, Check]]) -> dict[str, Check]:
        """The checks of all lanes, each under `lane/name`."""
        with self._lock:
            lanes = dict(self._lanes)
        return {f"{name}/{part}": check for name, lane in lanes.items() for part, check in wanted(lane).items()}

    def serve(self, host: str, port: int) -> int:
        """Answer /metrics, /livez and /readyz (with ?verbose as JSON); port 0 takes a free one. Returns the port.

        Raises `ConfigurationError` if host or port can't be had.
        """
        # A series for the start of each counter and histogram: twice as many series, which nobody reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        # The server makes a handler for each request by itself: a subclass is the way to hand this object to it.
        handler = type("_OwnHandler", (_Handler,), {"health": self})
        try:
            self._server = (_Ipv6Server if ":" in host else ThreadingHTTPServer)((host, port), handler)
        except socket.gaierror as error:
            raise ConfigurationError(
                f"health_host {host!r} is no address of this machine: {error.strerror}; set one, or 0.0.0.0 for all"
            ) from error
        except OSError as error:
            raise ConfigurationError(
                f"health_port {port} can't be had at {host}: {error.strerror}; set another health_port, or 0 for a "
                "free one, or another health_host"
            ) from error
        self._server.daemon_threads = True
        READY.set_function(lambda: float(all(check.is_ok for check in self.readiness().values())))
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="health", daemon=True).start()
        actual = int(self._server.server_address[1])
        _LOG.info("serving /metrics, /livez and /readyz on port %d", actual)
        return actual

    def close(self) -> None:
        """Stop answering."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class _Ipv6Server(ThreadingHTTPServer):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    health: Health

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/metrics":
            self._answer(HTTPStatus.OK, generate_latest(), CONTENT_TYPE_LATEST)
        elif url.path in ("/livez", "/readyz"):
            wanted = Health.liveness if url.path == "/livez" else Health.readiness
            self._answer_checks(wanted, is_verbose="verbose" in url.query)
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there are /metrics, /livez and /readyz\n", _TEXT)

    def _answer_checks(self, wanted: Callable[[Health], dict[str, Check]], *, is_verbose: bool) -> None:
        checks = wanted(self.health)
        failing = [name for name, check in checks.items() if not check.is_ok]
        status = HTTPStatus.SERVICE_UNAVAILABLE if failing else HTTPStatus.OK
        if is_verbose:
            shown = checks | self.health.of_lanes(wanted)
            body = json.dumps({name: asdict(check) for name, check in shown.items()}, indent=2).encode()
            self._answer(status, body, "application/json")
        else:
            lines = [f"failing: {name}: {checks[name].detail}" for name in failing] or ["ok"]
            self._answer(status, "".join(f"{line}\n" for line in lines).encode(), _TEXT)

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: probes come every few seconds, and other lines would be hard to find."""
