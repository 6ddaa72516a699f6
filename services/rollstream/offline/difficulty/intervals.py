"""How sure a pass rate is: the Wilson score interval (Wilson 1927), which also holds for few samples. Pure."""

import math
from typing import Final

_Z: Final = 1.959963984540054
"""Of the two-sided 95 % interval."""


def wilson(num_passed: int, num_samples: int) -> tuple[float, float]:
    """The 95 % interval of the share that passes, as two fractions; (0, 1) without samples."""
    if not 0 <= num_passed <= num_samples:
        raise ValueError(f"{num_passed} of {num_samples} samples cannot have passed")
    if not num_samples:
        return 0.0, 1.0
    share, z2 = num_passed / num_samples, _Z * _Z
    middle = (share + z2 / (2 * num_samples)) / (1 + z2 / num_samples)
    half = _Z * math.sqrt(share * (1 - share) / num_samples + z2 / (4 * num_samples**2)) / (1 + z2 / num_samples)
    # At 0 and 1 the formula gives exactly 0 and 1, but its rounding does not.
    low = 0.0 if num_passed == 0 else middle - half
    high = 1.0 if num_passed == num_samples else middle + half
    return low, high
