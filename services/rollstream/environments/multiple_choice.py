"""The environment `multiple_choice`: whether a completion names the letter of the right choice (`rewards.letters`)."""

from collections.abc import Iterator

from rollstream.environments.protocol import Split, Task, no_tasks
from rollstream.environments.rewards.letters import answered, multiple_choice
from rollstream.environments.rubric import Rubric, WeightedReward
from rollstream.schemas.prompt import Sampling


class MultipleChoice:
    """Scores rows of a file; it has no tasks and no options."""

    name = "multiple_choice"
    rubric = Rubric(WeightedReward("correct", multiple_choice), WeightedReward("answered", answered, weight=0.0))
    sampling = Sampling(temperature=1.0, max_tokens=512)

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """Raises `ConfigurationError`."""
        no_tasks(self.name)
