"""What the benches share: sides that run in turn, the ratios of their figures, and one JSON object at the end.

The absolute figures of a machine differ from hour to hour, the ratio of two runs that follow each other hardly does.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any, TypeVar

import click

from rollstream.local.kafka import KafkaCluster
from rollstream.local.kafka_properties import plan_cluster
from rollstream.process.settings.base import KafkaSettings

T = TypeVar("T")
K = TypeVar("K")
C = TypeVar("C", bound=Callable[..., None])


def count_option(name: str, default: int, least: int, text: str = "", *, most: int | None = None) -> Callable[[C], C]:
    """An option that is a whole number from `least` on."""
    return click.option(
        name, default=default, show_default=True, type=click.IntRange(least, most), help=text or None
    )  # fmt: skip


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory that is there while the block runs."""
    with tempfile.TemporaryDirectory(prefix="rollstream-bench-") as name:
        yield Path(name)


@contextmanager
def a_broker() -> Iterator[tuple[KafkaSettings, Path]]:
    """One broker while the block runs, and a directory for everything else."""
    with scratch() as directory:
        cluster = KafkaCluster(directory / "kafka", plan_cluster(1))
        try:
            cluster.start()
            yield KafkaSettings(bootstrap_servers=cluster.bootstrap_servers), directory
        finally:
            cluster.stop()


def say(text: str) -> None:
    """Tell people how far it is; the report alone goes to standard output."""
    click.echo(text, err=True)


def a_pair(sides: Mapping[K, Callable[[], T]], number: int = 0) -> dict[K, T]:
    """What each side gives; with every other `number` they run in reverse order, so that none always comes first."""
    order = list(sides)[:: -1 if number % 2 else 1]
    found = {name: sides[name]() for name in order}
    return {name: found[name] for name in sides}


def in_turn(
    sides: Mapping[K, Callable[[], T]], rounds: int, told: Callable[[dict[K, T]], str] | None = None
) -> list[dict[K, T]]:
    """Run all sides so many times: A B, B A, A B… `told`: what to say of each pair."""
    pairs = []
    for number in range(rounds):
        pairs.append(a_pair(sides, number))
        if told is not None:
            say(f"pair {number + 1} of {rounds}: {told(pairs[-1])}")
    return pairs


def compared(ratios: Sequence[float]) -> dict[str, Any]:
    """`ratio`, the median of all, with its quartiles and each one."""
    low, middle, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else [*ratios] * 3
    return {
        "ratio": round(middle, 3),
        "ratio_quartiles": [round(low, 3), round(high, 3)],
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each figure over all runs of a side."""
    return {name: median(run[name] for run in runs) for name in runs[0]}


def tell(bench: str, figures: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> None:
    """Print the report, one JSON object."""
    end = {} if settings is None else {"settings": settings}
    click.echo(json.dumps({"bench": bench, **figures, **end}, indent=2))
