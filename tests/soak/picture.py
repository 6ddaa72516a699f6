"""Draws a soak: memory, handles, disk, lag and start times over the steps."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.soak.samples import Sample, Start

Figures = Callable[[Sample], Mapping[str, float]]


def draw(samples: Sequence[Sample], starts: Sequence[Start], path: Path) -> None:
    """Draw five panels into `path`."""
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
