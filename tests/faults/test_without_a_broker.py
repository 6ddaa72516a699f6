"""What is said without a broker, by a client that refuses, and of a partition that nobody answers for."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.clients import cluster_topics
from rollstream.bus.message import Partition
from rollstream.bus.publisher import Publisher
from rollstream.bus.reader import TopicReader
from rollstream.bus.transaction import TransactionalPublisher
from rollstream.cli.main import cli
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.errors import BrokerError, ConfigurationError
from rollstream.scorer.fetching import Fetched, FetchWatch


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
from rollstream.process.in_child import run_in_child
from rollstream.schemas.errors import *

def refuse():
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    raise ConfigurationError("no topics")

def fail():
    raise ValueError("what")

for check in (lambda: None, refuse, fail, lambda: os._exit(9)):
    try:
        run_in_child(check)
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


def test_the_address_that_does_not_answer_is_told() -> None:
    with pytest.raises(BrokerError, match=r"no broker answered at 127\.0\.0\.1:1 within"):
        cluster_topics(KafkaSettings(bootstrap_servers="127.0.0.1:1"), 0.2)


@pytest.mark.parametrize(
    "wrong", [{"sasl.pasword": "hunter2"}, {"security.protocol": "SSL", "ssl.cipher.suites": "hunter2"}]
)
@pytest.mark.parametrize(
    "make",
    [
        KafkaAdmin,
        lambda kafka: TopicReader(kafka, ["t"]),
        lambda kafka: Publisher(kafka, client_id="x"),
        lambda kafka: TransactionalPublisher(kafka, "x"),
    ],
    ids=["admin", "reader", "publisher", "transactions"],
)
def test_a_security_setting_that_the_client_refuses_is_an_error_of_ours_without_its_value(make, wrong) -> None:
    kafka = KafkaSettings(security=wrong)
    with pytest.raises(ConfigurationError, match=r"the Kafka client refuses the settings of \[kafka\]") as raised:
        make(kafka)
    assert "hunter2" not in str(raised.value)
    assert "pasword" in str(raised.value) or "ssl.cipher.suites" in str(raised.value)


ONE: Partition = ("demo.rollouts", 0)
TWO: Partition = ("demo.rollouts", 1)


def state(answer: int | None, *, has_records: bool = False) -> Fetched:
    return Fetched(answer=answer, has_records=has_records)


def test_a_partition_is_read_from_its_first_answer_on() -> None:
    watch = FetchWatch(10)
    assert watch.look({ONE: state(None)}, 0) == "demo.rollouts/0 was not read yet"
    assert watch.look({ONE: state(1000)}, 1) == ""


def test_one_silent_partition_among_others_is_named_with_its_silence() -> None:
    watch = FetchWatch(10)
    for second in range(13):
        said = watch.look({ONE: state(second), TWO: state(0)}, second)
        assert said == ("" if second <= 10 else f"demo.rollouts/1 was not read for {second} s, at most 10 s")
    assert watch.look({ONE: state(13), TWO: state(13)}, 13) == ""


def test_a_partition_whose_records_wait_here_is_read_although_nothing_is_fetched() -> None:
    watch = FetchWatch(10)
    for second in range(30):
        assert watch.look({ONE: state(0, has_records=True)}, second) == ""


def test_a_partition_that_stays_over_a_rebalance_keeps_its_time_and_one_that_comes_back_does_not() -> None:
    watch = FetchWatch(10)
    watch.look({ONE: state(5)}, 0)
    assert watch.look({ONE: state(None), TWO: state(7)}, 1) == ""
    watch.look({TWO: state(8)}, 2)
    assert watch.look({ONE: state(None), TWO: state(9)}, 3) == "demo.rollouts/0 was not read yet"
