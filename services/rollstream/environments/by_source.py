"""The environment `by_source`: each row by the reward of its data set, which metadata `data_source` names.

The data sets are those of verl and a few more (`rewards.registry`). A row whose data set is not known stays unscored.
Programming problems need the option `sandbox_url`, a service with sandbox-fusion's `POST /run_code`; a program then
gets `sandbox_run_seconds` per test, and ten tests take up to 6 times that and 10 s more: set
`sample_deadline_seconds` of the scorer accordingly.

Where math-verify is installed, it is imported with the environment, which takes 6 to 18 s while its files are not in
memory yet: see `math` for the setting that bounds it.
"""

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec

from rollstream.environments.protocol import Split, Task, no_tasks
from rollstream.environments.rewards.equivalence import load_math_verify
from rollstream.environments.rewards.registry import score_by_source
from rollstream.environments.rewards.sandbox import Sandbox
from rollstream.environments.rubric import Rubric, WeightedReward
from rollstream.schemas.prompt import Sampling


class BySource:
    """Scores rows of a file; it has no tasks of its own."""

    name = "by_source"
    sampling = Sampling(temperature=1.0, max_tokens=1024)

    def __init__(self, sandbox_url: str = "", sandbox_run_seconds: str = "5") -> None:
        # Options arrive as text from the run's file.
        sandbox = Sandbox(url=sandbox_url, run_seconds=float(sandbox_run_seconds)) if sandbox_url else None
        self.rubric = Rubric(WeightedReward("score", partial(score_by_source, sandbox=sandbox)))
        # Only some data sets need it; importing it takes longer than a sample may.
        if find_spec("math_verify"):
            load_math_verify()

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """Raises `ConfigurationError`."""
        no_tasks(self.name)
