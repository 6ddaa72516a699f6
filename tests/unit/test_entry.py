"""How a stage's process ends, and what it logs: supervisors act on the exit code, people search the lines."""

import contextlib
import json
import logging
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rollstream.process.logs import OneOfAKind

_PROGRAM = """
import logging, resource, time
from structlog.contextvars import bound_contextvars
from rollstream.process.entry import run_process
from rollstream.schemas.errors import *

def fail(error):
    def main(stop):
        raise error
    return main

def ended(stop):
    pass

def waiting(stop):
    print("ready", flush=True)
    while not stop.is_asked:
        time.sleep(0.01)

def stubborn(stop):
    waiting(stop)
    print("asked", flush=True)
    time.sleep(60)

def logging_odd_things(stop):
    try:
        raise ValueError("two\\nlines \\udc80")
    except ValueError as error:
        said = {"group_id": "g", "offset": object()}
        logging.error("lone \\udc80,\\nnew line %s", b"\\xff", exc_info=error, extra=said)

def logging_of_a_message(stop):
    password = "s3cret"
    with bound_contextvars(topic="r.prompts", offset=7):
        try:
            raise ValueError("bad")
        except ValueError:
            logging.getLogger("some.library").exception("at work", extra={"group_id": "g", "unknown": password})
    logging.info("after")

def logging_hostile_ids(stop):
    try:
        raise ValueError("\\x1b[31mred")
    except ValueError:
        logging.exception("read \\x1b]0;title\\x07", extra={"group_id": "\\x1b[2J\\nfake line"})

def out_of_files(stop):
    resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
    kept = [open("/dev/null") for _ in range(24)]

def out_of_memory_in_an_import(stop):
    resource.setrlimit(resource.RLIMIT_AS, (1500000000, 1500000000))
    import rollstream.training.learning.learner

async def in_the_loop(stop):
    raise FencedError("another trainer")

run_process("trainer", {main})
"""


def a_process(main: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", _PROGRAM.replace("{main}", main)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("main", "code"),
    [
        ("ended", 0),
        ("fail(BrokerError('the broker is gone'))", 70),
        ("fail(RegistryError('the registry is gone'))", 70),
        ("fail(FencedError('another trainer'))", 75),
        ("in_the_loop", 75),
        ("fail(ConfigurationError('no such topic'))", 78),
        ("fail(KeyboardInterrupt())", 130),
        ("fail(ZeroDivisionError('a defect'))", 1),
        ("fail(OSError(9, 'Bad file descriptor'))", 1),
        ("fail(KeyError('a'))", 1),
    ],
)
def test_the_exit_code_says_what_kind_of_end_it_was(main: str, code: int) -> None:
    with a_process(main) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == code
    lines = [json.loads(line) for line in err.splitlines()]
    assert {line["stage"] for line in lines} <= {"trainer"}
    # A traceback only where a person has to look into the code.
    assert any("Traceback" in line.get("exception", "") for line in lines) == (code in (1, 70))


@pytest.mark.parametrize(
    ("main", "code", "said"),
    [
        ("fail(FileNotFoundError(2, 'No such file or directory', '/rows.jsonl'))", 70, "'/rows.jsonl'; bring it back"),
        ("fail(PermissionError(13, 'Permission denied', '/rows.jsonl'))", 70, "'/rows.jsonl'; bring it back"),
        ("fail(OSError(28, 'No space left on device'))", 70, "free space"),
        ("fail(MemoryError())", 70, "no memory is left"),
        ("fail(ImportError('libx.so: failed to map segment from shared object'))", 70, "no memory is left"),
        ('fail(RuntimeError("can\'t start new thread"))', 70, "too few threads may run, or no memory"),
        ("fail(ExceptionGroup('two', [OSError(24, 'Too many open files'), ValueError()]))", 70, "too few files may be"),
        ("fail(ModuleNotFoundError(\"No module named 'torch'\", name='torch'))", 78, "comes with the extra"),
        ("fail(ModuleNotFoundError(\"No module named 'mine'\", name='mine'))", 78, "install it, or install"),
        ("out_of_files", 70, "too few files may be open (`ulimit -n`: 24)"),
        ("out_of_memory_in_an_import", 70, "no memory is left (`ulimit -v`: 1500000000 bytes)"),
    ],
)
def test_what_the_machine_refuses_is_one_line_and_an_exit_code_that_supervisors_know(
    main: str, code: int, said: str
) -> None:
    with a_process(main) as process:
        _, err = process.communicate(timeout=100)
    assert process.returncode == code
    [line] = [json.loads(line) for line in err.splitlines()]
    assert said in line["message"]
    assert "exception" not in line


@pytest.mark.parametrize(("main", "code"), [("logging_odd_things", 0), ("in_the_loop", 75)])
def test_a_log_that_cannot_be_written_changes_neither_the_work_nor_the_exit_code(main: str, code: int) -> None:
    command = [sys.executable, "-c", _PROGRAM.replace("{main}", main)]
    with Path("/dev/full").open("w") as full:
        assert subprocess.run(command, stderr=full, timeout=60, check=False).returncode == code


def test_a_signal_asks_for_an_end_and_a_second_one_ends_at_once() -> None:
    with a_process("waiting") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    with a_process("stubborn") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130


def test_a_log_line_is_one_json_object_whatever_is_logged() -> None:
    with a_process("logging_odd_things") as process:
        _, err = process.communicate(timeout=60)
    assert err.isascii()
    shown = json.loads(err.splitlines()[0])
    assert shown["message"] == "lone \udc80,\nnew line b'\\xff'"
    assert (shown["level"], shown["stage"], shown["group_id"]) == ("error", "trainer", "g")
    assert shown["exception"].endswith("ValueError: two\nlines \udc80")


def test_what_is_bound_while_a_message_is_worked_on_is_in_the_lines_of_that_time() -> None:
    with a_process("logging_of_a_message") as process:
        _, err = process.communicate(timeout=60)
    at_work, after, _ = (json.loads(line) for line in err.splitlines())
    assert at_work.items() >= {"topic": "r.prompts", "offset": 7, "group_id": "g", "logger": "some.library"}.items()
    assert not at_work.keys() & {"unknown", "partition"}
    assert not after.keys() & {"topic", "offset", "group_id"}


def read_terminal(descriptor: int) -> str:
    """Everything that was written to a terminal whose other end is closed."""
    parts = []
    with open(descriptor, "rb", buffering=0) as terminal, contextlib.suppress(OSError):
        while part := terminal.read(4096):
            parts.append(part)
    return b"".join(parts).decode()


def shown_on_a_terminal(main: str) -> str:
    terminal, end = pty.openpty()
    command = [sys.executable, "-c", _PROGRAM.replace("{main}", main)]
    with subprocess.Popen(command, stderr=end, env={**os.environ, "NO_COLOR": "1"}) as process:
        os.close(end)
        assert process.wait(60) == 0
    return read_terminal(terminal)


def test_an_id_or_error_text_does_not_steer_the_terminal_of_a_stage() -> None:
    shown = shown_on_a_terminal("logging_hostile_ids")
    assert "\x1b" not in shown
    assert r"read \x1b]0;title\x07" in shown
    assert "fake line" in shown.splitlines()[0]
    assert r"ValueError: \x1b[31mred" in shown


def test_a_terminal_gets_readable_lines_and_no_values_of_variables() -> None:
    shown = shown_on_a_terminal("logging_of_a_message")
    assert "[error    ] at work [some.library] group_id=g offset=7 stage=trainer topic=r.prompts" in shown
    assert "ValueError: bad" in shown
    assert "s3cret" not in shown


def a_line(message: str, *, name: str = "rollstream.kafka_client", at: float = 0.0) -> logging.LogRecord:
    record = logging.LogRecord(name, logging.ERROR, "file", 1, message, (), None)
    record.created = at
    return record


def test_a_kafka_client_without_a_broker_logs_a_line_of_a_kind_once_in_30_s() -> None:
    once = OneOfAKind()
    said = [
        line.getMessage()
        for number in range(1000)
        for line in (a_line(f"Connect to 127.0.0.1:9092 failed (after {number} ms)", at=number * 0.05),)
        if once.filter(line)
    ]
    assert said == [
        "Connect to 127.0.0.1:9092 failed (after 0 ms)",
        "Connect to 127.0.0.1:9092 failed (after 600 ms) (599 more like it since the last)",
    ]
    assert all(once.filter(a_line("the same", name="rollstream.stage.loop")) for _ in range(3))
    assert [once.filter(a_line("other", name="aiokafka.conn")) for _ in range(2)] == [True, False]
