r"""Environments that only score the rows of a file, and have no tasks of their own.

`math`: whether the last answer is mathematically the reference answer. The library math-verify decides
(`rewards/equivalence.py`): `\frac{1}{2}`, `0.5` and `1/2` are equal. A table may say what a right, a
wrong and a missing answer is worth, finished or cut off (`rewards/table.py`).
`multiple_choice`: whether a completion names the letter of the right choice (`rewards/letters.py`).
`structured_output`: whether it is JSON that fits metadata `json_schema`, JSON text (`rewards/json_schema.py`).
`by_source`: each row by the reward of its data set, which metadata `data_source` names: those of verl and a few more
(`rewards/registry.py`). A row whose data set is not known stays unscored.

Programming problems of `by_source` need the option `sandbox_url`, a service with sandbox-fusion's `POST /run_code`. A
program then gets `sandbox_run_seconds` per test, and ten tests take up to 6 times that and 10 s more: set
`sample_deadline_seconds` of the scorer accordingly.

Making `math`, and `by_source` where math-verify is installed, imports antlr and sympy. That takes 6 to 18 s where their
files are not in memory yet. A scorer gives it `load_deadline_seconds`, 10 s by default, and leaves the samples
unresolved beyond. Where that happens, raise it to 30, and `batch_deadline_seconds` and `session_timeout_seconds` above.
"""

from functools import partial
from importlib.util import find_spec

from rollstream.environments.protocol import no_tasks
from rollstream.environments.rewards.datasets import equivalent
from rollstream.environments.rewards.equivalence import load_math_verify
from rollstream.environments.rewards.json_schema import fits_schema, is_json, load_jsonschema
from rollstream.environments.rewards.letters import answered, multiple_choice
from rollstream.environments.rewards.registry import score_by_source
from rollstream.environments.rewards.sandbox import Sandbox
from rollstream.environments.rewards.table import DiscountedTable, TabledRubric
from rollstream.environments.rubric import Rubric, Scores, WeightedReward
from rollstream.schemas.prompt import Sampling


class Math:
    """1 for a right answer, else 0. With options of `rewards/table.py`, as text, what the table says instead."""

    name = "math"
    sampling = Sampling(temperature=1.0, max_tokens=1024)
    tasks = no_tasks

    def __init__(self, **options: str) -> None:
        correct = Rubric(WeightedReward("correct", equivalent))
        table = DiscountedTable.model_validate_strings(options)
        self.rubric: Scores = TabledRubric(correct, table) if options else correct
        load_math_verify()


class MultipleChoice:
    """It has no options."""

    name = "multiple_choice"
    rubric = Rubric(WeightedReward("correct", multiple_choice), WeightedReward("answered", answered, weight=0.0))
    sampling = Sampling(temperature=1.0, max_tokens=512)
    tasks = no_tasks


class StructuredOutput:
    """It has no options."""

    name = "structured_output"
    rubric = Rubric(WeightedReward("fits_schema", fits_schema), WeightedReward("is_json", is_json, weight=0.0))
    sampling = Sampling(temperature=1.0, max_tokens=1024)
    tasks = no_tasks

    def __init__(self) -> None:
        load_jsonschema()


class BySource:
    """Its options are those of the sandbox."""

    name = "by_source"
    sampling = Sampling(temperature=1.0, max_tokens=1024)
    tasks = no_tasks

    def __init__(self, sandbox_url: str = "", sandbox_run_seconds: str = "5") -> None:
        # Options arrive as text from the run's file.
        sandbox = Sandbox(url=sandbox_url, run_seconds=float(sandbox_run_seconds)) if sandbox_url else None
        self.rubric = Rubric(WeightedReward("score", partial(score_by_source, sandbox=sandbox)))
        # Only some data sets need it; importing it takes longer than a sample may.
        if find_spec("math_verify"):
            load_math_verify()
