"""What source document 000 advises where something goes wrong, said when it happens."""

from typing import Final

from rollstream.offline.statistics import RolloutsSummary, shown_text
from rollstream.schemas.errors import ConfigurationError, UnknownEnvironmentError

LOW_REWARD: Final = 0.65
"""Half of 1.3, the best that `word_count` gives. A mean below it is called low."""
_FORMAT: Final = 0.5


def missing_module(error: UnknownEnvironmentError) -> ConfigurationError:
    """The same error with what to install; as it is, if no module is missing."""
    cause = error.__cause__
    if not isinstance(cause, ModuleNotFoundError):
        return error
    return ConfigurationError(
        f"{error}. Install the environment's package into this Python: `cd` to its directory, the one with its "
        "pyproject.toml, and run `uv pip install -e .`; or leave --environment out, since word_count is built in"
    )


def silent_server(url: str, why: str) -> list[str]:
    """For a server that does not answer. It names routes that call no model, as LiteLLM's `/health` does."""
    return [
        f"{url} does not answer: {why}",
        f"   Is it running? LiteLLM: `curl {url}/health/readiness`; vLLM: `curl {url}/health`; others: "
        f"`curl {url}/v1/models`",
        "   What does it log? `litellm --config litellm/litellm_config.yaml --port 8000 --debug`",
        "   Is it another server? Name it with --base-url, or in the variable API_BASE_URL",
    ]


def low_reward(summary: RolloutsSummary, mean_format: float) -> list[str]:
    """Advice if the mean reward of `word_count` is low; else nothing. `mean_format`: share of answers with tags."""
    rewards = summary.rewards
    if not rewards.num or rewards.mean >= LOW_REWARD:
        return []
    lines = [
        f"The mean reward {rewards.mean:.3f} is low: the best is 1.3.",
        f"   Both tags <word_count> and </word_count> are in {mean_format:.0%} of the answers.",
    ]
    if summary.lowest is not None:
        lines.append(
            f"   Look at the column `completion`; one of the worst: {shown_text(summary.lowest['completion'])}"
        )
    if mean_format < _FORMAT:
        lines.append("   The answers lack the form: choose a model that follows the system prompt, or adjust it.")
    else:
        lines.append("   The form is right and the numbers are wrong: choose a stronger model, or fewer words.")
    return lines
