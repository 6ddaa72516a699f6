"""What the cycles of a rollout started from, and the prompts that ask it again. Pure.

A cycle starts from a reasoning prompt: the problem with the summary so far. After the last summary there is one more,
from which nobody went on.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rollstream.agents.problem_state import InferenceProblemState
from rollstream.agents.reasoning_cache import ReasoningCache, problem_of
from rollstream.process.settings.declared import Declaration
from rollstream.producers.settings import ProducerSettings
from rollstream.schemas.ids import group_id
from rollstream.schemas.prompt import AgentChoice, Message, PromptSource, PromptSubmitted, Purpose, Sampling
from rollstream.schemas.record import utc_now
from rollstream.schemas.rollout import REASONING, SUMMARIZATION, RolloutGenerated

AGENT: Final = "reasoning_cache"
STATE_OF: Final = "state_of"
"""Metadata of such a prompt: the rollout and the number of its turn."""
RESUME_STATE: Final = "resume_state"
"""Metadata of the prompt after the last summary: "true"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleStart:
    """A reasoning prompt. `turn`: the number of the turn that answered it; of one that nobody asked, the next one."""

    turn: int
    messages: tuple[Message, ...]
    agent: AgentChoice
    is_resume: bool = False


def starts_of(rollout: RolloutGenerated, declared: Mapping[str, Declaration]) -> list[CycleStart]:
    """What its cycles started from. `declared`: the run's agents, whose options the generator used too.

    Raises `FailedSampleError` for options that the agent does not take.
    """
    fixed = declared.get(AGENT, Declaration()).plain_options
    options = ReasoningCache(**{**rollout.prompt.agent.options, **fixed}).options
    problem, before = problem_of(rollout.prompt)
    is_text = options.reasoning_prompt_style == "completion"
    form = {"use_think_tags": options.use_think_tags, "is_text": is_text}
    agent = AgentChoice(options={name: "true" for name, is_so in form.items() if is_so})

    def start(state: InferenceProblemState, turn: int, *, is_resume: bool = False) -> CycleStart:
        asked = Message(role="user", content=state.get_filled_reasoning_prompt())
        messages = (asked,) if is_text else (*before, asked)
        return CycleStart(turn=turn, messages=messages, agent=agent, is_resume=is_resume)

    state, found = InferenceProblemState(problem, options), list[CycleStart]()
    for number, turn in enumerate(rollout.turns):
        if turn.turn_type == REASONING:
            found.append(start(state, number))
            state.update_reasoning(turn)
        elif turn.turn_type == SUMMARIZATION:
            state.update_summarization(turn)
    if rollout.turns and rollout.turns[-1].turn_type == SUMMARIZATION:
        found.append(start(state, len(rollout.turns), is_resume=True))
    return found


def drawn(starts: list[CycleStart], rollout: RolloutGenerated, settings: ProducerSettings) -> list[CycleStart]:
    """At most `per_rollout` of them, the same ones each time, in their order."""

    def by_chance(start: CycleStart) -> bytes:
        return hashlib.sha256(f"{settings.seed}/{rollout.rollout_id}/{start.turn}".encode()).digest()

    chosen = sorted(starts, key=by_chance)[: settings.states.per_rollout]
    return sorted(chosen, key=lambda start: start.turn)


def prompts_of(
    starts: list[CycleStart], rollout: RolloutGenerated, settings: ProducerSettings, dataset: str
) -> Iterator[PromptSubmitted]:
    """The prompts of these states, each answered `group_size` times by a single turn. Their number comes later."""
    asked = rollout.prompt
    for start in starts:
        place = f"{rollout.rollout_id}/{start.turn}"
        prompt_id = f"{dataset}/{place}"
        marks = {STATE_OF: place, **({RESUME_STATE: "true"} if start.is_resume else {})}
        yield PromptSubmitted(
            prompt_id=prompt_id,
            group_id=group_id(settings.run, prompt_id, 0),
            purpose=Purpose.TRAIN,
            environment=asked.environment,
            messages=start.messages,
            reference_answer=asked.reference_answer,
            sampling=settings.sampling or _plain(asked.sampling),
            group_size=settings.group_size,
            agent=start.agent,
            metadata={**asked.metadata, **marks},
            source=PromptSource(dataset=dataset),
            producer=settings.name,
            sequence=0,
            subject=asked.subject,
            submitted_at=utc_now(),
        )


def _plain(sampling: Sampling) -> Sampling:
    """The rollout's own, as far as training allows it; without its seed, by which all groups would draw alike."""
    return Sampling(temperature=sampling.temperature or 1.0, max_tokens=sampling.max_tokens, stop=sampling.stop)
