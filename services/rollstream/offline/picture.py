"""Draws the distribution of the rewards of a collection."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

_MOST_BARS: Final = 30


def draw_rewards(rewards: Sequence[float], path: Path, *, title: str) -> None:
    """Draw a bar for each reward, or a histogram where there are many different ones."""
    import matplotlib

    # A backend that needs no screen.
    matplotlib.use("Agg")
    from matplotlib import pyplot

    counts = Counter(rewards)
    figure, axis = pyplot.subplots(figsize=(7, 4), constrained_layout=True)
    if len(counts) <= _MOST_BARS:
        values = sorted(counts)
        widest = (values[-1] - values[0]) / 10 or 0.1
        width = min([widest, *(0.8 * (high - low) for low, high in pairwise(values))])
        axis.bar(values, [counts[value] / len(rewards) for value in values], width=width, color="tab:green")
    else:
        weights = [1 / len(rewards)] * len(rewards)
        axis.hist(list(rewards), bins=_MOST_BARS, weights=weights, color="tab:green")
    axis.axvline(sum(rewards) / len(rewards), color="black", linestyle=":", linewidth=1, label="mean")
    axis.set_xlabel("reward")
    axis.set_ylabel("share of the samples")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend()
    axis.set_title(title)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
