"""Both sides of the comparison. torch and TRL are imported by whoever makes one."""

import copy
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rollstream.schemas.scored import RolloutScored
from tests.harness.late import Late
from tests.reference.cases import CASES, PLAIN_CASES

gradients = Late("tests.reference.gradients")
ours = Late("tests.reference.ours")
plain = Late("tests.reference.plain")
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

    def difference_from_plain(
        self, name: str, groups: Sequence[Sequence[RolloutScored]], *, are_ones: bool = False
    ) -> tuple[float, float]:
        """Of the gradients and of the losses of one update, ours and by hand.

        `are_ones`: the samples are groups of one each, and `groups` are their environments.
        """
        posed = [[one] for group in groups for one in group] if are_ones else groups
        found, report = ours.our_gradients(self.policy, posed, self.directory, {**PLAIN_CASES[name], "minibatches": 1})
        policy = copy.deepcopy(self.policy)
        loss = plain.plain_loss(name, policy, gradients.a_model(self.directory), groups, are_ones=are_ones)
        loss.backward()
        expected = {parameter_name: parameter.grad for parameter_name, parameter in policy.named_parameters()}
        return gradients.largest_difference(found, [expected]), abs(report.loss - float(loss.detach()))

    def _theirs(self, name: str, own_head: bool = False) -> list[Any]:
        return theirs.their_gradients(
            self.policy,
            self.groups,
            self.directory,
            shuffling_seed=self._shuffling_seed,
            config=CASES[name].theirs,
            own_head=own_head,
        )
