"""Does one fault to a run that lives, and says when to undo it."""

import random
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.run import Run
from rollstream.history.read import read
from rollstream.history.repair import repair
from rollstream.history.rollback import roll_back
from rollstream.local.kafka import KafkaCluster
from rollstream.local.redis import RedisServer
from rollstream.process.settings.base import STAGES, Stage, StageSettings
from rollstream.schemas.errors import BrokenWorldError, ConfigurationError, CorruptWeightsError, RollstreamError
from rollstream.schemas.topics import LEDGER, TOPICS, WEIGHTS
from tests.chaos.accounting import OutsideClient
from tests.chaos.faults import Fault, FaultKind
from tests.chaos.fleet import Fleet, Member
from tests.chaos.generators import Generators

_VERSIONS_TRIED: Final = 10
_REPLAYED: Final = ("prompts", "rollouts", "scored")
# One, its standby, and one that is suspended. More only take the run from each other while they start.
_MOST_TRAINERS: Final = 3
_JOINERS: Final[tuple[Stage, ...]] = ("generator", "scorer")
# And who ends when it sees another one, or finds none. Nobody evaluates meanwhile, so those of evaluation hold nothing
# that could be lost. With `rollouts` the samples go that no scorer has read: their groups close as lost.
_MADE_ANEW: Final[tuple[tuple[str, tuple[Stage, ...]], ...]] = (
    ("eval-prompts", ("generator",)),
    ("eval-rollouts", ("scorer",)),
    ("rollouts", ("generator", "scorer")),
)
_EVERY_RECORD_COUNTS: Final = (LEDGER.name, WEIGHTS.name)
# How long a broken world is explained: by a broker that was away, by garbage that no repair named yet.
_BROKER_SECONDS: Final = 60.0
# As long as a start may take: a trainer that read the garbage in it ends that much later.
_GARBAGE_SECONDS: Final = 90.0
# Until every member of a stage has noticed that a topic was made anew, and has started again.
_ANEW_SECONDS: Final = 90.0
# Between the check of a version's files and the end of its load an engine may read what was damaged since, and ends.
_LOAD_SECONDS: Final = 30.0
_MADE_WITHIN_SECONDS: Final = 60.0
_VERSION_FILE: Final = "model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds: between two faults, that a process is suspended (beyond every timeout), and that a server is away."""

    pause_seconds: float = 2.0
    suspend_seconds: float = 25.0
    outage_seconds: float = 6.0


@dataclass(slots=True, kw_only=True)
class Undo:
    """What ends a fault, `seconds` after it began."""

    seconds: float
    what: str
    action: Callable[[], None]


@dataclass(slots=True, kw_only=True)
class World:
    """What faults are done to."""

    settings: StageSettings
    fleet: Fleet
    outside: OutsideClient
    cluster: KafkaCluster
    redis: RedisServer
    generators: Generators
    pace: Pace
    away: set[str] = field(default_factory=set)
    """Servers that do not run."""
    is_damaged: bool = False
    """Whether `ledger` or `weights` may hold garbage that no repair has named yet."""
    num_joined: int = 0
    num_killed: Counter[Stage] = field(default_factory=Counter)

    @property
    def is_reachable(self) -> bool:
        """Whether the cluster answers."""
        return "broker" not in self.away or len(self.cluster.plan.nodes) > 1

    def free(self, *stages: Stage) -> list[Member]:
        """Members that a fault may hit. vLLM starts for a minute: if it were hit in each start it would never work."""
        return [member for member in self.fleet.free(*stages) if self.generators.has_begun(member.name, member.log)]

    def put(self, topic: str, value: bytes | None, key: bytes | None) -> bool:
        """Write a record. False if no broker took it: its partition may need one that is away or just came back."""
        try:
            self.outside.put(topic, value, key=key)
        except AssertionError:
            return False
        return True

    def repair(self) -> None:
        """Have readers pass over garbage; raises `RollstreamError` if a trainer or a broker came in between."""
        self.is_damaged = True
        self.fleet.expect_broken_world(_GARBAGE_SECONDS, "trainer")
        try:
            repair(self.settings, None, force=True)
        finally:
            self.fleet.expect_broken_world(_GARBAGE_SECONDS, "trainer")
            self.fleet.expect_fencing()
        self.is_damaged = False

    def make_anew(self, topic: str) -> None:
        """Delete a topic and make it again, empty; raises `BrokenWorldError` if it can't be made."""
        count = self.outside.delete(topic)
        name, admin = f"{self.settings.run}.{topic}", KafkaAdmin(self.settings.kafka)
        deadline = time.monotonic() + _MADE_WITHIN_SECONDS
        while name not in admin.create_topics(self.settings.run, partitions=count):  # the old one is still deleted
            if time.monotonic() > deadline:
                raise BrokenWorldError(f"{name} could not be made anew within {_MADE_WITHIN_SECONDS:g} s")
            time.sleep(0.1)

    def name(self, stage: str) -> str:
        """A name for one more process."""
        self.num_joined += 1
        return f"{stage}-joined-{self.num_joined}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """A fault that was made: what was done, and what undoes it."""

    what: str
    undo: Undo | None = None


def strike(world: World, fault: Fault) -> Struck | None:
    """Make the fault; None if there is nothing to do it to now."""
    return _STRIKES[fault.kind](world, fault.random)


def _kill(world: World, draw: random.Random) -> Struck | None:
    # Stages take turns: with few faults one that is always drawn by chance may never be killed.
    fewest = min(world.num_killed[stage] for stage in STAGES)
    if not (free := world.free(*(stage for stage in STAGES if world.num_killed[stage] == fewest))):
        return None
    member = draw.choice(free)
    world.fleet.kill(member)
    world.num_killed[member.stage] += 1
    return Struck(what=f"kill -9 {member.name}")


def _terminate(world: World, draw: random.Random) -> Struck | None:
    if not (free := world.free()):
        return None
    member = draw.choice(free)
    world.fleet.terminate(member)
    return Struck(what=f"SIGTERM {member.name}")


def _suspend(world: World, draw: random.Random) -> Struck | None:
    stages: list[Stage] = ["generator", "scorer"]
    if _has_room_for_a_trainer(world):
        stages.append("trainer")
    if not (free := world.free(*stages)):
        return None
    member = draw.choice(free)
    world.fleet.suspend(member)
    heir = world.fleet.start(member.stage, world.name(member.stage))

    def resume() -> None:
        if member.stage == "generator":
            # It may have stopped in the middle of an update: the version that it loads then was deleted meanwhile.
            world.fleet.expect_broken_world(_LOAD_SECONDS, "generator")
        world.fleet.resume(member)
        # A trainer is replaced for good; of the others there would be one more with every fault.
        if member.stage != "trainer":
            world.fleet.terminate(heir, leave=True)

    undo = Undo(seconds=world.pace.suspend_seconds, what=f"SIGCONT {member.name}", action=resume)
    return Struck(what=f"SIGSTOP {member.name} beside {heir.name}", undo=undo)


def _take_over(world: World, draw: random.Random) -> Struck | None:
    if not (world.fleet.free("trainer") and _has_room_for_a_trainer(world)):
        return None
    heir = world.fleet.start("trainer", world.name("trainer"))
    return Struck(what=f"{heir.name} takes over")


def _has_room_for_a_trainer(world: World) -> bool:
    return world.fleet.count("trainer") < _MOST_TRAINERS


def _join(world: World, draw: random.Random) -> Struck | None:
    stage = draw.choice(_JOINERS)
    member = world.fleet.start(stage, world.name(stage))

    def leave() -> None:
        world.fleet.terminate(member, leave=True)

    undo = Undo(seconds=world.pace.suspend_seconds, what=f"{member.name} leaves", action=leave)
    return Struck(what=f"{member.name} joins", undo=undo)


def _roll_back(world: World, draw: random.Random) -> Struck | None:
    if not world.is_reachable or world.is_damaged:
        return None
    versions = sorted(read(Run(world.settings)).surviving)[-_VERSIONS_TRIED:]
    for version in draw.sample(versions, len(versions)):
        try:
            roll_back(world.settings, version, force=True)
            return Struck(what=f"rollback to version {version}")
        except (ConfigurationError, CorruptWeightsError):
            continue  # its files were damaged or pruned, or its checkpoint was
        except RollstreamError:
            return None  # a trainer came in between, or the broker did not answer
        finally:
            # Also a rollback that is refused at its second look has fenced the trainer.
            world.fleet.expect_fencing()
    return None


def _kill_broker(world: World, draw: random.Random) -> Struck | None:
    if world.away & {"broker"} or not (nodes := sorted(world.cluster.processes)):
        return None
    node = draw.choice(nodes)
    world.cluster.processes[node].kill()
    world.away.add("broker")
    world.fleet.expect_broken_world(_BROKER_SECONDS)

    def bring_back() -> None:
        world.cluster.launch()
        world.away.discard("broker")
        world.fleet.expect_broken_world(_BROKER_SECONDS)

    undo = Undo(seconds=world.pace.outage_seconds, what=f"broker {node} comes back", action=bring_back)
    return Struck(what=f"kill -9 broker {node}", undo=undo)


def _kill_redis(world: World, draw: random.Random) -> Struck | None:
    if "redis" in world.away:
        return None
    world.redis.kill()
    world.away.add("redis")

    def bring_back() -> None:
        world.redis.start()
        world.away.discard("redis")

    undo = Undo(seconds=world.pace.outage_seconds, what="Redis comes back", action=bring_back)
    return Struck(what="kill -9 Redis", undo=undo)


def _kill_server(world: World, draw: random.Random) -> Struck | None:
    asking = sorted({member.name for member in world.free("generator")} & world.generators.servers.keys())
    asking = [name for name in asking if world.generators.servers[name].is_healthy()]
    if not asking:
        return None
    name = draw.choice(asking)
    server = world.generators.servers[name]
    server.kill()
    # It ends when it can't reach the server any more, and then waits for it in its start.
    world.fleet.expect_end(name, BrokenWorldError.exit_code)
    undo = Undo(seconds=world.pace.outage_seconds, what=f"the server of {name} comes back", action=server.launch)
    return Struck(what=f"kill -9 the server of {name}", undo=undo)


def _tear_weights(world: World, draw: random.Random) -> Struck | None:
    version = _newest_version(Path(world.settings.weight_store))
    if version is None or not (file := version / _VERSION_FILE).exists():
        return None
    world.fleet.expect_broken_world(_LOAD_SECONDS, "generator")
    size = file.stat().st_size
    with file.open("r+b") as stream:
        if draw.random() < 0.5:
            stream.truncate(draw.randrange(size))
            return Struck(what=f"{version.name} is cut short")
        stream.seek(draw.randrange(size))
        stream.write(draw.randbytes(64))
    return Struck(what=f"bytes of {version.name} are other ones")


def _delete_weights(world: World, draw: random.Random) -> Struck | None:
    version = _newest_version(Path(world.settings.weight_store))
    if version is None:
        return None
    world.fleet.expect_broken_world(_LOAD_SECONDS, "generator")
    shutil.rmtree(version, ignore_errors=True)
    return Struck(what=f"{version.name} is deleted")


def _put_garbage(world: World, draw: random.Random) -> Struck | None:
    topic = draw.choice([topic.name for topic in TOPICS])
    if not world.is_reachable:
        return None
    known = world.outside.messages(topic) if topic in _REPLAYED else []
    value = garbage(draw, draw.choice(known).value() if known else None)
    # Before it is written: what a broker took and did not confirm is repaired too.
    world.is_damaged |= topic in _EVERY_RECORD_COUNTS
    if not world.put(topic, value, uuid.uuid4().bytes):
        return None
    what = f"{'null' if value is None else f'{len(value)} bytes'} on {topic}"
    if topic not in _EVERY_RECORD_COUNTS:
        return Struck(what=f"garbage: {what}")
    try:
        world.repair()
    except RollstreamError as error:
        return Struck(what=f"garbage: {what}; the repair comes later: {error}")
    return Struck(what=f"garbage: {what}, and the repair")


def _replay(world: World, draw: random.Random) -> Struck | None:
    topic = draw.choice(_REPLAYED)
    if not world.is_reachable or not (known := world.outside.messages(topic)):
        return None
    message = draw.choice(known)
    if not world.put(topic, message.value(), message.key()):
        return None
    return Struck(what=f"{topic}/{message.partition()}@{message.offset()} once more")


def _add_partition(world: World, draw: random.Random) -> Struck | None:
    topic = draw.choice(_REPLAYED)
    if not world.is_reachable:
        return None
    return Struck(what=f"{topic} has {world.outside.add_partition(topic)} partitions")


def _make_anew(world: World, draw: random.Random) -> Struck | None:
    if "broker" in world.away:
        return None  # each replica needs its broker
    topic, stages = draw.choice(_MADE_ANEW)
    # One that starts meanwhile may see none.
    world.fleet.expect_broken_world(_ANEW_SECONDS, *stages)
    world.fleet.expect_refusal(_ANEW_SECONDS, *STAGES)
    world.make_anew(topic)
    return Struck(what=f"{topic} is made anew")


def garbage(draw: random.Random, record: bytes | None) -> bytes | None:
    """Bytes that are no record of any topic; some are made of one."""
    kinds: list[Callable[[], bytes | None]] = [
        lambda: None,
        lambda: b"",
        lambda: b"\x01" + draw.randbytes(draw.randrange(200)),
        lambda: b"\x00" + (2**31 + draw.randrange(2**30)).to_bytes(4, "big") + draw.randbytes(20),
    ]
    if record is not None:
        kinds += [lambda: record[: draw.randrange(len(record))], lambda: record + draw.randbytes(3)]
    return draw.choice(kinds)()


def _newest_version(store: Path) -> Path | None:
    versions = [path for path in store.glob("[0-9]*-*") if path.is_dir()]
    return max(versions, key=lambda path: int(path.name.partition("-")[0]), default=None)


_STRIKES: Final[dict[FaultKind, Callable[[World, random.Random], Struck | None]]] = {
    FaultKind.KILL: _kill,
    FaultKind.TERM: _terminate,
    FaultKind.SUSPEND: _suspend,
    FaultKind.TAKEOVER: _take_over,
    FaultKind.JOIN: _join,
    FaultKind.ROLLBACK: _roll_back,
    FaultKind.BROKER: _kill_broker,
    FaultKind.REDIS: _kill_redis,
    FaultKind.SERVER: _kill_server,
    FaultKind.TORN_WEIGHTS: _tear_weights,
    FaultKind.DELETED_WEIGHTS: _delete_weights,
    FaultKind.GARBAGE: _put_garbage,
    FaultKind.REPLAY: _replay,
    FaultKind.PARTITIONS: _add_partition,
    FaultKind.MADE_ANEW: _make_anew,
}
