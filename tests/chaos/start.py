"""Starts what a campaign needs: brokers, Redis, a tiny model, a run with two of most stages, and ends it all."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from rollstream.bus.admin import KafkaAdmin
from rollstream.local.kafka import KafkaCluster
from rollstream.local.redis import RedisServer
from rollstream.process.settings.base import Stage, StageSettings
from rollstream.process.terminal import Say
from tests.chaos.accounting import OutsideClient
from tests.chaos.callers import Callers
from tests.chaos.campaign import PROGRESS_SECONDS, Campaign, Report
from tests.chaos.faults import EVERY_KIND, WITH_SERVERS
from tests.chaos.fleet import Fleet
from tests.chaos.generators import EngineKind, Generators, generators_of, needs_vllm, settings_of
from tests.chaos.leftovers import leftovers_of
from tests.chaos.serving import FEEDBACK, ServingRun, serving_run
from tests.chaos.small_run import Launching, Servers, as_people_do, launch_with, servers_of, write_small_run
from tests.chaos.world import Pace, World

GROUPS_PER_STEP: Final = 4
_MAX_POLICY_LAG: Final = 4
_LOST_AFTER_SECONDS: Final = 15.0
_KEEP_VERSIONS: Final = 10
_KEEP_CHECKPOINTS: Final = 2
# The incarnation that is written while an older one is not deleted yet.
_MOST_DIRECTORIES: Final = _KEEP_VERSIONS + _KEEP_CHECKPOINTS + 2
# Of a record of the campaign itself: while it is awaited no fault is undone.
_DELIVERY_SECONDS: Final = 10.0
# vLLM takes half a minute to start, and several times as long beside the other stages.
_VLLM_PROGRESS_SECONDS: Final = 300.0
_TWICE: Final[tuple[Stage, ...]] = ("scorer", "producer")
# Of the groups that may be open the producer of feedback has so many.
_FEEDBACK_SHARE: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """One campaign. There are `num_each` scorers and producers from the start, and a generator for each engine.

    `callers`: so many clients ask the generators at the same time, and rate the answers.
    """

    run_dir: Path
    seed: int = 0
    num_faults: int = 1000
    brokers: Literal[1, 3] = 3
    num_each: int = 2
    generators: tuple[EngineKind, ...] = ("scripted", "scripted")
    pace: Pace = field(default_factory=Pace)
    callers: int = 4


def run_chaos(options: ChaosOptions, say: Say, **campaign: Any) -> Report:
    """A whole campaign on brokers and a Redis of its own; the run's directory keeps logs and settings.

    `campaign`: see `Campaign`. Raises `ConfigurationError` if the directory is that of another run.
    """
    with servers_of(options.run_dir, options.brokers) as (cluster, redis):
        return run_campaign(options, cluster, redis, say, **campaign)


def run_campaign(
    options: ChaosOptions,
    cluster: KafkaCluster,
    redis: RedisServer,
    say: Say,
    *,
    launching: Launching = as_people_do,
    **campaign: Any,
) -> Report:
    """A campaign on servers that run. `launching` starts a stage (default: as people do); see `Campaign`."""
    names = [f"generator-{number}" for number in range(len(options.generators))]
    serving = serving_run(names, options.run_dir)
    config = _write_run_file(options, (cluster, redis), serving)
    settings = StageSettings.load(config)
    KafkaAdmin(settings.kafka).create_topics(settings.run, partitions=4)
    with (
        generators_of(options.generators, config.parent) as generators,
        leftovers_of(config.parent, _MOST_DIRECTORIES) as leftovers,
    ):
        launch = launch_with(
            config,
            leftovers.environment,
            lambda _, name: {**generators.environments.get(name, {}), **serving.environments.get(name, {})},
            launching,
        )
        world = World(
            settings=settings,
            fleet=Fleet(launch, config.parent / "logs"),
            outside=OutsideClient(settings.kafka.bootstrap_servers, settings.run, delivery_seconds=_DELIVERY_SECONDS),
            cluster=cluster,
            redis=redis,
            generators=generators,
            callers=Callers(serving, num_callers=options.callers, seed=options.seed),
            store=serving.store,
            pace=options.pace,
        )
        parts: dict[str, Any] = {
            "kinds": WITH_SERVERS if generators.servers else EVERY_KIND,
            "progress_seconds": _VLLM_PROGRESS_SECONDS if needs_vllm(options.generators) else PROGRESS_SECONDS,
            "leftovers": leftovers,
            "say": say,
        }
        made = Campaign(world=world, seed=options.seed, groups_per_step=GROUPS_PER_STEP, **{**parts, **campaign})
        with _started(world.fleet, options, generators, serving):
            return made.run(options.num_faults)


@contextmanager
def _started(fleet: Fleet, options: ChaosOptions, generators: Generators, serving: ServingRun) -> Iterator[None]:
    """The stages that a campaign begins with; none of the fleet outlives the block."""
    try:
        fleet.start("trainer", "trainer")
        for name in generators.environments:
            fleet.start("generator", name)
        for stage in _TWICE:
            for number in range(options.num_each):
                fleet.start(stage, f"{stage}-{number}")
        for number in range(len(serving.ingest)):
            fleet.start("ingest", f"ingest-{number}")
        fleet.start("producer", FEEDBACK)
        yield
    finally:
        fleet.kill_all()


def _write_run_file(options: ChaosOptions, servers: Servers, serving: ServingRun) -> Path:
    own, served = settings_of(options.generators), serving.settings
    of_producers = (_MAX_POLICY_LAG + 1) * GROUPS_PER_STEP - _FEEDBACK_SHARE
    return write_small_run(
        options.run_dir,
        servers,
        token_seconds=0.05,
        shared={
            "groups_per_step": GROUPS_PER_STEP,
            "max_policy_lag": _MAX_POLICY_LAG,
            **served["shared"],
            **own["shared"],
        },
        producer={
            "group_size": 4,
            "share": of_producers // options.num_each,
            **own["producer"],
        },
        generator={"serve": served["serve"]},
        ingest=served["ingest"],
        trainer={
            "checkpoint_every": 4,
            # Groups whose rollouts were deleted hold their credit for so long.
            "lost_after_seconds": _LOST_AFTER_SECONDS,
            "keep_versions": _KEEP_VERSIONS,
            "keep_checkpoints": _KEEP_CHECKPOINTS,
            "learning": {"learning_rate": 0.001, "threads": 1, **own["learning"]},
        },
    )
