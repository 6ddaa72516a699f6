"""Dividing a machine's cores between the engine, the trainer and everything else."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass

from rollstream.local.processes import Placement

LOWER_PRIORITY = 5

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreDivision:
    """Which cores the engine's threads, the trainer's threads and the rest (Kafka, Redis, scorer, producer) run on."""

    engine: Placement
    trainer: Placement
    rest: Placement

    def describe(self) -> str:
        """One line for the log."""
        parts = {"engine": self.engine, "trainer": self.trainer, "rest": self.rest}
        return "; ".join(f"{name} on cores {_listed(p)} at nice {p.nice}" for name, p in parts.items())


def divide_cores(cores: Iterable[int] | None = None) -> CoreDivision:
    """Divide `cores` (default: all this process may use) and log the result.

    One core: everybody shares it. Two: the engine has the first, trainer and rest the second.
    More: an eighth (at least one) for the rest, of the others the larger half for the engine.
    The rest always runs at lower priority.
    """
    ordered = sorted(os.sched_getaffinity(0) if cores is None else cores)
    if not ordered:
        raise ValueError("cores is empty: name at least one core")
    if len(ordered) <= 2:
        engine, trainer, rest = ordered[:1], ordered[-1:], ordered[-1:]
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
    """Environment of a child on `placement`: as many OpenMP threads as cores, and none that spins while it waits.

    Spinning threads of two runtimes on one core stall each other.
    """
    num_threads = len(placement.cores) if placement.cores else os.cpu_count() or 1
    return {"OMP_NUM_THREADS": str(num_threads), "OMP_WAIT_POLICY": "PASSIVE"}


def _listed(placement: Placement) -> str:
    return "any" if placement.cores is None else ",".join(str(core) for core in sorted(placement.cores))
