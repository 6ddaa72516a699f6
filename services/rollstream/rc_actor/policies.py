"""Policies of a person's own: async functions that take a step of a cycle, named in the person's file alone.

`await policy(cfg, llm, problem, session)` returns a `RolloutResult`. It asks through `llm.generate` once: that is the
turn, with its tokens, its place in the cycle and its retries. The reward of a reasoning step is that of its metrics.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rollstream.agents.problem_state import InferenceProblemState
from rollstream.agents.reasoning_cache import ReasoningCache, StepPolicy
from rollstream.agents.session import Session
from rollstream.agents.turns import Form
from rollstream.rc_actor.built_in import imported_policy
from rollstream.rc_actor.settings import LLMParameters, RCSettings
from rollstream.rc_actor.training_text import RolloutResult
from rollstream.schemas.errors import FailedSampleError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.prompt import Message
from rollstream.schemas.rollout import REASONING, SUMMARIZATION, RolloutGenerated, Turn

Policy = Callable[[RCSettings, "PolicyLLM", Mapping[str, Any], Session], Awaitable[RolloutResult]]
_REWARD: Final = "policy_reward"


@dataclass(frozen=True, slots=True)
class PolicyLLM:
    """The model, as a policy asks it. `parameters`: how it is sampled unless the session's prompt says otherwise."""

    parameters: LLMParameters
    session: Session
    state: InferenceProblemState
    turn_type: str

    async def generate(self, prompt: str) -> Turn:
        """Have the model answer this message, as the next turn of the cycle. Raises what `Session.generate` does."""
        is_reasoning = self.turn_type == REASONING
        done = self.state.reasoning_turn_number if is_reasoning else self.state.summarization_turn_number
        return await self.session.generate(
            (*self.session.prompt.messages[:-1], Message(role="user", content=prompt)),
            extends=None,
            turn_type=self.turn_type,
            turn_number=done + 1,
            cycle_step=self.state.overall_cycle_step,
            trains=is_reasoning,
            form=Form(opening=self.state.opening if is_reasoning else ""),
        )


def maker_with_policies(settings: RCSettings) -> Callable[..., ReasoningCache]:
    """Makes the agent with the policies that the settings name. Raises `ConfigurationError` for one that is none."""
    actor = settings.actor
    own = {
        REASONING: imported_policy("actor.solution_rollout_policy", actor.solution_rollout_policy),
        SUMMARIZATION: imported_policy("actor.summarization_rollout_policy", actor.summarization_rollout_policy),
    }
    steps = {kind: _step(policy, settings, kind) for kind, policy in own.items() if policy is not None}

    def make(**options: str) -> ReasoningCache:
        agent = ReasoningCache(**options)
        agent.policies = steps
        return agent

    return make


def policy_reward(rollout: RolloutGenerated, turn: int) -> float | None:
    """What a policy gave the turn; None: the environment scores it."""
    found = rollout.observations.get(f"{_REWARD}/{turn}")
    return None if found is None else float(found)


def _step(policy: Policy, settings: RCSettings, turn_type: str) -> StepPolicy:
    async def ask(session: Session, state: InferenceProblemState) -> Turn:
        llm = PolicyLLM(settings.llm.parameters, session, state, turn_type)
        num_before = len(session.turns)
        result = await policy(settings, llm, _problem(session, state, turn_type), session)
        if not isinstance(result, RolloutResult):
            raise _refused(f"the policy of {turn_type} returned a {type(result).__name__}, not a RolloutResult")
        if (num_asked := len(session.turns) - num_before) != 1:
            raise _refused(f"the policy of {turn_type} asked llm.generate {num_asked} times, it must do so once")
        if turn_type == REASONING:
            session.note(f"{_REWARD}/{num_before}", str(result.metrics.reward))
        return session.turns[-1]

    return ask


def _problem(session: Session, state: InferenceProblemState, turn_type: str) -> dict[str, Any]:
    """What a policy is told of the problem."""
    filled = state.get_filled_reasoning_prompt if turn_type == REASONING else state.get_filled_summarization_prompt
    return {
        **session.prompt.metadata,
        "task": state.problem,
        "prompt": filled(),
        "answer": session.prompt.reference_answer,
        "curr_summary": state.curr_summary,
        "curr_reasoning": state.curr_reasoning,
        "turn_type": turn_type,
    }


def _refused(why: str) -> FailedSampleError:
    return FailedSampleError(FailureCode.BAD_AGENT_OPTIONS, why)
