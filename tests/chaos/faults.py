"""Which faults a campaign makes, and in which order. Pure: a seed always gives the same faults."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class FaultKind(StrEnum):
    """What is done to the run. `strikes.py` does it."""

    KILL = "kill"
    """kill -9 of a stage's process."""
    TERM = "term"
    """SIGTERM, as at a rolling update: it must end in order, and is started again."""
    SUSPEND = "suspend"
    """SIGSTOP for longer than every timeout, beside a successor; then it goes on."""
    TAKEOVER = "takeover"
    """A standby trainer takes the run over from a trainer that lives."""
    JOIN = "join"
    """One more generator or scorer comes, and leaves later."""
    ROLLBACK = "rollback"
    """An operator goes back to an older weight version."""
    BROKER = "broker"
    """kill -9 of a broker, which comes back later."""
    REDIS = "redis"
    """kill -9 of Redis, which comes back later and empty."""
    SERVER = "server"
    """kill -9 of the server that a generator asks; it comes back later, with the weights that it was started with."""
    TORN_WEIGHTS = "torn_weights"
    """A file of the newest weight version is cut short, or some of its bytes are other ones."""
    DELETED_WEIGHTS = "deleted_weights"
    """The newest weight version is deleted."""
    GARBAGE = "garbage"
    """Bytes that no stage can read, on any topic; on `ledger` and `weights` an operator repairs the run then."""
    REPLAY = "replay"
    """An old record comes once more, with its key, as after a mirror or a restore."""
    PARTITIONS = "partitions"
    """A topic of the run's main way gets one more partition."""
    MADE_ANEW = "made_anew"
    """A topic of evaluation, or `rollouts` with all that lies in it, is deleted and made again. At the end `scored` is,
    too."""


EVERY_KIND: Final[Mapping[FaultKind, int]] = {
    FaultKind.KILL: 12,
    FaultKind.TERM: 5,
    FaultKind.SUSPEND: 4,
    FaultKind.TAKEOVER: 2,
    FaultKind.JOIN: 3,
    FaultKind.ROLLBACK: 1,
    FaultKind.BROKER: 2,
    FaultKind.REDIS: 2,
    FaultKind.TORN_WEIGHTS: 3,
    FaultKind.DELETED_WEIGHTS: 2,
    FaultKind.GARBAGE: 8,
    FaultKind.REPLAY: 6,
    FaultKind.PARTITIONS: 2,
    FaultKind.MADE_ANEW: 1,
}
"""How often each kind comes in a round, where no generator asks a server."""
WITH_SERVERS: Final[Mapping[FaultKind, int]] = {**EVERY_KIND, FaultKind.SERVER: 1}
"""The same where some do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. `random` draws its target, from what exists at that moment."""

    number: int
    kind: FaultKind
    random: random.Random


def faults(seed: int, kinds: Mapping[FaultKind, int] = EVERY_KIND) -> Iterator[Fault]:
    """Faults for ever, in rounds: each round has every kind as often as `kinds` says, in an order of its own."""
    order = random.Random(seed)
    number = 0
    while True:
        kinds_of_round = [kind for kind, count in kinds.items() for _ in range(count)]
        order.shuffle(kinds_of_round)
        for kind in kinds_of_round:
            yield Fault(number=number, kind=kind, random=random.Random(f"{seed}/{number}"))
            number += 1
