"""The faults of a campaign, in which order they come, and how each is made. A seed always gives the same ones."""

import random
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rollstream.bus.run import Run
from rollstream.history.read import read
from rollstream.history.rollback import roll_back
from rollstream.process.settings.base import STAGES, Stage
from rollstream.schemas.errors import BrokenWorldError, ConfigurationError, CorruptWeightsError, RollstreamError
from rollstream.schemas.topics import LEDGER, TOPICS, WEIGHTS
from tests.chaos.serving import FEEDBACK
from tests.chaos.world import Undo, World

_VERSIONS_TRIED: Final = 10
_REPLAYED: Final = ("prompts", "rollouts", "scored", "serve-rollouts", "serve-scored", "feedback")
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
# How long a broken world is explained: by a broker that was away, by garbage that no repair named yet. While the
# cluster finds a controller, questions go unanswered, each for 30 s.
_BROKER_SECONDS: Final = 90.0
# Until every member of a stage has noticed that a topic was made anew, without a controller too, and has started again.
_ANEW_SECONDS: Final = 120.0
# Between the check of a version's files and the end of its load an engine may read what was damaged since, and ends.
_LOAD_SECONDS: Final = 30.0
_VERSION_FILE: Final = "model.safetensors"

Make = Callable[[World, random.Random], "MadeFault | None"]

_MADE_BY: Final[dict[str, Make]] = {}
EVERY_KIND: Final[dict[str, int]] = {}
"""How often each kind comes in a round, where no generator asks a server."""
WITH_SERVERS: Final[dict[str, int]] = {}
"""The same where some do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. `kind`: the name of the function that makes it; `random` draws its target, from what exists then."""

    number: int
    kind: str
    random: random.Random


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeFault:
    """A fault that was made: what was done, and what undoes it."""

    what: str
    undo: Undo | None = None


def faults(seed: int, kinds: Mapping[str, int] = EVERY_KIND) -> Iterator[Fault]:
    """Faults for ever, in rounds: each round has every kind as often as `kinds` says, in an order of its own."""
    order = random.Random(seed)
    number = 0
    while True:
        kinds_of_round = [kind for kind, count in kinds.items() for _ in range(count)]
        order.shuffle(kinds_of_round)
        for kind in kinds_of_round:
            yield Fault(number=number, kind=kind, random=random.Random(f"{seed}/{number}"))
            number += 1


def make_fault(world: World, fault: Fault) -> MadeFault | None:
    """Make the fault; None if there is nothing to do it to now."""
    return _MADE_BY[fault.kind](world, fault.random)


def _fault(*, times: int, only_with_servers: bool = False) -> Callable[[Make], Make]:
    """Registers what makes a kind of fault, under its name; `times`: how often it comes in a round."""

    def note(make: Make) -> Make:
        kind = make.__name__
        _MADE_BY[kind], WITH_SERVERS[kind] = make, times
        if not only_with_servers:
            EVERY_KIND[kind] = times
        return make

    return note


@_fault(times=12)
def kill(world: World, draw: random.Random) -> MadeFault | None:
    """kill -9 of a stage's process."""
    # Stages take turns: with few faults one that is always drawn by chance may never be killed.
    stages = [stage for stage in STAGES if world.fleet.count(stage)]
    fewest = min((world.num_killed[stage] for stage in stages), default=0)
    if not (free := world.free(*(stage for stage in stages if world.num_killed[stage] == fewest))):
        return None
    member = draw.choice(free)
    world.fleet.kill(member)
    world.num_killed[member.stage] += 1
    return MadeFault(what=f"kill -9 {member.name}")


@_fault(times=1)
def lost_store(world: World, draw: random.Random) -> MadeFault | None:
    """kill -9 of the producer of feedback, whose store of answers is deleted: it is made again from the topics."""
    if not (found := [member for member in world.free("producer") if member.name == FEEDBACK]):
        return None
    world.fleet.kill(found[0])
    for path in world.store.parent.glob(f"{world.store.name}*"):
        path.unlink(missing_ok=True)
    return MadeFault(what=f"kill -9 {FEEDBACK}, and its store is deleted")


@_fault(times=5)
def term(world: World, draw: random.Random) -> MadeFault | None:
    """SIGTERM, as at a rolling update: it must end in order, and is started again."""
    if not (free := world.free()):
        return None
    member = draw.choice(free)
    world.fleet.terminate(member)
    return MadeFault(what=f"SIGTERM {member.name}")


@_fault(times=4)
def suspend(world: World, draw: random.Random) -> MadeFault | None:
    """SIGSTOP for longer than every timeout, beside a successor; then it goes on."""
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
    return MadeFault(what=f"SIGSTOP {member.name} beside {heir.name}", undo=undo)


@_fault(times=2)
def takeover(world: World, draw: random.Random) -> MadeFault | None:
    """A standby trainer takes the run over from a trainer that lives."""
    if not (world.fleet.free("trainer") and _has_room_for_a_trainer(world)):
        return None
    heir = world.fleet.start("trainer", world.name("trainer"))
    return MadeFault(what=f"{heir.name} takes over")


def _has_room_for_a_trainer(world: World) -> bool:
    return world.fleet.count("trainer") < _MOST_TRAINERS


@_fault(times=3)
def join(world: World, draw: random.Random) -> MadeFault | None:
    """One more generator or scorer comes, and leaves later."""
    stage = draw.choice(_JOINERS)
    member = world.fleet.start(stage, world.name(stage))

    def leave() -> None:
        world.fleet.terminate(member, leave=True)

    undo = Undo(seconds=world.pace.suspend_seconds, what=f"{member.name} leaves", action=leave)
    return MadeFault(what=f"{member.name} joins", undo=undo)


@_fault(times=1)
def rollback(world: World, draw: random.Random) -> MadeFault | None:
    """An operator goes back to an older weight version."""
    if not world.is_reachable or world.is_damaged:
        return None
    versions = sorted(read(Run(world.settings)).surviving)[-_VERSIONS_TRIED:]
    for version in draw.sample(versions, len(versions)):
        try:
            roll_back(world.settings, version, force=True)
            return MadeFault(what=f"rollback to version {version}")
        except (ConfigurationError, CorruptWeightsError):
            continue  # its files were damaged or pruned, or its checkpoint was
        except RollstreamError:
            return None  # a trainer came in between, or the broker did not answer
        finally:
            # Also a rollback that is refused at its second look has fenced the trainer.
            world.fleet.expect_fencing()
    return None


@_fault(times=2)
def broker(world: World, draw: random.Random) -> MadeFault | None:
    """kill -9 of a broker, which comes back later. What is promised is about one of three: the others have all."""
    if world.away & {"broker"} or not (nodes := sorted(world.cluster.processes)) or not world.outside.is_in_sync():
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
    return MadeFault(what=f"kill -9 broker {node}", undo=undo)


@_fault(times=2)
def redis(world: World, draw: random.Random) -> MadeFault | None:
    """kill -9 of Redis, which comes back later and empty."""
    if "redis" in world.away:
        return None
    world.redis.kill()
    world.away.add("redis")

    def bring_back() -> None:
        world.redis.start()
        world.away.discard("redis")

    undo = Undo(seconds=world.pace.outage_seconds, what="Redis comes back", action=bring_back)
    return MadeFault(what="kill -9 Redis", undo=undo)


@_fault(times=1, only_with_servers=True)
def server(world: World, draw: random.Random) -> MadeFault | None:
    """kill -9 of the server that a generator asks; it comes back later, with the weights that it was started with."""
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
    return MadeFault(what=f"kill -9 the server of {name}", undo=undo)


@_fault(times=3)
def torn_weights(world: World, draw: random.Random) -> MadeFault | None:
    """A file of the newest weight version is cut short, or some of its bytes are other ones."""
    version = _newest_version(Path(world.settings.weight_store))
    if version is None or not (file := version / _VERSION_FILE).exists():
        return None
    world.fleet.expect_broken_world(_LOAD_SECONDS, "generator")
    size = file.stat().st_size
    with file.open("r+b") as stream:
        if draw.random() < 0.5:
            stream.truncate(draw.randrange(size))
            return MadeFault(what=f"{version.name} is cut short")
        stream.seek(draw.randrange(size))
        stream.write(draw.randbytes(64))
    return MadeFault(what=f"bytes of {version.name} are other ones")


@_fault(times=2)
def deleted_weights(world: World, draw: random.Random) -> MadeFault | None:
    """The newest weight version is deleted."""
    version = _newest_version(Path(world.settings.weight_store))
    if version is None:
        return None
    world.fleet.expect_broken_world(_LOAD_SECONDS, "generator")
    shutil.rmtree(version, ignore_errors=True)
    return MadeFault(what=f"{version.name} is deleted")


@_fault(times=8)
def garbage(world: World, draw: random.Random) -> MadeFault | None:
    """Bytes that no stage can read, on any topic; on `ledger` and `weights` an operator repairs the run then."""
    topic = draw.choice([topic.name for topic in TOPICS])
    if not world.is_reachable:
        return None
    known = world.outside.messages(topic) if topic in _REPLAYED else []
    value = unreadable(draw, draw.choice(known).value() if known else None)
    # Before it is written: what a broker took and did not confirm is repaired too.
    world.is_damaged |= topic in _EVERY_RECORD_COUNTS
    if not world.put(topic, value, uuid.uuid4().bytes):
        return None
    what = f"{'null' if value is None else f'{len(value)} bytes'} on {topic}"
    if topic not in _EVERY_RECORD_COUNTS:
        return MadeFault(what=f"garbage: {what}")
    try:
        world.repair()
    except RollstreamError as error:
        return MadeFault(what=f"garbage: {what}; the repair comes later: {error}")
    return MadeFault(what=f"garbage: {what}, and the repair")


@_fault(times=6)
def replay(world: World, draw: random.Random) -> MadeFault | None:
    """An old record comes once more, with its key, as after a mirror or a restore."""
    topic = draw.choice(_REPLAYED)
    if not world.is_reachable or not (known := world.outside.messages(topic)):
        return None
    message = draw.choice(known)
    if not world.put(topic, message.value(), message.key()):
        return None
    return MadeFault(what=f"{topic}/{message.partition()}@{message.offset()} once more")


@_fault(times=2)
def partitions(world: World, draw: random.Random) -> MadeFault | None:
    """A topic of the run's main way gets one more partition."""
    topic = draw.choice(_REPLAYED)
    # A broker that is away may have been the controller, and another one takes its place after a while.
    if not world.is_reachable or (count := world.outside.add_partition(topic)) is None:
        return None
    return MadeFault(what=f"{topic} has {count} partitions")


@_fault(times=1)
def made_anew(world: World, draw: random.Random) -> MadeFault | None:
    """A topic of evaluation, or `rollouts` with all that lies in it, is deleted and made again.

    At the end of a campaign `scored` is, too.
    """
    if "broker" in world.away:
        return None  # each replica needs its broker
    topic, stages = draw.choice(_MADE_ANEW)
    # One that starts meanwhile may see none.
    world.fleet.expect_broken_world(_ANEW_SECONDS, *stages)
    world.fleet.expect_refusal(_ANEW_SECONDS, *STAGES)
    world.make_anew(topic)
    return MadeFault(what=f"{topic} is made anew")


def unreadable(draw: random.Random, record: bytes | None) -> bytes | None:
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
