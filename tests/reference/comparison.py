"""Both sides of the comparison. torch and TRL are imported by whoever makes one."""

from functools import cache
from pathlib import Path
from typing import Any

from tests.harness.late import Late
from tests.reference.cases import CASES

gradients = Late("tests.reference.gradients")
ours = Late("tests.reference.ours")
rollouts = Late("tests.reference.rollouts")
theirs = Late("tests.reference.theirs")
torch = Late("torch")


class Reference:
    """A policy, its canned rollouts, and what both sides make of them."""

    def __init__(self, directory: Path) -> None:
        torch.set_num_threads(1)  # the tensors are small
        self.directory = directory
        self.policy = gradients.a_policy(directory)
        self.groups = rollouts.canned_rollouts(self.policy)
        self._shuffling_seed = ours.shuffling_like_ours(self.groups)
        self.theirs = cache(self._theirs)

    def ours(self, name: str) -> tuple[list[Any], Any]:
        """The gradients of each update of the case, and the step's report."""
        return ours.our_gradients(self.policy, self.groups, self.directory, CASES[name].ours)

    def difference(self, name: str) -> float:
        """Between both sides, see `largest_difference`."""
        return gradients.largest_difference(self.ours(name)[0], self.theirs(name))

    def _theirs(self, name: str, own_head: bool = False) -> list[Any]:
        return theirs.their_gradients(
            self.policy,
            self.groups,
            self.directory,
            shuffling_seed=self._shuffling_seed,
            config=CASES[name].theirs,
            own_head=own_head,
        )
