"""What a campaign's faults are done to, and how long each lasts."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rollstream.bus.admin import KafkaAdmin
from rollstream.history.repair import repair
from rollstream.local.kafka import KafkaCluster
from rollstream.local.redis import RedisServer
from rollstream.process.settings.base import Stage, StageSettings
from rollstream.schemas.errors import BrokenWorldError
from tests.chaos.accounting import OutsideClient
from tests.chaos.callers import Callers
from tests.chaos.fleet import Fleet, Member
from tests.chaos.generators import Generators

# As long as a start may take: a trainer that read the garbage in it ends that much later.
_GARBAGE_SECONDS: Final = 90.0
_MADE_WITHIN_SECONDS: Final = 60.0


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
    callers: Callers
    store: Path
    """Where the producer of feedback keeps answers."""
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
