"""Draws the picture of the bench `long-tail`: lengths generated and trained, and what lag drops by length."""

from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.bench.length_bias import Lengths, Outcomes

_BINS: Final = 16


def draw(found: Outcomes, path: Path) -> None:
    """Draw both panels into `path`."""
    import matplotlib

    # A backend that needs no screen.
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
    _cumulative(left, found.lengths, "generated", "tab:blue")
    _cumulative(left, found.trained, "trained", "tab:green")
    left.set_ylabel("share of answers at most as long")
    left.legend()
    _dropped(right, found)
    right.set_ylabel("share dropped for lag")
    for axis in (left, right):
        axis.set_xscale("log")
        axis.set_xlabel("tokens of an answer")
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _cumulative(axis: Any, lengths: Lengths, label: str, color: str) -> None:
    axis.step(np.sort(lengths), np.arange(1, len(lengths) + 1) / max(1, len(lengths)), label=label, color=color)


def _dropped(axis: Any, found: Outcomes) -> None:
    """Bars of equal width on the logarithmic axis; without answers in it a bar is missing."""
    edges = np.geomspace(found.lengths.min(), found.lengths.max() + 1, _BINS + 1)
    generated, _ = np.histogram(found.lengths, edges)
    dropped, _ = np.histogram(found.lengths[found.are_too_old], edges)
    axis.bar(edges[:-1], dropped / np.maximum(generated, 1), width=np.diff(edges), align="edge", color="tab:orange")
    axis.set_ylim(0, 1)
