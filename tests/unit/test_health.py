"""Liveness fails when a loop hangs, readiness when a part is not ready; both are served from a thread of their own."""

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from rollstream.bus import metrics
from rollstream.cli.main import cli
from rollstream.process.health import Health
from rollstream.schemas.errors import ConfigurationError
from tests.harness.scraping import scraped


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


def get(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_process_lives_until_a_heartbeat_is_too_old(health: Health, clock: Clock) -> None:
    port = health.serve("127.0.0.1", 0)
    health.heartbeat("poll", 30)
    health.heartbeat("event_loop", 60)
    clock.now += 29
    assert get(port, "/livez") == (200, "ok\n")
    clock.now += 2
    assert get(port, "/livez") == (503, "failing: poll: 31.0 s ago, at most 30 s\n")
    health.heartbeat("poll", 30)
    assert get(port, "/livez") == (200, "ok\n")


def test_a_port_that_is_taken_is_refused_with_what_to_change(health: Health) -> None:
    taken = health.serve("127.0.0.1", 0)
    message = f"health_port {taken} can't be had at 127.0.0.1: .*set another health_port, or 0"
    with pytest.raises(ConfigurationError, match=message):
        Health().serve("127.0.0.1", taken)


def test_only_the_host_that_is_set_answers(health: Health) -> None:
    port = health.serve("127.0.0.2", 0)
    with pytest.raises(urllib.error.URLError, match="refused"):
        get(port, "/livez")
    assert get(port, "/livez", "127.0.0.2")[0] == 200


def test_an_address_of_ipv6_is_served_where_the_machine_has_one_and_else_refused(health: Health) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        with pytest.raises(ConfigurationError, match="can't be had at ::1"):
            health.serve("::1", 0)
    else:
        assert get(health.serve("::1", 0), "/livez", "[::1]")[0] == 200


def test_a_host_that_is_no_address_of_this_machine_is_refused_with_what_to_change() -> None:
    with pytest.raises(ConfigurationError, match=r"health_host 'no\.such\.host' is no address .*set one, or 0\.0\."):
        Health().serve("no.such.host", 0)
    with pytest.raises(ConfigurationError, match=r"at 192\.0\.2\.1: .*another health_host"):
        Health().serve("192.0.2.1", 0)


def test_a_process_is_ready_when_every_part_is_and_not_while_it_drains(health: Health) -> None:
    port = health.serve("127.0.0.1", 0)
    assert get(port, "/readyz") == (503, "failing: starting: no part is ready yet\n")
    assert scraped(port, "rollstream_process_ready") == 0
    health.check("assignment", False, "0 partitions")
    health.check("weights", False, "version 3 of at least 5")
    failing = "failing: assignment: 0 partitions\nfailing: weights: version 3 of at least 5\n"
    assert get(port, "/readyz") == (503, failing)
    health.check("assignment", True)
    status, body = get(port, "/readyz?verbose")
    assert status == 503
    assert json.loads(body)["weights"] == {"is_ok": False, "detail": "version 3 of at least 5"}
    health.check("weights", True)
    assert get(port, "/readyz") == (200, "ok\n")
    assert scraped(port, "rollstream_process_ready") == 1
    health.draining()
    assert get(port, "/readyz") == (503, "failing: draining: the process ends\n")
    assert scraped(port, "rollstream_process_ready") == 0
    assert get(port, "/livez") == (200, "ok\n")


def test_metrics_are_in_the_text_format_of_prometheus(health: Health) -> None:
    port = health.serve("127.0.0.1", 0)
    metrics.CONSUMED.labels("demo.prompts").inc()
    status, body = get(port, "/metrics")
    assert status == 200
    assert 'rollstream_bus_consumed_records_total{topic="demo.prompts"} 1.0' in body
    assert get(port, "/other")[0] == 404


def probe(*words: str, **environment: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["probe", *words], env=environment)
    return result.exit_code, result.output


def test_probe_prints_what_a_stage_says_and_exits_with_0_only_if_it_is_fine(health: Health) -> None:
    port = str(health.serve("127.0.0.1", 0))
    assert probe("livez", "--port", port) == (0, "ok\n")
    assert probe("readyz", ROLLSTREAM_HEALTH_PORT=port) == (1, "failing: starting: no part is ready yet\n")
    health.check("weights", True)
    assert probe("readyz", ROLLSTREAM_HEALTH_PORT=port, ROLLSTREAM_HEALTH_HOST="0.0.0.0") == (0, "ok\n")


def test_probe_says_where_no_stage_answers(health: Health) -> None:
    port = str(health.serve("127.0.0.1", 0))
    health.close()
    code, said = probe("livez", "--port", port)
    assert code == 1
    assert f"no stage answers at 127.0.0.1:{port}: " in said
    code, said = probe("livez")
    assert code == 2
    assert "--port" in said


def test_what_a_lane_reports_is_shown_and_decides_nothing(health: Health, clock: Clock) -> None:
    port = health.serve("127.0.0.1", 0)
    health.check("serving", True)
    lane = health.lane("training")
    lane.check("weights", False, "9 optimizer steps behind, at most 4")
    lane.heartbeat("poll", 30)
    clock.now += 31
    assert get(port, "/readyz") == (200, "ok\n")
    assert get(port, "/livez") == (200, "ok\n")
    checks = json.loads(get(port, "/readyz?verbose")[1])
    assert checks["training/weights"] == {"is_ok": False, "detail": "9 optimizer steps behind, at most 4"}
    assert not json.loads(get(port, "/livez?verbose")[1])["training/poll"]["is_ok"]


def test_a_lane_is_well_while_it_is_ready_and_goes_on(health: Health, clock: Clock) -> None:
    lane = health.lane("training")
    assert not lane.is_well
    lane.check("assignment", True)
    lane.heartbeat("poll", 30)
    assert lane.is_well
    clock.now += 31
    assert not lane.is_well


def test_a_lane_that_is_made_anew_forgets_what_the_former_reported(health: Health) -> None:
    health.lane("training").check("lane", False, "begins anew")
    health.lane("training").check("assignment", True, "12 partitions")
    assert health.of_lanes(Health.readiness).keys() == {"training/assignment"}
