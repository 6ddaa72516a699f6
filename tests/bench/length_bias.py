"""What lag drops of the answers, and whether the lengths that are trained are those that were generated."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rollstream.trainer.intake.groups import DropReason

TRAINED: Final = "trained"
_BINS: Final = 16
_QUANTILES: Final = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The answers of closed groups. `lengths` [N]: tokens of each. `outcomes`: how its group closed, or TRAINED.

    Truncated answers of a trained group count as trained, as in the ledger: their rewards are in its baseline.
    """

    lengths: Lengths
    outcomes: tuple[str, ...]
    num_groups: Mapping[str, int]
    """Outcome → groups."""

    @property
    def trained(self) -> Lengths:
        """Lengths of the answers whose groups were trained on."""
        return self.lengths[self._are(TRAINED)]

    @property
    def are_too_old(self) -> npt.NDArray[np.bool_]:
        """[N] whether the answer's group was dropped for its lag."""
        return self._are(DropReason.TOO_OLD.value)

    def _are(self, outcome: str) -> npt.NDArray[np.bool_]:
        return np.array([one == outcome for one in self.outcomes], dtype=np.bool_)


def answers_of(answers: Sequence[tuple[str, int]], outcome_of: Mapping[str, str]) -> Answers:
    """`answers`: group id and tokens of each answer; `outcome_of`: group id → how it closed. Other groups do not count.

    An answer without tokens (failed, unresolved) was not sampled, so it has no length.
    """
    counted = [(outcome_of[group_id], length) for group_id, length in answers if length and group_id in outcome_of]
    return Answers(
        lengths=np.array([length for _, length in counted], dtype=np.int64),
        outcomes=tuple(outcome for outcome, _ in counted),
        num_groups=Counter(outcome_of.values()),
    )


def figures(found: Answers) -> dict[str, Any]:
    """The distance, the quantiles and the counts, rounded for people."""
    return {
        "ks_distance": round(ks_distance(found.trained, found.lengths), 4),
        "tokens_of_an_answer": {"generated": _quantiles(found.lengths), "trained": _quantiles(found.trained)},
        "too_old_share_by_quartile_of_length": _shares_by_quartile(found),
        "groups": dict(found.num_groups),
        "num_samples": len(found.lengths),
        "num_tokens": int(found.lengths.sum()),
    }


def too_old_share_of_tokens(found: Answers) -> float:
    """Tokens of the groups that were dropped for their lag ÷ all tokens; 0 of none."""
    return int(found.lengths[found.are_too_old].sum()) / max(1, int(found.lengths.sum()))


def ks_distance(some: Lengths, every: Lengths) -> float:
    """Kolmogorov-Smirnov: the largest difference of the two cumulative distributions, 0 to 1; 1 if one is empty."""
    if not len(some) or not len(every):
        return 1.0
    points = np.union1d(some, every)
    return float(np.abs(_cumulative(some, points) - _cumulative(every, points)).max())


def _cumulative(lengths: Lengths, points: Lengths) -> npt.NDArray[np.float64]:
    return np.searchsorted(np.sort(lengths), points, side="right") / len(lengths)


def _quantiles(lengths: Lengths) -> dict[str, float]:
    if not len(lengths):
        return {}
    values = np.quantile(lengths, _QUANTILES)
    named = {f"p{100 * quantile:.0f}": round(float(value)) for quantile, value in zip(_QUANTILES, values, strict=True)}
    return {"mean": round(float(lengths.mean())), **named, "max": int(lengths.max())}


def _shares_by_quartile(found: Answers) -> list[float]:
    """Of the shortest quarter of the answers to the longest: the share whose group was dropped for its lag."""
    ordered = found.are_too_old[np.argsort(found.lengths, kind="stable")]
    return [round(float(part.mean()), 4) for part in np.array_split(ordered, 4) if len(part)]


def draw(found: Answers, path: Path) -> None:
    """Draw lengths generated and trained, and what lag drops by length, into `path`."""
    import matplotlib

    # A backend that needs no screen.
    matplotlib.use("Agg")
    from matplotlib import pyplot

    picture, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
    _draw_shares(left, found.lengths, "generated", "tab:blue")
    _draw_shares(left, found.trained, "trained", "tab:green")
    left.set_ylabel("share of answers at most as long")
    left.legend()
    _draw_dropped(right, found)
    right.set_ylabel("share dropped for lag")
    for axis in (left, right):
        axis.set_xscale("log")
        axis.set_xlabel("tokens of an answer")
        axis.grid(alpha=0.3)
    picture.savefig(path, dpi=120)
    pyplot.close(picture)


def _draw_shares(axis: Any, lengths: Lengths, label: str, color: str) -> None:
    axis.step(np.sort(lengths), np.arange(1, len(lengths) + 1) / max(1, len(lengths)), label=label, color=color)


def _draw_dropped(axis: Any, found: Answers) -> None:
    """Bars of equal width on the logarithmic axis; without answers in it a bar is missing."""
    edges = np.geomspace(found.lengths.min(), found.lengths.max() + 1, _BINS + 1)
    generated, _ = np.histogram(found.lengths, edges)
    dropped, _ = np.histogram(found.lengths[found.are_too_old], edges)
    axis.bar(edges[:-1], dropped / np.maximum(generated, 1), width=np.diff(edges), align="edge", color="tab:orange")
    axis.set_ylim(0, 1)
