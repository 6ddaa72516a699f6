"""Ends a run of which nothing can be learned: so many groups in a row closed without spread in their rewards. Pure."""

from rollstream.producers.settings import ProducerSettings
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ledger import NO_SPREAD_REASON, ClosedGroup, GroupOutcome


class FlatGroups:
    """Counts the producer's groups without spread since the last one that trained."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._forget()

    def _forget(self) -> None:
        self.num_groups = 0
        self._num_known, self._sum, self._lowest, self._highest = 0, 0.0, float("inf"), -float("inf")

    def note(self, group: ClosedGroup) -> None:
        """Take in one of the producer's own groups as it closes. Other drops say nothing of the tasks."""
        if group.outcome is GroupOutcome.TRAINED:
            self._forget()
        elif group.reason == NO_SPREAD_REASON:
            self.num_groups += 1
            if (mean := group.reward_mean) is not None:
                self._num_known, self._sum = self._num_known + 1, self._sum + mean
                self._lowest, self._highest = min(self._lowest, mean), max(self._highest, mean)

    def check(self, pools: dict[str, int]) -> None:
        """Raise `ConfigurationError` with a report at the bound. `pools`: tasks in each, if there is a curriculum."""
        if self.num_groups < self._settings.most_flat_groups:
            return
        means = "of unknown rewards"
        if self._num_known:
            mean = self._sum / self._num_known
            means = f"their means are {self._lowest:g} to {self._highest:g}, {mean:.3f} on average"
        in_pools = ", ".join(f"{name} {size}" for name, size in pools.items())
        raise ConfigurationError(
            f"the last {self.num_groups} groups of producer {self._settings.name} have no spread in their rewards, so "
            f"nothing is learned from them; {means}{f'; tasks in the pools: {in_pools}' if pools else ''}. Where all "
            "rewards are high the tasks are too easy, where all are low too hard: pose others, look at the reward "
            f"function, or raise group_size {self._settings.group_size} or the temperature. most_flat_groups = "
            f"{self._settings.most_flat_groups} is the bound"
        )
