"""Campaigns: faults at random upon a run that lives; nothing is lost, trained on twice, or left behind."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from rollstream.local.kafka import KafkaCluster
from rollstream.local.kafka_properties import plan_cluster
from rollstream.local.ports import free_ports
from rollstream.local.redis import RedisServer
from rollstream.process.settings.base import STAGES, Stage
from tests.chaos.campaign import PROGRESS_SECONDS, Report
from tests.chaos.faults import EVERY_KIND, WITH_SERVERS
from tests.chaos.start import ChaosOptions, run_campaign, run_chaos
from tests.chaos.world import Pace
from tests.harness.forking import start_command
from tests.harness.processes import StartedProcess

# Each kind once, and a kill of each stage.
KINDS = {**dict.fromkeys(EVERY_KIND, 1), "kill": len(STAGES)}
NUM_FAULTS = sum(KINDS.values())
# One broker: each outage and suspension takes seconds.
PACE = Pace(pause_seconds=0.25, suspend_seconds=11.0, outage_seconds=4.0)


def forked(stage: Stage, config: Path, log: Path, environment: Mapping[str, str]) -> StartedProcess:
    """`rollstream STAGE`, forked from a process with its imports."""
    return start_command(stage, "--config", str(config), log=log, env=environment)


def check(report: Report) -> None:
    assert report.problems == ()
    assert report.trained > 0
    assert min(report.answers.values()) > 0
    assert max(report.recoveries_seconds) < PROGRESS_SECONDS


@pytest.mark.timeout(600)
def test_a_fault_of_every_kind_and_a_kill_of_every_stage_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    cluster = KafkaCluster(tmp_path / "kafka", plan_cluster(1))
    redis = RedisServer(tmp_path / "redis", free_ports(1)[0])
    options = ChaosOptions(run_dir=tmp_path / "run", seed=1, num_faults=NUM_FAULTS, brokers=1, pace=PACE)
    options.run_dir.mkdir()
    try:
        cluster.start()
        redis.start()
        report = run_campaign(
            options, cluster, redis, print, launching=forked, kinds=KINDS, faults_per_round=NUM_FAULTS
        )
    finally:
        redis.stop()
        cluster.stop()
    check(report)
    assert sum(report.faults.values()) == NUM_FAULTS
    assert report.faults.keys() == KINDS.keys()
    assert {f"{stage} -9" for stage in STAGES} <= report.ends.keys()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_faults_upon_a_vllm_generator_and_one_that_asks_a_server_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    kinds = {**KINDS, **dict.fromkeys(WITH_SERVERS.keys() - KINDS.keys(), 1)}
    options = ChaosOptions(
        run_dir=tmp_path, seed=7, num_faults=sum(kinds.values()), brokers=1, generators=("vllm", "openai_http"),
        pace=Pace(pause_seconds=4.0),
    )  # fmt: skip
    report = run_chaos(options, print, kinds=kinds)
    assert report.problems == ()
    assert report.trained > 0
    assert report.faults == kinds
    assert min(report.samples["vllm"], report.samples["openai_http"]) > 0


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_a_thousand_faults_on_three_brokers_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    check(run_chaos(ChaosOptions(run_dir=tmp_path, seed=1, num_faults=1000), print))
