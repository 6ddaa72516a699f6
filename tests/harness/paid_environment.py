"""An environment that calls a service, whose client shows the key in its errors."""

from rollstream.environments.rubric import RewardInput, Rubric, WeightedReward
from rollstream.process.settings.declared import Declaration
from tests.harness.unruly_environment import WithoutTasks

NAME = "paid"
PATH = "tests.harness.paid_environment.Paid"
SHOWN, RAISED, BROKEN = "shown", "raised", "broken"
"""Completions, and what becomes of the key."""


def declared(key: str) -> dict[str, Declaration]:
    """It, with its key, as the settings of a run declare it."""
    return {NAME: Declaration.model_validate({"path": PATH, "options": {"key": key}})}


class Paid(WithoutTasks):
    """Gives no reward: the service refuses the key."""

    name = NAME

    def __init__(self, key: str) -> None:
        self._key = key
        self.rubric = _Rubric(key, WeightedReward("grade", self._grade))

    def _grade(self, sample: RewardInput) -> float:
        if sample.completion == SHOWN:
            return f"401 for {self._key}"  # type: ignore[return-value]
        raise RuntimeError(f"401 for {self._key!r}, {self._key}")


class _Rubric(Rubric):
    """A rubric of its own, which breaks before any reward function is called."""

    def __init__(self, key: str, reward: WeightedReward) -> None:
        super().__init__(reward)
        self._key = key

    def score(self, sample: RewardInput) -> tuple[float, dict[str, float]]:
        """Raises what no rubric should raise, if it is to be broken."""
        if sample.completion == BROKEN:
            raise ConnectionError(f"401 for {self._key}")
        return super().score(sample)
