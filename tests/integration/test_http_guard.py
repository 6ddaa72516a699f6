"""What strangers can do to an HTTP server of ours over a socket: little, and others do not notice."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.harness.guarded_server import KEYS, GuardedServer, a_guarded_server
from tests.harness.raw_client import a_request, connected, exchanged, is_closed, read_answer
from tests.harness.waits import wait_until

ALICE, BOB = KEYS["alice"], KEYS["bob"]
MIB = 2**20
# Of a bare server; what an attack holds would be many times that.
ROOM_BYTES = 24 * MIB


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServer]:
    """One for all attacks, with times that a test can wait for."""
    with a_guarded_server(
        tmp_path_factory.mktemp("guarded") / "log",
        header_seconds=0.5,
        body_seconds=1.0,
        stall_seconds=1.0,
        header_bytes=2**15,
        body_bytes=2**20,
        bodies_bytes=3 * 2**20,
        max_connections=300,
        max_calls=8,
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def _answers_others_and_keeps_no_memory(server: GuardedServer) -> Iterator[None]:
    """After each attack another client is answered, nothing is in work, and the process is not larger."""
    before = server.rss_bytes
    yield
    wait_until(lambda: server.gauge("calls_in_work") == 0, "no call in work")
    assert exchanged(server.port, a_request(key=ALICE)).status == 200
    assert server.rss_bytes - before < ROOM_BYTES
    assert server.gauge("bodies_bytes") == 0


def test_a_client_is_answered_again_and_again_on_one_connection(server: GuardedServer) -> None:
    with connected(server.port) as connection:
        for number in range(3):
            connection.sendall(a_request(body=json.dumps({"n": number}).encode(), key=BOB))
            answer = read_answer(connection)
            assert (answer.status, answer.json["json"], answer.json["client"]) == (200, {"n": number}, "bob")


def test_an_application_sees_neither_keys_nor_stripped_headers(server: GuardedServer) -> None:
    sent = {"x-request-id": "mine", "x-api-key": ALICE, "x-session-id": "s"}
    answer = exchanged(server.port, a_request(headers=sent))
    assert answer.json["headers"] == ["content-length", "host", "x-session-id"]
    assert answer.json["tenant"] == "alice-tenant"


@pytest.mark.parametrize("path", ["/echo", "/nowhere"])
def test_without_a_key_every_path_answers_401_before_a_body_is_read(server: GuardedServer, path: str) -> None:
    with connected(server.port) as connection:
        connection.sendall(a_request(path, headers={"content-length": "1000", "x-api-key": "wrong"}))
        answer = read_answer(connection)
    assert answer.status == 401
    assert "x-api-key" in answer.json["error"]["message"]
    assert "wrong" not in answer.body.decode()


def test_an_error_has_the_shape_of_anthropic_on_its_route(server: GuardedServer) -> None:
    answer = exchanged(server.port, a_request("/s/my-session/v1/messages"))
    assert answer.json["type"] == "error"
    assert answer.json["error"]["type"] == "authentication_error"


def test_an_idle_connection_is_closed(server: GuardedServer) -> None:
    with connected(server.port) as connection:
        assert is_closed(connection)


def test_half_a_header_ends_with_408(server: GuardedServer) -> None:
    with connected(server.port) as connection:
        connection.sendall(b"POST /echo HTTP/1.1\r\nhost: here\r\nx-half: ")
        assert read_answer(connection).status == 408
        assert is_closed(connection)


def test_empty_lines_keep_no_connection_open(server: GuardedServer) -> None:
    with connected(server.port) as connection:
        while True:
            try:
                connection.sendall(b"\r\n")
                if connection.recv(2**12, socket.MSG_DONTWAIT) is not None:
                    break
            except BlockingIOError:
                time.sleep(0.05)
            except ConnectionError:
                break


def test_a_header_without_an_end_is_cut_at_its_bound(server: GuardedServer) -> None:
    answer = exchanged(server.port, b"POST /echo HTTP/1.1\r\nx-long: " + b"a" * (48 * MIB))
    assert (answer.status, answer.json["error"]["code"]) == (431, "header_bytes")


def test_many_headers_that_come_at_once_are_cut_too(server: GuardedServer) -> None:
    many = "".join(f"x-{number}: a\r\n" for number in range(5000))
    assert exchanged(server.port, f"GET /echo HTTP/1.1\r\n{many}\r\n".encode()).status == 431


def test_a_body_that_is_declared_too_large_is_not_read(server: GuardedServer) -> None:
    answer = exchanged(server.port, a_request(body=b"x" * (100 * MIB), key=ALICE))
    assert (answer.status, answer.json["error"]["code"]) == (413, "body_bytes")
    assert str(2**20) in answer.json["error"]["message"]


@pytest.mark.parametrize("declared", ["9" * 18, "9" * 19])
def test_a_body_of_an_absurd_length_is_refused(server: GuardedServer, declared: str) -> None:
    assert exchanged(server.port, a_request(key=ALICE, headers={"content-length": declared})).status in (400, 413)


def test_a_chunked_body_is_cut_at_its_bound(server: GuardedServer) -> None:
    chunk = b"10000\r\n" + b"x" * 2**16 + b"\r\n"
    head = a_request(key=ALICE, headers={"content-length": "", "transfer-encoding": "chunked"})
    assert exchanged(server.port, head + chunk * 1600 + b"0\r\n\r\n").status == 413


def test_trailers_without_an_end_are_cut(server: GuardedServer) -> None:
    head = a_request(key=ALICE, headers={"content-length": "", "transfer-encoding": "chunked"})
    answer = exchanged(server.port, head + b"1\r\n1\r\n0\r\n" + b"x-trailer: a\r\n" * 4_000_000)
    assert answer.status == 431


def test_a_body_that_comes_a_byte_at_a_time_ends_with_408(server: GuardedServer) -> None:
    with connected(server.port) as connection:
        connection.sendall(a_request(key=ALICE, headers={"content-length": "1000"}))
        with suppress(ConnectionError):
            for _ in range(100):
                connection.sendall(b"1")
                if select_readable(connection):
                    break
        assert read_answer(connection).status == 408


def test_a_client_that_takes_nothing_of_its_answer_is_cut(server: GuardedServer) -> None:
    before = server.refused("stalled")
    with connected(server.port) as connection:
        connection.sendall(a_request("/endless", key=ALICE))
        wait_until(lambda: server.refused("stalled") > before, "the client that reads nothing to be cut")
        wait_until(lambda: server.gauge("calls_in_work") == 0, "its call to end")


def test_a_client_that_leaves_ends_its_call(server: GuardedServer) -> None:
    with connected(server.port) as connection:
        connection.sendall(a_request("/endless", key=ALICE))
        assert connection.recv(12) == b"HTTP/1.1 200"


def test_idle_strangers_keep_nobody_out(server: GuardedServer) -> None:
    with ExitStack() as stack:
        before = server.refused("connections")
        for _ in range(700):
            stack.enter_context(connected(server.port))
        assert exchanged(server.port, a_request(key=ALICE)).status == 200
        assert server.refused("connections") > before
        assert server.gauge("connections") <= 300


def test_more_calls_than_the_bound_are_told_to_come_again(server: GuardedServer) -> None:
    with ExitStack() as stack:
        calls = [stack.enter_context(connected(server.port)) for _ in range(8)]
        for call in calls:
            call.sendall(a_request("/hold", body=b"[1]", key=ALICE))
        wait_until(lambda: server.gauge("calls_in_work") == 8, "eight calls in work")
        wait_until(lambda: server.gauge("bodies_bytes") == 24, "their bodies")
        answer = exchanged(server.port, a_request(key=BOB))
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")


def test_bodies_together_are_bounded(server: GuardedServer) -> None:
    with ExitStack() as stack:
        bodies = [stack.enter_context(connected(server.port)) for _ in range(4)]
        for connection in bodies:
            with suppress(ConnectionError):
                connection.sendall(a_request(key=ALICE, headers={"content-length": str(MIB)}) + b" " * (MIB - 1))
        assert 503 in [read_answer(connection).status for connection in bodies]


def test_a_request_before_the_answer_to_the_last_one_is_not_read(server: GuardedServer) -> None:
    with connected(server.port) as connection:
        connection.sendall(a_request(key=ALICE) * 5000)
        assert read_answer(connection).status == 200
        assert is_closed(connection)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET http:// HTTP/1.1\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: a\r\n\r\n",
        b"CONNECT here:443 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"POST /echo HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /echo HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused(server: GuardedServer, sent: bytes) -> None:
    assert exchanged(server.port, sent).status in (400, 401)


def test_a_body_with_bad_chunks_ends_its_call_alone(server: GuardedServer) -> None:
    head = a_request(key=ALICE, headers={"content-length": "", "transfer-encoding": "chunked"})
    assert exchanged(server.port, head + b"zz\r\n").status == 400


def test_a_request_for_a_websocket_is_answered_as_any_other(server: GuardedServer) -> None:
    asked = {"connection": "upgrade", "upgrade": "websocket", "content-length": ""}
    assert exchanged(server.port, a_request(key=ALICE, method="GET", headers=asked)).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'["\\ud800"]',
        b'{"a": 1, "a": 2}',
        b"[NaN]",
        b"[1e999]",
        b"9" * 5000,
        b'"\xff"',
        b"{",
        b"[[],[]," * 120_000,
        b"\x1f\x8b\x08\x00",
    ],
)
def test_hostile_json_is_a_400_that_repeats_nothing(server: GuardedServer, body: bytes) -> None:
    answer = exchanged(server.port, a_request(body=body, key=ALICE))
    assert (answer.status, answer.json["error"]["code"]) == (400, "json")
    assert len(answer.body) < 300


def test_an_application_that_fails_says_so_without_its_reason(server: GuardedServer) -> None:
    answer = exchanged(server.port, a_request("/fails", key=ALICE))
    assert (answer.status, answer.json["error"]["code"]) == (500, "failed")
    assert "this application fails" in server.process.said()


def test_a_key_has_its_rate_and_others_theirs(tmp_path: Path) -> None:
    with a_guarded_server(tmp_path / "log", calls_per_minute=2) as limited:
        statuses = [exchanged(limited.port, a_request(key=ALICE)).status for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert int(exchanged(limited.port, a_request(key=ALICE)).headers["retry-after"]) in range(1, 31)
        assert exchanged(limited.port, a_request(key=BOB)).status == 200


def test_at_its_end_a_server_finishes_calls_and_refuses_new_ones(tmp_path: Path) -> None:
    with a_guarded_server(tmp_path / "log") as ending, connected(ending.port) as held, connected(ending.port) as late:
        held.sendall(a_request("/hold", key=ALICE))
        late.sendall(a_request("/hold", key=ALICE)[:20])
        wait_until(lambda: ending.gauge("calls_in_work") == 1, "the call in work")
        ending.process.signal(15)
        wait_until(lambda: exchanged(ending.port, a_request(key=BOB)).status == 503, "new calls to be refused")
        late.sendall(a_request("/hold", key=ALICE)[20:])
        answer = read_answer(late)
        assert (answer.status, answer.json["error"]["code"]) == (503, "draining")
        held.close()
        assert ending.process.wait(10) == 0
        assert "Traceback" not in ending.process.said()


def select_readable(connection: socket.socket) -> bool:
    """Whether the server has said something within 50 ms."""
    connection.settimeout(0.05)
    try:
        return connection.recv(1, socket.MSG_PEEK) is not None
    except TimeoutError:
        return False
    finally:
        connection.settimeout(30.0)
