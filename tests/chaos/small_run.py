"""A run of a few kilobytes of model with a scripted engine, for faults and for time-lapse: servers, file, processes."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

import tomli_w

from rollstream.local.kafka import KafkaCluster
from rollstream.local.kafka_properties import plan_cluster
from rollstream.local.ports import free_ports
from rollstream.local.processes import ChildProcess
from rollstream.local.redis import RedisServer
from rollstream.local.run_file import refuse_used, run_name
from rollstream.local.supervisor import stage_process
from rollstream.local.tiny_model import write_tiny_model
from rollstream.process.files import write_private
from rollstream.process.settings.base import RUN_FILE, Stage
from rollstream.schemas.errors import ConfigurationError
from tests.chaos.fleet import Launch, Process

_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1"}
MODEL_LENGTH: Final = 32
"""Most tokens of prompt and answer together."""
Servers = tuple[KafkaCluster, RedisServer]
Launching = Callable[[Stage, Path, Path, Mapping[str, str]], Process]
"""(stage, the run's file, log, environment) → the process that was started."""


@contextmanager
def servers_of(
    run_dir: Path, brokers: Literal[1, 3], properties: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Servers]:
    """Brokers and a Redis of a run's own while the block runs.

    Raises `ConfigurationError` if the directory is that of another run, and a `LocalStackError`.
    """
    refuse_used(run_dir)
    try:
        (run_dir / "kafka").mkdir(parents=True)  # only one of several that start at once can make it
    except FileExistsError as error:
        raise ConfigurationError(
            f"{run_dir / 'kafka'} exists: another run is there; choose a new --run-dir, or leave it out"
        ) from error
    cluster = KafkaCluster(run_dir / "kafka", plan_cluster(brokers), properties=properties)
    redis = RedisServer(run_dir / "redis", free_ports(1)[0])
    try:
        cluster.start()
        redis.start()
        yield cluster, redis
    finally:
        redis.stop()
        cluster.stop()


def write_small_run(
    directory: Path, servers: Servers, *, token_seconds: float, shared: Mapping[str, Any], **tables: Mapping[str, Any]
) -> Path:
    """Make the model and the run's file; `shared` and `tables` add to what is the same for all such runs."""
    directory = directory.resolve()
    write_tiny_model(directory / "model", seed=0, hidden=32, layers=1, heads=1, ffn=64)
    model = str(directory / "model")
    cluster, redis = servers
    same: dict[str, Mapping[str, Any]] = {
        "kafka": {"bootstrap_servers": cluster.bootstrap_servers},
        "producer": {"environment": "sort_digits", "sampling": {"temperature": 1.0, "max_tokens": 12}},
        "generator": {
            "engine": {
                "kind": "scripted", "model_path": model, "max_model_len": MODEL_LENGTH,
                "scripted": {"correct_ratio": 0.5, "token_seconds": token_seconds},
            },
        },
        # A killed scorer's partitions wait for the end of its session.
        "scorer": {"session_timeout_seconds": 10.0, "batch_deadline_seconds": 9.0, "load_deadline_seconds": 8.0},
        "trainer": {"model_path": model, "checkpoints": str(directory / "checkpoints")},
    }  # fmt: skip
    document = {
        "run": run_name(directory),
        "redis_url": redis.url,
        "weight_store": str(directory / "weights"),
        **shared,
        **{name: {**same.get(name, {}), **tables.get(name, {})} for name in (*same, *(tables.keys() - same))},
    }
    path = directory / RUN_FILE
    write_private(path, tomli_w.dumps(document))
    return path


def as_people_do(stage: Stage, config: Path, log: Path, environment: Mapping[str, str]) -> Process:
    """Start `rollstream STAGE --config CONFIG`."""
    return ChildProcess.start(stage_process(stage, config).command, log, env={**os.environ, **environment})


def launch_with(
    config: Path,
    shared: Mapping[str, str],
    own: Callable[[Stage, str], Mapping[str, str]],
    launching: Launching = as_people_do,
) -> Launch:
    """Starts stages of a run. `shared` is in the environment of all, `own(stage, name)` in that of one process."""

    def launch(stage: Stage, name: str, log: Path) -> Process:
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**_ONE_THREAD, **shared, **_identity(stage, name), **own(stage, name)}
        return launching(stage, config, log, environment)

    return launch


def _identity(stage: Stage, name: str) -> dict[str, str]:
    """What tells one of several processes of a stage from the others."""
    if stage == "producer":
        # Each has tasks of its own, if it has tasks.
        return {"ROLLSTREAM_NAME": name, "ROLLSTREAM_SEED": name.rpartition("-")[2]}
    return {f"ROLLSTREAM_{stage.upper()}_ID": name} if stage in ("generator", "scorer") else {}
