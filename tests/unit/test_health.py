"""Liveness fails when a loop hangs, readiness when a part is not ready; both are served from a thread of their own."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from rollstream.bus import metrics
from rollstream.process.health import Health
from rollstream.schemas.errors import ConfigurationError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Iterator[Health]:
    health = Health(clock)
    yield health
    health.close()


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_process_lives_until_a_heartbeat_is_too_old(health: Health, clock: Clock) -> None:
    port = health.serve(0, "127.0.0.1")
    health.heartbeat("poll", 30)
    health.heartbeat("event_loop", 60)
    clock.now += 29
    assert get(port, "/livez") == (200, "ok\n")
    clock.now += 2
    assert get(port, "/livez") == (503, "failing: poll: 31.0 s ago, at most 30 s\n")
    health.heartbeat("poll", 30)
    assert get(port, "/livez") == (200, "ok\n")


def test_a_port_that_is_taken_is_refused_with_what_to_change(health: Health) -> None:
    taken = health.serve(0, "127.0.0.1")
    with pytest.raises(ConfigurationError, match=f"health_port {taken} can't be had: .*set another health_port, or 0"):
        Health().serve(taken, "127.0.0.1")


def test_a_process_is_ready_when_every_part_is_and_not_while_it_drains(health: Health) -> None:
    port = health.serve(0, "127.0.0.1")
    assert get(port, "/readyz") == (503, "failing: starting: no part is ready yet\n")
    health.check("assignment", False, "0 partitions")
    health.check("weights", False, "version 3 of at least 5")
    failing = "failing: assignment: 0 partitions\nfailing: weights: version 3 of at least 5\n"
    assert get(port, "/readyz") == (503, failing)
    health.check("assignment", True)
    health.check("weights", True)
    assert get(port, "/readyz") == (200, "ok\n")
    health.draining()
    assert get(port, "/readyz") == (503, "failing: draining: the process ends\n")
    assert get(port, "/livez") == (200, "ok\n")


def test_verbose_gives_each_check(health: Health) -> None:
    port = health.serve(0, "127.0.0.1")
    health.check("weights", False, "version 3 of at least 5")
    status, body = get(port, "/readyz?verbose")
    assert status == 503
    assert json.loads(body) == {"weights": {"is_ok": False, "detail": "version 3 of at least 5"}}


def test_metrics_are_in_the_text_format_of_prometheus(health: Health) -> None:
    port = health.serve(0, "127.0.0.1")
    metrics.CONSUMED.labels("demo.prompts").inc()
    status, body = get(port, "/metrics")
    assert status == 200
    assert 'rollstream_bus_consumed_records_total{topic="demo.prompts"} 1.0' in body
    assert get(port, "/other")[0] == 404
