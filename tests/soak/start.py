"""Starts what a soak needs, with time-lapse: what production keeps for days is kept for minutes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rollstream.bus.admin import KafkaAdmin
from rollstream.local.ports import free_ports
from rollstream.process.settings.base import Stage, StageSettings
from rollstream.process.stop import Stop
from tests.chaos.fleet import Fleet
from tests.chaos.leftovers import Leftovers, leftovers_of
from tests.chaos.small_run import Servers, launch_with, servers_of, write_small_run
from tests.harness.topics import keep_for
from tests.soak.conduct import JOINER, REPLACED, Found, Soak
from tests.soak.samples import StartWatch

_GROUPS_PER_STEP: Final = 2
# Steps are as many as the credit lets come at once: what a group waits for between stages bounds them, no processor.
_MAX_POLICY_LAG: Final = 9
# A rollback needs the files of the version of the checkpoint before the newest.
_CHECKPOINT_EVERY: Final = 20
_KEEP_VERSIONS: Final = 3 * _CHECKPOINT_EVERY
_KEEP_CHECKPOINTS: Final = 3
_MOST_DIRECTORIES: Final = _KEEP_VERSIONS + _KEEP_CHECKPOINTS + 2
_SEGMENT_SECONDS: Final = 30
_BROKER: Final = {
    # The broker looks for expired segments every five minutes, which is longer than they are kept here.
    "log.retention.check.interval.ms": "5000",
    "log.cleaner.backoff.ms": "5000",
    # It is never restarted, and must not count as dead where the machine is busy with other work too.
    "broker.session.timeout.ms": "30000",
}
_RESIDENT: Final[dict[str, Stage]] = {
    "generator-0": "generator", "scorer-0": "scorer", "producer-0": "producer", "trainer": "trainer"
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions:
    """One soak: it ends after so many steps or hours, or when `stop` is asked.

    `keep_seconds`: how long prompts and rollouts are kept. A trainer that is away for longer refuses to start.
    """

    run_dir: Path
    num_steps: int
    hours: float
    keep_seconds: int = 180
    sample_seconds: float = 5.0

    @property
    def settled_seconds(self) -> float:
        """From when on as much expires as is written: topics, and the ids of closed groups in checkpoints."""
        # Ids are kept as long again as records, and those as long as their segment.
        return 2.0 * (self.keep_seconds + _SEGMENT_SECONDS)


def run_soak(options: SoakOptions, stop: Stop, say: Callable[[str], None]) -> Found:
    """A whole soak on a broker and a Redis of its own; the run's directory keeps logs and settings.

    Raises `ConfigurationError` if the directory is that of another run, and a `LocalStackError`.
    """
    directory = options.run_dir.resolve()
    with servers_of(directory, 1, _BROKER) as servers, leftovers_of(directory, _MOST_DIRECTORIES) as leftovers:
        return _soak(options, servers, leftovers, say).run(stop)


def _soak(options: SoakOptions, servers: Servers, leftovers: Leftovers, say: Callable[[str], None]) -> Soak:
    directory = options.run_dir.resolve()
    config = _write_run_file(directory, servers)
    settings = StageSettings.load(config)
    admin = KafkaAdmin(settings.kafka)
    admin.create_topics(settings.run, partitions=2)
    keep_for(settings.kafka, settings.run, seconds=options.keep_seconds, segment_seconds=_SEGMENT_SECONDS)
    stages = _RESIDENT | {name: stage for stage, name in REPLACED.items()} | {JOINER: "generator"}
    watch = StartWatch(ports=dict(zip(stages, free_ports(len(stages)), strict=True)))

    def own(stage: Stage, name: str) -> dict[str, str]:
        watch.note(stage, name)
        return {"ROLLSTREAM_HEALTH_PORT": str(watch.ports[name])}

    launch = launch_with(config, leftovers.environment, own)
    return Soak(
        settings=settings, admin=admin, fleet=Fleet(launch, directory / "logs"),
        stages={name: stage for name, stage in stages.items() if name != JOINER}, watch=watch, leftovers=leftovers,
        directory=directory, num_steps=options.num_steps, most_seconds=options.hours * 3600,
        sample_seconds=options.sample_seconds, say=say,
    )  # fmt: skip


def _write_run_file(directory: Path, servers: Servers) -> Path:
    return write_small_run(
        directory,
        servers,
        token_seconds=0.002,
        # A step of time-lapse is done before a production run would have sent its records together.
        kafka={"linger_seconds": 0.01},
        shared={"groups_per_step": _GROUPS_PER_STEP, "max_policy_lag": _MAX_POLICY_LAG},
        producer={"group_size": 2, "share": (_MAX_POLICY_LAG + 1) * _GROUPS_PER_STEP // 2},
        trainer={
            "checkpoint_every": _CHECKPOINT_EVERY,
            "keep_versions": _KEEP_VERSIONS,
            "keep_checkpoints": _KEEP_CHECKPOINTS,
            "train_without_spread": True,
            "learning": {"learning_rate": 0.0001, "threads": 1},
        },
    )
