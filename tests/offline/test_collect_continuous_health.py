"""A continuous collection as a process, seen from outside: its metrics, and whether it lives and is ready."""

import json
import socket
import time
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from rollstream.cli.collect import command
from rollstream.cli.probe import command as probe
from tests.harness.forking import start_forked
from tests.harness.processes import StartedProcess
from tests.harness.scraping import scraped
from tests.harness.waits import wait_until

ENGINE = """
[generator.engine]
kind = "scripted"
model_path = "no-tokenizer"
"""


def be_collect(*given: str) -> None:
    """Be `rollstream collect GIVEN`."""
    command.main(list(given))


def started(tmp_path: Path, *more: str) -> StartedProcess:
    config, folder = tmp_path / "engine.toml", tmp_path / "in"
    config.write_text(ENGINE)
    folder.mkdir()
    given = [str(folder), "--output", str(tmp_path / "out"), "--config", str(config), "--watch", "--every", "1s", *more]
    return start_forked(partial(be_collect, *given), log=tmp_path / "collect.log")


def a_free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def put(folder: Path, name: str, *rows: object) -> None:
    """Complete at once, and not as a file that is being written."""
    hidden = folder / f".{name}"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    hidden.rename(folder / name)


def answers(port: int, path: str) -> int | None:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


def test_its_port_tells_what_was_taken_written_and_failed_and_that_it_lives(tmp_path: Path) -> None:
    port = a_free_port()
    process = started(
        tmp_path, "--environment", "sort_digits", "--health-port", str(port), "--health-host", "127.0.0.1"
    )

    def value(name: str, **labels: str) -> float | None:
        return scraped(port, f"rollstream_collect_{name}", **labels)

    began = time.time()
    wait_until(lambda: answers(port, "/readyz") == 200 or process.has_ended, process.said)
    assert answers(port, "/livez") == 200
    assert value("taken_rows_total") == 0
    put(tmp_path / "in", "one.jsonl", {"prompt": "31=", "answer": "13"}, {"prompt": "2="}, {"prompt": None})
    wait_until(lambda: value("finished_parts_total") == 1 or process.has_ended, process.said)
    assert (value("taken_rows_total"), value("bad_rows_total"), value("written_rollouts_total")) == (2, 1, 2)
    # The row without an answer has a response, and no reward.
    assert value("failures_total", code="bad_reward") == 1
    assert value("open_parts") == 0
    put(tmp_path / "in", "two.jsonl", {"prompt": "31=", "answer": "13"}, {"prompt": "4=", "answer": "4"})
    wait_until(lambda: value("finished_parts_total") == 2 or process.has_ended, process.said)
    assert (value("taken_rows_total"), value("written_rollouts_total")) == (3, 3)
    last = value("last_look_timestamp_seconds")
    assert last is not None
    assert began - 1 < last < time.time() + 1
    assert scraped(port, "rollstream_process_ready") == 1
    words = ["livez", "--host", "127.0.0.1", "--port", str(port)]
    assert CliRunner().invoke(probe, words).exit_code == 0
    assert process.terminate() == 0
    assert answers(port, "/livez") is None


def test_without_a_port_nothing_listens(tmp_path: Path) -> None:
    process = started(tmp_path)
    put(tmp_path / "in", "one.jsonl", {"prompt": "31="})
    wait_until(lambda: (tmp_path / "out" / "part-000001.jsonl").exists() or process.has_ended, process.said)
    listening = [one for one in psutil.Process(process.pid).net_connections("inet") if one.status == "LISTEN"]
    assert listening == []
    assert process.terminate() == 0


def test_a_port_that_is_taken_is_an_error_that_says_so(tmp_path: Path) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        process = started(tmp_path, "--health-port", str(bound.getsockname()[1]), "--health-host", "127.0.0.1")
        assert process.wait(60) not in (0, None)
    assert "can't be had at 127.0.0.1" in process.said()


@pytest.mark.parametrize("words", [[], ["--every", "0s"]])
def test_a_port_for_one_collection_is_refused(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "one.jsonl").write_text('{"prompt": "1="}\n')
    (tmp_path / "engine.toml").write_text(ENGINE)
    given = [
        str(tmp_path / "one.jsonl"),
        "--output",
        str(tmp_path / "out.jsonl"),
        "--config",
        str(tmp_path / "engine.toml"),
    ]
    result = CliRunner().invoke(command, [*given, "--health-port", "0", *words])
    assert result.exit_code == 2
    assert not (tmp_path / "out.jsonl").exists()
