"""Group-relative advantages, as numpy. `G`: samples of one group.

DeepSeekMath (arXiv 2402.03300) section 4.1.2, eq. 3: the mean reward of a group is its baseline. Dr. GRPO (arXiv
2503.20783) section 3.2: dividing by the standard deviation favors groups that are nearly all right or all wrong.
"""

import numpy as np
import numpy.typing as npt

_STD_EPSILON = 1e-4  # as in TRL
_ROUNDING = 16 * float(np.finfo(np.float64).eps)


def group_advantages(rewards: npt.ArrayLike, *, scale_by_std: bool) -> npt.NDArray[np.float64]:
    """rewards [G] → reward - mean of the group [G], divided by its sample standard deviation if `scale_by_std`.

    A group of one has advantage 0; so has a reward that differs from the mean only by rounding.
    Raises ValueError for an empty group or a reward that is not finite.
    """
    group_rewards = np.asarray(rewards, dtype=np.float64)
    if group_rewards.ndim != 1 or group_rewards.size == 0:
        raise ValueError(f"expected the rewards of one group, at least one, got shape {group_rewards.shape}")
    if not np.isfinite(group_rewards).all():
        raise ValueError(f"rewards must be finite, got {group_rewards.tolist()}: a sample without reward is left out")
    centered: npt.NDArray[np.float64] = group_rewards - group_rewards.mean()
    centered[np.abs(centered) <= _ROUNDING * np.abs(group_rewards).max()] = 0.0
    if not scale_by_std or group_rewards.size == 1:
        return centered
    scaled: npt.NDArray[np.float64] = centered / (group_rewards.std(ddof=1) + _STD_EPSILON)
    return scaled
