"""What happens to the stages during a soak, and when: restarts, kills, rollbacks, a generator that joins and leaves."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rollstream.process.settings.base import Stage

# Around a tenth of the steps, and near their end: there start times are compared. Between them the trainer, which is
# alone, runs on for half of the steps, so that its memory can show growth.
_COMPARED_RESTARTS_AT: Final = (0.06, 0.12, 0.18, 0.82, 0.88, 0.94)
_OTHER_RESTARTS_AT: Final = (0.36, 0.56, 0.76)
_ROLLBACKS_AT: Final = (0.26, 0.98)
_JOINER_COMES_AT, _JOINER_LEAVES_AT = 0.42, 0.5
_APART: Final = 0.01
_STAGES: Final[tuple[Stage, ...]] = ("generator", "scorer", "producer", "trainer")


class Kind(StrEnum):
    """What is done."""

    RESTART = "restart"
    KILL = "kill -9"
    ROLL_BACK = "roll back"
    JOIN = "join"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Event:
    """At this share of the steps, this is done to a process of this stage."""

    at: float
    kind: Kind
    stage: Stage


def schedule() -> list[Event]:
    """Every event of a soak, in order. Every other restart is a kill."""
    restarts = [
        Event(at=at + _APART * number, kind=Kind.KILL if (turn + number) % 2 else Kind.RESTART, stage=stage)
        for turn, at in enumerate(sorted((*_COMPARED_RESTARTS_AT, *_OTHER_RESTARTS_AT)))
        for number, stage in enumerate(_STAGES)
        if at in _COMPARED_RESTARTS_AT or stage != "trainer"
    ]
    rollbacks = [Event(at=at, kind=Kind.ROLL_BACK, stage="trainer") for at in _ROLLBACKS_AT]
    joiner = [
        Event(at=_JOINER_COMES_AT, kind=Kind.JOIN, stage="generator"),
        Event(at=_JOINER_LEAVES_AT, kind=Kind.LEAVE, stage="generator"),
    ]
    return sorted([*restarts, *rollbacks, *joiner])
