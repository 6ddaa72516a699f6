"""k-means in one dimension, exact: the best division of sorted values into k runs, by dynamic programming.

In one dimension the clusters of the best solution are runs of neighbors, so it can be found without a random start
(Wang and Song 2011, Ckmeans.1d.dp). The result depends on the values alone: there is no seed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

MAX_POINTS: Final = 2048
"""More different values are put together in so many equally wide bins. Up to here the result is exact."""


@dataclass(slots=True)
class _Point:
    """Equal or neighboring values: how many, their sum, and the largest."""

    count: int
    total: float
    highest: float


def cluster_ends(values: Iterable[tuple[float, int]], lowest: float, highest: float, k: int) -> list[float]:
    """The largest value of each of the k clusters, ascending. `values`: (value, how often), ascending.

    `lowest` and `highest` are the first and the last value. With fewer than k points, each is a cluster.
    """
    points = _points(values, lowest, highest)
    if len(points) <= k:
        return [point.highest for point in points]
    return [points[end].highest for end in _best_ends(points, k)]


def _points(values: Iterable[tuple[float, int]], lowest: float, highest: float) -> list[_Point]:
    """The values one by one if there are at most `MAX_POINTS`, else in bins."""
    exact: list[_Point] | None = []
    bins: dict[int, _Point] = {}
    width = (highest - lowest) / MAX_POINTS or 1.0
    for value, count in values:
        if exact is not None:
            exact.append(_Point(count, value * count, value))
            if len(exact) > MAX_POINTS:
                exact = None
        place = min(int((value - lowest) / width), MAX_POINTS - 1)
        point = bins.setdefault(place, _Point(0, 0.0, value))
        point.count += count
        point.total += value * count
        point.highest = value
    return exact if exact is not None else list(bins.values())


def _best_ends(points: list[_Point], k: int) -> list[int]:
    """The last point of each cluster."""
    weights = np.array([point.count for point in points], dtype=np.float64)
    values = np.array([point.total / point.count for point in points], dtype=np.float64)
    # Differences of large sums would lose the digits that matter.
    values = values - np.average(values, weights=weights)
    n = np.concatenate(([0.0], np.cumsum(weights)))
    s = np.concatenate(([0.0], np.cumsum(weights * values)))
    q = np.concatenate(([0.0], np.cumsum(weights * values * values)))

    def spread(starts: NDArray[np.int64], end: int) -> NDArray[np.float64]:
        """Sum of squared distances to the mean, of the points from each of `starts` to `end`."""
        total = s[end + 1] - s[starts]
        spreads: NDArray[np.float64] = q[end + 1] - q[starts] - total * total / (n[end + 1] - n[starts])
        return spreads

    num = len(points)
    best = np.array([spread(np.array([0]), end)[0] for end in range(num)])
    came_from = np.zeros((k, num), dtype=np.int64)
    for used in range(1, k):
        best_here = np.full(num, np.inf)
        for end in range(used, num):
            starts = np.arange(used, end + 1)
            costs = best[starts - 1] + spread(starts, end)
            chosen = int(np.argmin(costs))
            best_here[end], came_from[used, end] = costs[chosen], starts[chosen]
        best = best_here
    ends = [num - 1]
    for used in range(k - 1, 0, -1):
        ends.append(int(came_from[used, ends[-1]]) - 1)
    return ends[::-1]
