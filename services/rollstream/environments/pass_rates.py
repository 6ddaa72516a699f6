"""How often a policy passes, estimated from some samples of each task, and how sure the estimate is. Pure."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Final

# Of the two-sided 95 % interval.
_Z: Final = 1.959963984540054


def pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    """pass@k of one task: the probability that at least one of k samples passes, estimated without bias.

    This is 1 - C(n - c, k) / C(n, k), Chen et al. 2021 (arXiv 2107.03374), eq. 1. Raises `ValueError` unless
    0 <= num_passed <= num_samples and 1 <= k <= num_samples.
    """
    return 1.0 - pass_all_k(num_samples, num_samples - num_passed, k)


def pass_all_k(num_samples: int, num_passed: int, k: int) -> float:
    """pass^k of one task: the probability that all of k samples pass, C(c, k) / C(n, k). Raises as `pass_at_k` does."""
    _refuse_impossible(num_passed, num_samples)
    if not 1 <= k <= num_samples:
        raise ValueError(f"k is {k}: of {num_samples} samples it is 1 to {num_samples}")
    if num_passed < k:
        return 0.0
    # The quotient of the binomials without their large numbers.
    return math.prod(1.0 - k / drawn for drawn in range(num_passed + 1, num_samples + 1))


def wilson(num_passed: int, num_samples: int) -> tuple[float, float]:
    """How sure a pass rate is: its 95 % interval as two fractions; (0, 1) without samples.

    This is the Wilson score interval (Wilson 1927), which also holds for few samples.
    """
    _refuse_impossible(num_passed, num_samples)
    if not num_samples:
        return 0.0, 1.0
    share, z2 = num_passed / num_samples, _Z * _Z
    middle = (share + z2 / (2 * num_samples)) / (1 + z2 / num_samples)
    half = _Z * math.sqrt(share * (1 - share) / num_samples + z2 / (4 * num_samples**2)) / (1 + z2 / num_samples)
    # At 0 and 1 the formula gives exactly 0 and 1, but its rounding does not.
    low = 0.0 if num_passed == 0 else middle - half
    high = 1.0 if num_passed == num_samples else middle + half
    return low, high


def mean_interval(of_tasks: Sequence[float]) -> tuple[float, float] | None:
    """How sure the mean over tasks is: its 95 % interval; None if the numbers don't tell.

    `of_tasks`: one number a task, the mean of its samples. These, not the samples, are independent (Miller 2024, arXiv
    2411.00640). Where all are 0 or 1 it is Wilson's interval: the usual one has no width if all are equal.
    """
    if of_tasks and set(of_tasks) <= {0.0, 1.0}:
        return wilson(round(sum(of_tasks)), len(of_tasks))
    if len(of_tasks) < 2:
        return None
    mean, half = fmean(of_tasks), _Z * stdev(of_tasks) / math.sqrt(len(of_tasks))
    return mean - half, mean + half


def _refuse_impossible(num_passed: int, num_samples: int) -> None:
    if not 0 <= num_passed <= num_samples:
        raise ValueError(f"{num_passed} of {num_samples} samples cannot have passed")
