"""Loads an agent by its name or its dotted path."""

from importlib import import_module

from rollstream.agents.protocol import Agent
from rollstream.agents.single_turn import SingleTurn
from rollstream.schemas.errors import FailedSampleError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.prompt import AgentChoice

_BY_NAME: dict[str, type[Agent]] = {"single_turn": SingleTurn}


def load_agent(choice: AgentChoice) -> Agent:
    """The chosen agent, made with its options. Raises `FailedSampleError` if there is none or its code raises."""
    if choice.name in _BY_NAME:
        return _BY_NAME[choice.name](**choice.options)
    module, _, attribute = choice.name.rpartition(".")
    try:
        agent: Agent = getattr(import_module(module), attribute)(**choice.options)
    except KeyboardInterrupt:
        raise
    # BaseException: code of a user may also call sys.exit, which must not end this process.
    except BaseException as error:
        known = ", ".join(_BY_NAME)
        raise FailedSampleError(
            FailureCode.UNKNOWN_AGENT,
            f"{choice.name!r} is neither one of {known} nor an importable dotted path: {type(error).__name__}: {error}",
        ) from error
    return agent
