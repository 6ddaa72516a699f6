"""The environment `structured_output`: whether a completion is JSON that fits the row's schema (`rewards.json_schema`).

Rows carry `json_schema` as JSON text in their metadata.
"""

from collections.abc import Iterator

from rollstream.environments.protocol import Split, Task, no_tasks
from rollstream.environments.rewards.json_schema import fits_schema, is_json, load_jsonschema
from rollstream.environments.rubric import Rubric, WeightedReward
from rollstream.schemas.prompt import Sampling


class StructuredOutput:
    """Scores rows of a file; it has no tasks and no options."""

    name = "structured_output"
    rubric = Rubric(WeightedReward("fits_schema", fits_schema), WeightedReward("is_json", is_json, weight=0.0))
    sampling = Sampling(temperature=1.0, max_tokens=1024)

    def __init__(self) -> None:
        load_jsonschema()

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """Raises `ConfigurationError`."""
        no_tasks(self.name)
