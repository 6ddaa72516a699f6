"""The agents that prompts may name: the built-in ones, and those that the run's settings declare."""

from collections.abc import Callable, Mapping
from typing import Final

from rollstream.agents.protocol import Agent
from rollstream.agents.reasoning_cache import ReasoningCache
from rollstream.agents.single_turn import SingleTurn
from rollstream.agents.tools import ToolAgent
from rollstream.process.settings.declared import Declaration, imported, why_refused
from rollstream.schemas.bounds import MAX_TURNS
from rollstream.schemas.errors import ConfigurationError, FailedSampleError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.prompt import AgentChoice

_BUILT_IN: Final[Mapping[str, Callable[..., Agent]]] = {
    "single_turn": SingleTurn,
    "tools": ToolAgent,
    "reasoning_cache": ReasoningCache,
}


def refuse_unknown_agent(name: str, declared: Mapping[str, Declaration]) -> None:
    """Raise `ConfigurationError` unless `name` is built in or `declared`. Nothing is imported."""
    why = _why_refused(name, declared)
    if why:
        raise ConfigurationError(why)


class Agents:
    """Makes the agents that prompts choose.

    Those that the settings declare are imported at once: one that can't be imported stops the generator before it takes
    prompts, and no import blocks the event loop later. Raises `ConfigurationError` then.
    """

    def __init__(
        self,
        declared: Mapping[str, Declaration] | None = None,
        makers: Mapping[str, Callable[..., Agent]] | None = None,
    ) -> None:
        """`makers`: what makes agents of these built-in names instead."""
        self._declared = declared or {}
        for name in self._declared:
            refuse_unknown_agent(name, self._declared)
        own: dict[str, Callable[..., Agent]] = {
            name: imported(f"[agents.{name}] path", one.path) for name, one in self._declared.items() if one.path
        }
        self._makers = {**_BUILT_IN, **own, **(makers or {})}

    def make(self, choice: AgentChoice) -> Agent:
        """The chosen agent, made with the options of the settings and of the prompt.

        Raises `FailedSampleError` if the settings know none of this name, if it does not take the options, or if its
        code raises.
        """
        why = _why_refused(choice.name, self._declared)
        if why:
            raise FailedSampleError(FailureCode.UNKNOWN_AGENT, why)
        try:
            agent = self._makers[choice.name](**self._options(choice))
        except (KeyboardInterrupt, FailedSampleError):
            raise
        # BaseException: code of a user may also call sys.exit, which must not end this process.
        except BaseException as error:  # noqa: BLE001
            settings = self._declared.get(choice.name, Declaration())
            raise _not_made(choice, error, settings.told(error)) from settings.cause(error)
        if not hasattr(agent, "run"):
            raise FailedSampleError(
                FailureCode.UNKNOWN_AGENT,
                f"agent {choice.name!r} is a {type(agent).__name__} without run; "
                "rollstream.agents.protocol says what an agent has",
            )
        return agent

    def most_turns(self, choice: AgentChoice) -> int:
        """Most turns of a sample of the chosen agent, as it says; 1 if it can't be made."""
        try:
            return max(1, min(MAX_TURNS, int(getattr(self.make(choice), "max_turns", 1))))
        except (FailedSampleError, TypeError, ValueError):
            return 1

    def _options(self, choice: AgentChoice) -> dict[str, str]:
        """Both options together. What the settings say is not for a record to change."""
        fixed = self._declared.get(choice.name, Declaration()).plain_options
        doubled = sorted(fixed.keys() & choice.options.keys())
        if doubled:
            raise FailedSampleError(
                FailureCode.BAD_AGENT_OPTIONS,
                f"a prompt cannot set {', '.join(doubled)} of agent {choice.name!r}: the run's settings set it",
            )
        return {**fixed, **choice.options}


def _why_refused(name: str, declared: Mapping[str, Declaration]) -> str | None:
    return why_refused(name, "agents", built_in=_BUILT_IN, declared=declared)


def _not_made(choice: AgentChoice, error: BaseException, told: str) -> FailedSampleError:
    if choice.options and isinstance(error, TypeError | ValueError):
        return FailedSampleError(
            FailureCode.BAD_AGENT_OPTIONS,
            f"agent {choice.name!r} does not take the prompt's options {', '.join(choice.options)} as they are: {told}",
        )
    return FailedSampleError(
        FailureCode.UNKNOWN_AGENT, f"agent {choice.name!r} raised {type(error).__name__} when it was made: {told}"
    )
