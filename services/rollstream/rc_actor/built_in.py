"""Names of functions of PipelineRL that stand in its configurations. Here they are built in: nothing is imported."""

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any, Final

from rollstream.process.settings.declared import imported
from rollstream.schemas.errors import ConfigurationError

_MATH: Final = "pipelinerl.domains.math"
MATH_ROLLOUT: Final = f"{_MATH}.rollouts.generate_math_rollout"
ROLLOUTS: Final = (
    MATH_ROLLOUT,
    f"{_MATH}.rollouts.generate_math_rollout_rc",
    f"{_MATH}.rollouts.generate_summarization_rollout",
)
MATH_DATASETS: Final = f"{_MATH}.load_datasets"
MATH_ENVIRONMENT: Final = f"{_MATH}.MathEnvironment"

PATH_PATTERN: Final = r"^[^\W\d]\w*(\.[^\W\d]\w*)+$"
"""package.module.function"""
MAX_PATH_CHARACTERS: Final = 300


def imported_policy(key: str, path: str) -> Callable[..., Any] | None:
    """The async function that a policy's key names; None if it is built in.

    Raises `ConfigurationError` if nothing can be imported there, or if it is no async function.
    """
    if path in ROLLOUTS:
        return None
    found = imported(key, path)
    if not iscoroutinefunction(found):
        raise ConfigurationError(
            f"{key} = {path!r} is a {type(found).__name__}, no async function: write `async def "
            f"{path.rpartition('.')[2]}(cfg, llm, problem, session) -> RolloutResult`"
        )
    policy: Callable[..., Any] = found
    return policy
