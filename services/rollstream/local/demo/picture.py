"""Draws `reward.png`: reward, policy lag and tokens/s over the steps of a run."""

from collections.abc import Sequence
from pathlib import Path

from rollstream.schemas.ledger import LedgerEntry


def draw(steps: Sequence[LedgerEntry], path: Path) -> None:
    """Draw the metrics of the surviving steps, given in their order."""
    import matplotlib

    # A backend that needs no screen.
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 1, figsize=(8, 8), sharex=True, constrained_layout=True)
    panels = (
        ("reward_mean", "reward (mean of the step)", "tab:green"),
        ("policy_lag_mean", "policy lag (optimizer steps)", "tab:orange"),
        ("generated_tokens_per_second", "completion tokens/s", "tab:blue"),
    )
    numbers = [entry.step for entry in steps]
    for axis, (metric, label, color) in zip(axes, panels, strict=True):
        values = [entry.metrics.get(metric, float("nan")) for entry in steps]
        axis.plot(numbers, values, color=color, linewidth=1)
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    axes[1].plot(numbers, [entry.metrics.get("policy_lag_max", float("nan")) for entry in steps], "k:", linewidth=1)
    axes[-1].set_xlabel("optimizer step")
    figure.suptitle("rollstream demo")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
