r"""The environment `math`: whether the last answer of a completion is mathematically the reference answer.

The library math-verify decides (`rewards.equivalence`): `\frac{1}{2}`, `0.5` and `1/2` are equal. Where the reward of
a data set's original is wanted instead, `by_source` gives it.

Making the environment imports antlr and sympy, which takes 6 to 18 s where their files are not in memory yet. A scorer
gives it `load_deadline_seconds`, 10 s by default, and leaves the samples unresolved beyond; where that happens, raise
it to 30, and `batch_deadline_seconds` and `session_timeout_seconds` above it.
"""

from collections.abc import Iterator

from rollstream.environments.protocol import Split, Task, no_tasks
from rollstream.environments.rewards.equivalence import is_equivalent, load_math_verify
from rollstream.environments.rewards.references import reference_of
from rollstream.environments.rubric import RewardInput, Rubric, WeightedReward
from rollstream.schemas.prompt import Sampling


def correct(sample: RewardInput) -> float:
    """1 if the answer is right, else 0."""
    return float(is_equivalent(sample.completion, reference_of(sample)))


class Math:
    """Scores rows of a file; it has no tasks and no options."""

    name = "math"
    rubric = Rubric(WeightedReward("correct", correct))
    sampling = Sampling(temperature=1.0, max_tokens=1024)

    def __init__(self) -> None:
        load_math_verify()

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """Raises `ConfigurationError`."""
        no_tasks(self.name)
