"""How much the loss of one token counts, so that the loss of an optimizer minibatch is a plain sum over its tokens.

Computed over the whole minibatch before it is split into micro-batches, so the gradient does not depend on the split.
A rollout counts once, however many samples its turns make. One of which no token trains, e.g. a truncated one, still
counts, as in TRL: without it the others would weigh more. `S`: samples of the minibatch.
"""

import numpy as np
import numpy.typing as npt

from rollstream.training.learning.objective_settings import Normalization


def token_weights(
    num_tokens: npt.NDArray[np.int64],
    max_tokens: npt.NDArray[np.int64],
    rollouts: npt.NDArray[np.int64],
    normalization: Normalization,
) -> npt.NDArray[np.float64]:
    """num_tokens [S] that train, max_tokens [S], rollouts [S] → the weight of each of a sample's tokens, [S].

    `rollouts` are numbered from 0; samples of one have the same max_tokens. At least one sample must have a token to
    train.

    - dapo: mean over all tokens, DAPO (arXiv 2503.14476) eq. 8.
    - grpo: mean of the rollouts' means, DeepSeekMath (arXiv 2402.03300) eq. 3; the mean of no token is 0.
    - dr_grpo: divided by the constant rollouts x max_tokens, Dr. GRPO (arXiv 2503.20783) section 3.2, as in TRL.
    """
    _, firsts = np.unique(rollouts, return_index=True)
    if normalization == "dapo":
        return np.full(len(rollouts), 1.0 / num_tokens.sum())
    if normalization == "grpo":
        of_rollout = np.bincount(rollouts, weights=num_tokens)[rollouts]
        return 1.0 / (len(firsts) * np.maximum(of_rollout, 1.0))
    return np.full(len(rollouts), 1.0 / max_tokens[firsts].sum())
