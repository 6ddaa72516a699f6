"""The agent `reasoning_cache`: it reasons, summarizes, and goes on from the summary, so it thinks beyond its context.

Each turn has a prompt of its own, the problem and the summary, so none extends another: N cycles are 2N turns, and as
many training samples. Turns are numbered from 1 within their type, steps of the cycles from 0. What was said is kept in
a state that is made from the turns (`problem_state.py`).
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import fields
from typing import Any, Final

from rollstream.agents.problem_state import CycleOptions, InferenceProblemState
from rollstream.agents.session import Session
from rollstream.agents.tools import number_from, truth_from
from rollstream.agents.turns import Form
from rollstream.schemas.bounds import MAX_SAMPLE_TOKENS, MAX_TEMPERATURE
from rollstream.schemas.errors import ConfigurationError, FailedSampleError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.prompt import Message, PromptSubmitted, Sampling
from rollstream.schemas.rollout import REASONING, SUMMARIZATION, Turn

StepPolicy = Callable[[Session, InferenceProblemState], Awaitable[Turn]]
"""Asks for one turn, which is the session's last one then."""

MAX_CYCLES: Final = 64
_CHOICES: Final = {
    "reasoning_prompt_style": ("structured", "completion"),
    "summarization_style": ("summ", "sequential"),
}
_OF_PROMPTS: Final = tuple(field.name for field in fields(CycleOptions))


class ReasoningCache:
    """Options, each as text, besides those of `CycleOptions`:

    - `num_reasoning_steps`: cycles, 1 to 64; `max_reasoning_tokens`, `max_summary_tokens`: of one turn, by default the
      prompt's.
    - `summarizer`: a model of `[generator.engines.NAME]` that writes the summaries; by default the policy does.
    - `summary_temperature`, `summary_top_p`, `summary_top_k`: how summaries are sampled, by default as the prompt says.
    - `trains_summaries`: whether the policy's summaries train; not by default.

    `policies`: by turn type what takes the step instead, for whoever makes the agent.
    """

    # A record's option may have any name, `self` too.
    def __init__(self, /, **options: str) -> None:
        known = {*_OF_PROMPTS, "num_reasoning_steps", "max_reasoning_tokens", "max_summary_tokens", "trains_summaries"}
        known |= {"summarizer", "summary_temperature", "summary_top_p", "summary_top_k"}
        if unknown := sorted(options.keys() - known):
            raise _refused(f"{unknown[0][:100]!r} is no option of it: {', '.join(sorted(known))}")
        for name, choices in _CHOICES.items():
            if name in options and options[name] not in choices:
                raise _refused(f"{name} {options[name][:20]!r} must be {' or '.join(choices)}")
        cycles = number_from("num_reasoning_steps", options.get("num_reasoning_steps", "3"), MAX_CYCLES)
        self.max_turns = 2 * cycles
        self.options = _cycle_options(options)
        """How prompts are made, for whoever makes the state of a recorded sample again."""
        self.policies: Mapping[str, StepPolicy] = {}
        self._trains_summaries = truth_from("trains_summaries", options.get("trains_summaries", "false"))
        self._summarizer = options.get("summarizer", "")
        self._reasoning = _changes(options, max_tokens="max_reasoning_tokens")
        self._summary = _changes(
            options,
            max_tokens="max_summary_tokens",
            temperature="summary_temperature",
            top_p="summary_top_p",
            top_k="summary_top_k",
        )

    async def run(self, session: Session) -> None:
        """All cycles. A prompt that leaves no room for an answer ends the sample as it is, completed and cut off."""
        problem, before = problem_of(session.prompt)
        state = InferenceProblemState(problem, self.options)
        while len(session.turns) < self.max_turns:
            await self._reason(session, state, before)
            await self._summarize(session, state, before)

    async def _reason(self, session: Session, state: InferenceProblemState, before: tuple[Message, ...]) -> None:
        if REASONING in self.policies:
            state.update_reasoning(await self.policies[REASONING](session, state))
            return
        asked = Message(role="user", content=state.get_filled_reasoning_prompt())
        is_text = self.options.reasoning_prompt_style == "completion"
        turn = await session.generate(
            (asked,) if is_text else (*before, asked),
            extends=None,
            turn_type=REASONING,
            turn_number=state.reasoning_turn_number + 1,
            cycle_step=state.overall_cycle_step,
            sampling=_changed(session.prompt.sampling, self._reasoning),
            form=Form(opening=state.opening, is_text=is_text),
        )
        state.update_reasoning(turn)

    async def _summarize(self, session: Session, state: InferenceProblemState, before: tuple[Message, ...]) -> None:
        if SUMMARIZATION in self.policies:
            state.update_summarization(await self.policies[SUMMARIZATION](session, state))
            return
        turn = await session.generate(
            (*before, Message(role="user", content=state.get_filled_summarization_prompt())),
            extends=None,
            turn_type=SUMMARIZATION,
            turn_number=state.summarization_turn_number + 1,
            cycle_step=state.overall_cycle_step,
            trains=self._trains_summaries,
            sampling=_changed(session.prompt.sampling, self._summary),
            form=Form(model=self._summarizer),
        )
        state.update_summarization(turn)


def problem_of(prompt: PromptSubmitted) -> tuple[str, tuple[Message, ...]]:
    """The text of the last message, which must be a user's, and the messages before it, e.g. of the system."""
    if not prompt.messages or prompt.messages[-1].role != "user":
        raise FailedSampleError(FailureCode.BAD_PROMPT, "its last message must be the user's: it is the problem")
    return prompt.messages[-1].content, prompt.messages[:-1]


def _cycle_options(options: dict[str, str]) -> CycleOptions:
    given: dict[str, Any] = {name: options[name] for name in _OF_PROMPTS if name in options}
    given["use_think_tags"] = truth_from("use_think_tags", options.get("use_think_tags", "false"))
    try:
        return CycleOptions(**given)
    except ConfigurationError as error:
        raise _refused(str(error)) from error


def _changes(options: dict[str, str], **names: str) -> dict[str, float]:
    """By the names of `Sampling`, what the options say otherwise than the prompt does."""
    most = {"max_tokens": MAX_SAMPLE_TOKENS, "top_k": 2**31 - 1}
    found: dict[str, float] = {}
    for name, option in names.items():
        if text := options.get(option, ""):
            found[name] = number_from(option, text, most[name]) if name in most else _decimal(option, text)
    return found


def _decimal(option: str, text: str) -> float:
    most = 1.0 if option.endswith("top_p") else MAX_TEMPERATURE
    try:
        value = float(text) if len(text) <= 20 else -1.0
    except ValueError:
        value = -1.0
    if not 0 <= value <= most or (most == 1.0 and not value):
        raise _refused(f"{option} {text[:20]!r} must be from 0 to {most:g}{', above 0' if most == 1.0 else ''}")
    return value


def _changed(sampling: Sampling, changes: dict[str, float]) -> Sampling:
    return Sampling.model_validate({**sampling.model_dump(), **changes}) if changes else sampling


def _refused(why: str) -> FailedSampleError:
    return FailedSampleError(FailureCode.BAD_AGENT_OPTIONS, f"agent 'reasoning_cache': {why}")
