"""Starts what a campaign needs: brokers, Redis, a tiny model, a run with two of most stages, and ends it all."""

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from rollstream.bus.admin import KafkaAdmin
from rollstream.local.chaos.accounting import OutsideClient
from rollstream.local.chaos.campaign import Campaign, Report, Say
from rollstream.local.chaos.fleet import Fleet, Launch, Process
from rollstream.local.chaos.leftovers import Leftovers
from rollstream.local.chaos.strikes import Pace, World
from rollstream.local.kafka import KafkaCluster
from rollstream.local.processes import ChildProcess
from rollstream.local.redis import RedisServer
from rollstream.local.small_run import ONE_THREAD, Servers, own_settings, servers_of, write_small_run
from rollstream.local.supervisor import stage_process
from rollstream.process.settings import Stage, StageSettings

GROUPS_PER_STEP: Final = 4
_MAX_POLICY_LAG: Final = 4
_KEEP_VERSIONS: Final = 10
_KEEP_CHECKPOINTS: Final = 2
# The incarnation that is written while an older one is not deleted yet.
_MOST_DIRECTORIES: Final = _KEEP_VERSIONS + _KEEP_CHECKPOINTS + 2
_TWICE: Final[tuple[Stage, ...]] = ("generator", "scorer", "producer")
Launching = Callable[[Stage, Path, Path, Mapping[str, str]], Process]
"""(stage, the run's file, log, environment) → the process that was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """One campaign; `num_each`: how many generators, scorers and producers there are from the start."""

    run_dir: Path
    seed: int = 0
    num_faults: int = 1000
    brokers: Literal[1, 3] = 3
    num_each: int = 2
    pace: Pace = field(default_factory=Pace)


def run_chaos(options: ChaosOptions, say: Say) -> Report:
    """A whole campaign on brokers and a Redis of its own; the run's directory keeps logs and settings.

    Raises `ConfigurationError` if the directory is that of another run.
    """
    with servers_of(options.run_dir, options.brokers) as (cluster, redis):
        return run_campaign(options, cluster, redis, say)


def run_campaign(
    options: ChaosOptions,
    cluster: KafkaCluster,
    redis: RedisServer,
    say: Say,
    *,
    launching: Launching | None = None,
    **campaign: Any,
) -> Report:
    """A campaign on servers that run. `launching` starts a stage (default: as people do); see `Campaign`."""
    config = _write_run_file(options, (cluster, redis))
    settings = StageSettings.load(config)
    KafkaAdmin(settings.kafka).create_topics(settings.run, partitions=4)
    # In /tmp and with a short name: sockets of child processes are made in it, whose paths are bounded.
    temporary = Path(tempfile.mkdtemp(prefix="chaos-"))
    leftovers = Leftovers(
        campaign=uuid.uuid4().hex,
        temporary=temporary,
        weights=Path(settings.weight_store),
        checkpoints=options.run_dir / "checkpoints",
        most_directories=_MOST_DIRECTORIES,
    )
    fleet = Fleet(_launch(config, leftovers.environment, launching or _as_people_do), options.run_dir / "logs")
    outside = OutsideClient(settings.kafka.bootstrap_servers, settings.run)
    world = World(settings=settings, fleet=fleet, outside=outside, cluster=cluster, redis=redis, pace=options.pace)
    try:
        fleet.start("trainer", "trainer")
        for stage in _TWICE:
            for number in range(options.num_each):
                fleet.start(stage, f"{stage}-{number}")
        made = Campaign(
            world=world, seed=options.seed, groups_per_step=GROUPS_PER_STEP, leftovers=leftovers, say=say, **campaign
        )
        return made.run(options.num_faults)
    finally:
        fleet.kill_all()
        shutil.rmtree(temporary, ignore_errors=True)


def _launch(config: Path, environment: Mapping[str, str], launching: Launching) -> Launch:
    def launch(stage: Stage, name: str, log: Path) -> Process:
        log.parent.mkdir(parents=True, exist_ok=True)
        return launching(stage, config, log, {**ONE_THREAD, **environment, **own_settings(stage, name)})

    return launch


def _as_people_do(stage: Stage, config: Path, log: Path, environment: Mapping[str, str]) -> Process:
    return ChildProcess.start(stage_process(stage, config).command, log, env={**os.environ, **environment})


def _write_run_file(options: ChaosOptions, servers: Servers) -> Path:
    return write_small_run(
        options.run_dir,
        servers,
        token_seconds=0.05,
        shared={"groups_per_step": GROUPS_PER_STEP, "max_policy_lag": _MAX_POLICY_LAG},
        producer={"group_size": 4, "share": (_MAX_POLICY_LAG + 1) * GROUPS_PER_STEP // options.num_each},
        trainer={
            "checkpoint_every": 4,
            "keep_versions": _KEEP_VERSIONS,
            "keep_checkpoints": _KEEP_CHECKPOINTS,
            "learning": {"learning_rate": 0.001, "threads": 1},
        },
    )
