"""The environment `ifeval`: whether a response follows the instructions that its row lists (IFEval).

The reward is the paper's prompt-level strict accuracy: 1 if all instructions are followed, else 0. Reported beside it:
`loose` (the same with introductions and asterisks forgiven) and the shares of instructions that are followed, strictly
and loosely. With the option `reward = "share"` the strict share is the reward, which leaves more groups with spread.

Rows carry `instruction_id_list` and `kwargs` as JSON text in their metadata. A row that names an instruction or a
language that is not covered stays unscored.
"""

from collections.abc import Callable, Iterator
from typing import Final

from rollstream.environments.ifeval.instructions import loosely_followed, strictly_followed
from rollstream.environments.protocol import Split, Task
from rollstream.environments.rewards.no_tasks import no_tasks
from rollstream.environments.rubric import RewardFn, RewardInput, Rubric, WeightedReward
from rollstream.schemas.prompt import Sampling

_Judge = Callable[[RewardInput], list[bool]]
_REWARDS: Final = {"all": "strict", "share": "strict_share"}


def strict(sample: RewardInput) -> float:
    """1 if all instructions are followed, else 0."""
    return float(all(strictly_followed(sample)))


def _loose(sample: RewardInput) -> float:
    return float(all(loosely_followed(sample)))


def _share(judge: _Judge) -> RewardFn:
    def share(sample: RewardInput) -> float:
        followed = judge(sample)
        return sum(followed) / len(followed)

    return share


class IfEval:
    """Scores rows of a file; it has no tasks of its own. `reward` is "all" or "share"."""

    name = "ifeval"
    sampling = Sampling(temperature=1.0, max_tokens=1024)

    def __init__(self, reward: str = "all") -> None:
        if reward not in _REWARDS:
            raise ValueError(f"reward must be one of {', '.join(_REWARDS)}")
        functions: dict[str, RewardFn] = {
            "strict": strict,
            "loose": _loose,
            "strict_share": _share(strictly_followed),
            "loose_share": _share(loosely_followed),
        }
        self.rubric = Rubric(
            *(WeightedReward(name, function, float(name == _REWARDS[reward])) for name, function in functions.items())
        )

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """Raises `ConfigurationError`."""
        no_tasks(self.name)
