"""Starts what a soak needs, with time-lapse: what production keeps for days is kept for minutes."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tomli_w

from rollstream.bus.admin import KafkaAdmin
from rollstream.local.chaos.fleet import Fleet, Launch, Process
from rollstream.local.kafka import KafkaCluster
from rollstream.local.kafka_properties import plan_cluster
from rollstream.local.ports import free_ports
from rollstream.local.processes import ChildProcess
from rollstream.local.redis import RedisServer
from rollstream.local.run_file import refuse_used, run_name
from rollstream.local.soak.conduct import JOINER, REPLACED, Found, Soak
from rollstream.local.soak.samples import StartWatch
from rollstream.local.supervisor import stage_process
from rollstream.local.tiny_model import write_tiny_model
from rollstream.process.settings import RUN_FILE, Stage, StageSettings

_GROUPS_PER_STEP: Final = 2
_MAX_POLICY_LAG: Final = 4
_SEGMENT_SECONDS: Final = 30
# The broker looks for expired segments every five minutes, which is longer than they are kept here.
_BROKER: Final = {"log.retention.check.interval.ms": "5000", "log.cleaner.backoff.ms": "5000"}
_RESIDENT: Final[dict[str, Stage]] = {
    "generator-0": "generator", "scorer-0": "scorer", "producer-0": "producer", "trainer": "trainer"
}  # fmt: skip
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions:
    """One soak: it ends after so many steps or hours.

    `keep_seconds`: how long prompts and rollouts are kept. A trainer that is away for longer refuses to start.
    """

    run_dir: Path
    num_steps: int
    hours: float
    keep_seconds: int = 180
    sample_seconds: float = 5.0


def run_soak(options: SoakOptions, say: Callable[[str], None]) -> Found:
    """A whole soak on a broker and a Redis of its own; the run's directory keeps logs and settings.

    Raises `ConfigurationError` if the directory is that of another run.
    """
    refuse_used(options.run_dir)
    cluster = KafkaCluster(options.run_dir / "kafka", plan_cluster(1), properties=_BROKER)
    redis = RedisServer(options.run_dir / "redis", free_ports(1)[0])
    try:
        cluster.start()
        redis.start()
        return _soak(options, cluster, redis, say).run()
    finally:
        redis.stop()
        cluster.stop()


def _soak(options: SoakOptions, cluster: KafkaCluster, redis: RedisServer, say: Callable[[str], None]) -> Soak:
    directory = options.run_dir.resolve()
    config = _write_run_file(directory, cluster, redis)
    settings = StageSettings.load(config)
    admin = KafkaAdmin(settings.kafka)
    admin.create_topics(settings.run, partitions=2)
    admin.keep_for(settings.run, seconds=options.keep_seconds, segment_seconds=_SEGMENT_SECONDS)
    stages = _RESIDENT | {name: stage for stage, name in REPLACED.items()} | {JOINER: "generator"}
    watch = StartWatch(ports=dict(zip(stages, free_ports(len(stages)), strict=True)))
    fleet = Fleet(_launch(config, watch), directory / "logs")
    for name, stage in stages.items():
        if name != JOINER:
            fleet.start(stage, name)
    return Soak(
        settings=settings, fleet=fleet, watch=watch, kafka=directory / "kafka",
        places=(directory / "weights", directory / "checkpoints"), num_steps=options.num_steps,
        most_seconds=options.hours * 3600, sample_seconds=options.sample_seconds, say=say,
    )  # fmt: skip


def _launch(config: Path, watch: StartWatch) -> Launch:
    def launch(stage: Stage, name: str, log: Path) -> Process:
        log.parent.mkdir(parents=True, exist_ok=True)
        watch.note(stage, name)
        own = _own_settings(stage, name) | {"ROLLSTREAM_HEALTH_PORT": str(watch.ports[name])}
        command = stage_process(stage, config).command
        return ChildProcess.start(command, log, env={**os.environ, **_ONE_THREAD, **own})

    return launch


def _own_settings(stage: Stage, name: str) -> dict[str, str]:
    if stage in ("generator", "scorer"):
        return {f"ROLLSTREAM_{stage.upper()}_ID": name}
    # Each producer has tasks of its own.
    return {"ROLLSTREAM_NAME": name, "ROLLSTREAM_SEED": name.rpartition("-")[2]} if stage == "producer" else {}


def _write_run_file(directory: Path, cluster: KafkaCluster, redis: RedisServer) -> Path:
    write_tiny_model(directory / "model", seed=0, hidden=32, layers=1, heads=2, ffn=64)
    model = str(directory / "model")
    document: dict[str, Any] = {
        "run": run_name(directory),
        "redis_url": redis.url,
        "weight_store": str(directory / "weights"),
        "groups_per_step": _GROUPS_PER_STEP,
        "max_policy_lag": _MAX_POLICY_LAG,
        "kafka": {"bootstrap_servers": cluster.bootstrap_servers},
        "producer": {
            "environment": "sort_digits",
            "group_size": 2,
            "share": (_MAX_POLICY_LAG + 1) * _GROUPS_PER_STEP // 2,
            "sampling": {"temperature": 1.0, "max_tokens": 12},
        },
        "generator": {
            "engine": {
                "kind": "scripted", "model_path": model, "max_model_len": 32,
                "scripted": {"correct_ratio": 0.5, "token_seconds": 0.002},
            },
        },
        # A killed scorer's partitions wait for the end of its session.
        "scorer": {"session_timeout_seconds": 10.0, "batch_deadline_seconds": 9.0, "load_deadline_seconds": 8.0},
        "trainer": {
            "model_path": model,
            "checkpoints": str(directory / "checkpoints"),
            "checkpoint_every": 20,
            # A rollback needs the files of the version of the checkpoint before the newest.
            "keep_versions": 60,
            "keep_checkpoints": 3,
            "train_without_spread": True,
            "learning": {"learning_rate": 0.0001, "threads": 1},
        },
    }  # fmt: skip
    path = directory / RUN_FILE
    path.write_text(tomli_w.dumps(document), encoding="utf-8")
    return path
