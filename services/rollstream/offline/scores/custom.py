"""A reward function of a person's own, named by its dotted path on the command line, as an environment to score with.

It is called in one of two ways, by the names of its parameters: as verl calls one (`data_source`, `solution_str` or
`solution`, `ground_truth`, `extra_info`; by name, those that it has), else with one `RewardInput`. It gives a number,
or an object with the number under `score`.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final

from rollstream.environments.protocol import Split, Task
from rollstream.environments.rubric import RewardInput, Rubric, WeightedReward
from rollstream.rows.conversation import object_of
from rollstream.schemas.prompt import Sampling

_COMPLETIONS: Final = frozenset({"solution_str", "solution"})


class CustomReward:
    """The environment of the function at `path` (`package.module.name`). It has no tasks.

    Raises `ImportError` if there is nothing at `path` that can be called, or its parameters are not known, as of some
    functions that are written in C; what its module raises, as it is.
    """

    name = "custom_reward"
    sampling = Sampling()

    def __init__(self, path: str) -> None:
        module, _, attribute = path.rpartition(".")
        try:
            function = getattr(import_module(module), attribute)
        except (ModuleNotFoundError, AttributeError) as error:
            raise ImportError(f"there is no such function: {error}") from error
        if not callable(function):
            raise ImportError(f"it is a {type(function).__name__}, not a function")
        try:
            names = frozenset(inspect.signature(function).parameters)
        except ValueError as error:
            raise ImportError(f"its parameters are not known: {error}") from error
        self.rubric = Rubric(WeightedReward(attribute, lambda sample: _number(_called(function, names, sample))))

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        return iter(())


def _called(function: Callable[..., Any], names: frozenset[str], sample: RewardInput) -> Any:
    if not names & _COMPLETIONS:
        return function(sample)
    given = {
        "data_source": sample.metadata.get("data_source"),
        "ground_truth": sample.reference_answer,
        "extra_info": dict(object_of(sample.metadata.get("extra_info"))),
        **dict.fromkeys(_COMPLETIONS, sample.completion),
    }
    return function(**{name: value for name, value in given.items() if name in names})


def _number(result: Any) -> Any:
    return result["score"] if isinstance(result, Mapping) else result
