"""What a soak looks at every few seconds, and its picture: memory and handles of processes, disk, lag, starts."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from rollstream.process.settings.base import Stage
from tests.harness.scraping import is_ready

_MIB: Final = 2**20
_TOPICS_KEPT: Final = ("weights", "ledger")
KEPT_FOR_EVER: Final = "weights and ledger"
"""Topics whose retention is for ever: they grow by some kilobytes a step, and no start reads them from the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look. `pids`, `memory_mib` and `handles` by process; `disk_mib` by place; `lag` in records, by topic."""

    seconds: float
    step: int
    pids: Mapping[str, int]
    memory_mib: Mapping[str, float]
    handles: Mapping[str, int]
    disk_mib: Mapping[str, float]
    lag: Mapping[str, int]


Figures = Callable[[Sample], Mapping[str, float]]
"""Figures of a look, by the name of a process, place or topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of a process, from its launch until it was ready."""

    stage: Stage
    step: int
    seconds: float


@dataclass(slots=True, kw_only=True)
class StartWatch:
    """Measures starts: `note` each launch, `look` several times a second."""

    ports: Mapping[str, int]
    _waiting: dict[str, tuple[Stage, float]] = field(default_factory=dict)

    def note(self, stage: Stage, name: str) -> None:
        """A process was launched just now."""
        self._waiting[name] = (stage, time.monotonic())

    def look(self, step: int) -> list[Start]:
        """The starts that have ended since the last call."""
        ready = [name for name in self._waiting if is_ready(self.ports[name])]
        found = [(stage, time.monotonic() - at) for stage, at in map(self._waiting.pop, ready)]
        return [Start(stage=stage, step=step, seconds=seconds) for stage, seconds in found]


def memory_and_handles(pid: int) -> tuple[float, int] | None:
    """Resident memory in MiB and open files of a process and those below it; None if it has ended."""
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
        memory = sum(process.memory_info().rss for process in processes) / _MIB
        return memory, sum(process.num_fds() for process in processes)
    except psutil.NoSuchProcess:
        return None


def disk_mib(run: str, kafka: Path, places: Sequence[Path]) -> dict[str, float]:
    """MiB on the disk: of the topics whose records expire, of the others, and of each of `places`, by name."""
    kept = sum(_bytes(path) for name in _TOPICS_KEPT for path in kafka.glob(f"node-*/log/{run}.{name}-*"))
    topics = sum(_bytes(path) for path in kafka.glob(f"node-*/log/{run}.*"))
    found = {"topics that expire": topics - kept, KEPT_FOR_EVER: kept}
    return {name: size / _MIB for name, size in (found | {path.name: _bytes(path) for path in places}).items()}


def _bytes(directory: Path) -> int:
    total = 0
    for place, _, names in os.walk(directory):  # passes over directories that are deleted meanwhile
        for name in names:
            with suppress(FileNotFoundError):
                # What is on the disk: Kafka's index files are sparse, and far larger by name.
                total += (Path(place) / name).stat().st_blocks * 512
    return total


def draw(samples: Sequence[Sample], starts: Sequence[Start], path: Path) -> None:
    """Draw memory, handles, disk, lag and start times over the steps into `path`."""
    import matplotlib

    # A backend that needs no screen.
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(5, 1, figsize=(10, 16), sharex=True, constrained_layout=True)
    panels: list[tuple[str, Figures]] = [
        ("memory, MiB", lambda sample: sample.memory_mib),
        ("open files", lambda sample: sample.handles),
        ("disk, MiB", lambda sample: sample.disk_mib),
        ("lag, records", lambda sample: sample.lag),
    ]
    for axis, (label, of) in zip(axes, panels, strict=False):
        _lines(axis, samples, of)
        axis.set_ylabel(label)
    for stage in sorted({start.stage for start in starts}):
        own = [start for start in starts if start.stage == stage]
        axes[-1].plot([start.step for start in own], [start.seconds for start in own], "o-", label=stage)
    axes[-1].set_ylabel("start until ready, seconds")
    axes[-1].set_xlabel("optimizer steps")
    for axis in axes:
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend(loc="upper left", fontsize="small", ncols=3)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _lines(axis: Any, samples: Sequence[Sample], of: Figures) -> None:
    for name in sorted({name for sample in samples for name in of(sample)}):
        own = [(sample.step, of(sample)[name]) for sample in samples if name in of(sample)]
        axis.plot(*zip(*own, strict=True), label=name)
