"""Which prompt of a client can be posed to train on: both who takes it and who poses it ask."""

from rollstream.agents.load import refuse_unknown_agent
from rollstream.agents.samples import refuse_truncated_distribution
from rollstream.environments.load import refuse_unknown_environment
from rollstream.process.settings.base import StageSettings
from rollstream.schemas.errors import ConfigurationError, UnusableRowError
from rollstream.schemas.ids import group_id
from rollstream.schemas.prompt import PromptSubmitted, Purpose, refuse_out_of_bounds


def refuse_unposable(prompt: PromptSubmitted, settings: StageSettings) -> None:
    """Raise `BadMessageError` that says why nobody could train on the prompt."""
    if prompt.purpose is not Purpose.TRAIN or prompt.weight_version is not None:
        raise UnusableRowError(f"purpose {prompt.purpose.value}: only prompts to train on are posed")
    if prompt.group_id != group_id(settings.run, prompt.prompt_id, 0):
        raise UnusableRowError("its group_id is not that of its prompt_id, so a repeat would be another group")
    if prompt.group_size < 2:
        # It would count as less than a group, and a share of groups would never fill a step with such prompts.
        raise UnusableRowError("group_size 1: a prompt to train on needs 2 samples or more, which are compared")
    refuse_truncated_distribution(prompt)
    try:
        refuse_out_of_bounds(prompt)
        refuse_unknown_environment(prompt.environment, settings.environments)
        refuse_unknown_agent(prompt.agent.name, settings.agents)
    except ConfigurationError as error:
        raise UnusableRowError(str(error)) from error
