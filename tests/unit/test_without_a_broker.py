"""Without a broker it is said within 5 s where it was looked for and why nobody answered."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollstream.cli.main import cli
from rollstream.schemas.errors import BrokerError


@pytest.fixture
def nowhere() -> str:
    """An address at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def refused(*words: str) -> tuple[str, float]:
    began = time.monotonic()
    result = CliRunner().invoke(cli, words)
    assert isinstance(result.exception, BrokerError), result.output
    return str(result.exception), time.monotonic() - began


def test_a_command_says_within_5_s_where_it_looked_and_why_nobody_answered(nowhere: str, tmp_path: Path) -> None:
    config = tmp_path / "rollstream.toml"
    config.write_text(f'run = "demo"\n[kafka]\nbootstrap_servers = "{nowhere}"\n')
    said, seconds = refused("status", "--config", str(config))
    assert f"no broker answered at {nowhere} within 5 s" in said
    assert "Connection refused" in said
    assert "`rollstream up` starts one; kafka.bootstrap_servers says where it is" in said
    assert seconds < 15
    said, _ = refused("ledger", "check", "--config", str(config))
    assert f"no broker answered at {nowhere} within 5 s" in said
    said, seconds = refused("prompt", "x", "--timeout", "1", "--config", str(config))
    assert f"no broker answered at {nowhere} within 1 s" in said
    assert seconds < 5


def test_a_stage_says_the_same_after_5_s_while_it_waits_on_and_prints_nothing_else(
    nowhere: str, tmp_path: Path
) -> None:
    config = tmp_path / "rollstream.toml"
    config.write_text(
        f'run = "demo"\n[kafka]\nbootstrap_servers = "{nowhere}"\n[producer]\nenvironment = "sort_digits"\n'
    )
    command = [sys.executable, "-m", "rollstream.cli.main", "producer", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = [json.loads(process.stderr.readline())["message"] for _ in range(3)]
        finally:
            process.kill()
    assert lines[0].startswith("settings of producer")
    assert lines[1].startswith("serving /metrics")
    assert lines[2].startswith(f"no broker answered at {nowhere} within 5 s (")
    assert lines[2].endswith("; waiting for 25 s more")


@pytest.mark.parametrize(("stage", "table"), [("trainer", "[trainer]"), ("generator", "[generator.engine]")])
def test_a_wrong_file_ends_a_stage_before_torch_is_imported(stage: str, table: str, tmp_path: Path) -> None:
    for heavy in ("torch", "vllm", "transformers"):
        (tmp_path / f"{heavy}.py").write_text("raise SystemExit(99)")
    (tmp_path / "rollstream.toml").write_text(f'run = "demo"\n{table}\nmodel_path = 3\n')
    done = subprocess.run(
        [sys.executable, "-m", "rollstream.cli.main", stage], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, timeout=60,
    )  # fmt: skip
    assert done.returncode == 78, done.stderr
    assert "rollstream.toml line 3" in done.stderr


_APART = """
import os, threading
from rollstream.process.apart import run_apart
from rollstream.schemas.errors import *

def refuse():
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    raise ConfigurationError("no topics")

def fail():
    raise ValueError("what")

for check in (lambda: None, refuse, fail, lambda: os._exit(9)):
    try:
        run_apart(check)
        print("fine")
    except RollstreamError as error:
        print(type(error).__name__, error)
print(threading.active_count())
"""


def test_a_check_in_a_child_tells_its_error_here_and_leaves_no_thread() -> None:
    done = subprocess.run([sys.executable, "-c", _APART], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == [
        "fine",
        "ConfigurationError no topics",
        "BrokenWorldError ValueError: what",
        "BrokenWorldError a check before the start was ended from outside",
        "1",
    ]
