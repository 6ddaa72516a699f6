"""How far a problem has come that is reasoned upon in cycles: its summary, its counters, and what was said so far.

The state depends on the recorded turns alone (`state_of`), so a sample that goes on in another process has the same
one. From the Reasoning Cache actor of a fork of PipelineRL (ars22/pipeline-rl, `docs/online_rc_rollouts.md`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from string import Formatter
from typing import Final, Literal

from rollstream.engines.tokenizer import without_control_tokens
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.rollout import REASONING, SUMMARIZATION, Turn

THINK: Final = "<think>"
_THOUGHT: Final = "</think>"
MAX_TEMPLATE_BYTES: Final = 2**16
_MAX_USES: Final = 4
"""How often a template may have a variable: a record chooses both, and a long problem would fill the memory."""

ReasoningPromptStyle = Literal["structured", "completion"]
SummarizationStyle = Literal["summ", "sequential"]

REASONING_PROMPT: Final = """Work on the problem below. What you have found out so far is in the summary, which may be \
empty. Go on from there, and put the final answer in \\boxed{{}}.

Problem: {problem}

Summary so far: {curr_summary}
"""
SUMMARIZATION_PROMPT: Final = """You are working on the problem below. Write a summary of what is known by now, of the \
summary so far and of the new reasoning together. Write at most two paragraphs, in the first person. Do not reason on.

Problem: {problem}

Summary so far: {existing_summary}

New reasoning: {reasoning}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleOptions:
    """How the prompts of both steps are made, and what of an answer counts.

    A template names its variables in braces; `{{` and `}}` are braces. `structured`: the reasoning prompt is a message;
    `completion`: it is plain text, which the model goes on with, and the summary follows it if it does not name it.
    `summ`: a summary takes the place of the one before; `sequential`: it follows that one.
    Raises `ConfigurationError` for a template with another variable than its own, without one of them, with one more
    than four times, or too long.
    """

    reasoning_prompt_template: str = REASONING_PROMPT
    summarization_prompt_template: str = SUMMARIZATION_PROMPT
    use_think_tags: bool = False
    reasoning_prompt_style: ReasoningPromptStyle = "structured"
    summarization_style: SummarizationStyle = "summ"

    def __post_init__(self) -> None:
        may_lack = {"curr_summary"} if self.reasoning_prompt_style == "completion" else set[str]()
        _check("reasoning_prompt_template", self.reasoning_prompt_template, {"problem", "curr_summary"}, may_lack)
        variables = {"problem", "existing_summary", "reasoning"}
        _check("summarization_prompt_template", self.summarization_prompt_template, variables, set())


@dataclass(eq=False)
class InferenceProblemState:
    """The attributes and stores of the original. A `…_rollout_store` holds turns; turns are numbered from 1."""

    problem: str
    options: CycleOptions
    curr_summary: str = ""
    curr_reasoning: str = ""
    reasoning_turn_number: int = 0
    summarization_turn_number: int = 0
    overall_cycle_step: int = 0
    reasoning_rollout_store: list[Turn] = field(default_factory=list)
    summarization_rollout_store: list[Turn] = field(default_factory=list)
    reasoning_string_store: list[str] = field(default_factory=list)
    summarization_string_store: list[str] = field(default_factory=list)
    reasoning_string_complete_store: list[str] = field(default_factory=list)
    summarization_string_complete_store: list[str] = field(default_factory=list)

    @property
    def opening(self) -> str:
        """What the answer to a reasoning prompt begins with, without being sampled."""
        return THINK if self.options.use_think_tags else ""

    def get_filled_reasoning_prompt(self) -> str:
        """The prompt of the next reasoning turn, without the chat template and the opened tag."""
        filled = self.options.reasoning_prompt_template.format(problem=self.problem, curr_summary=self.curr_summary)
        is_there = "curr_summary" in _variables(self.options.reasoning_prompt_template)
        return filled if is_there or not self.curr_summary else f"{filled}\n\n{self.curr_summary}\n\n"

    def get_filled_summarization_prompt(self) -> str:
        """The prompt of the next summary."""
        return self.options.summarization_prompt_template.format(
            problem=self.problem, existing_summary=self.curr_summary, reasoning=self.curr_reasoning
        )

    def update_reasoning(self, turn: Turn) -> None:
        """Take the reasoning that was asked for: what counts of it is before the closing tag."""
        complete = self.opening + _raw(turn)
        self.curr_reasoning = without_control_tokens(complete.replace(THINK, "").split(_THOUGHT)[0]).strip()
        self.reasoning_turn_number += 1
        self.overall_cycle_step += 1
        self.reasoning_rollout_store.append(turn)
        self.reasoning_string_complete_store.append(complete)
        self.reasoning_string_store.append(self.curr_reasoning)

    def update_summarization(self, turn: Turn) -> None:
        """Take the summary that was asked for: all of it but the tags."""
        complete = _raw(turn)
        said = without_control_tokens(complete.replace(THINK, "").replace(_THOUGHT, "")).strip()
        follows = self.options.summarization_style == "sequential" and self.curr_summary
        self.curr_summary = f"{self.curr_summary}\n\n{said}" if follows else said
        self.summarization_turn_number += 1
        self.overall_cycle_step += 1
        self.summarization_rollout_store.append(turn)
        self.summarization_string_complete_store.append(complete)
        self.summarization_string_store.append(self.curr_summary)


def state_of(problem: str, options: CycleOptions, turns: Sequence[Turn]) -> InferenceProblemState:
    """The state after these turns; those of another type than the two do not change it."""
    state = InferenceProblemState(problem, options)
    for turn in turns:
        if turn.turn_type == REASONING:
            state.update_reasoning(turn)
        elif turn.turn_type == SUMMARIZATION:
            state.update_summarization(turn)
    return state


def _raw(turn: Turn) -> str:
    """All that was answered, also what a renderer has taken apart."""
    return f"{THINK}{turn.reasoning}{_THOUGHT}{turn.text}" if turn.reasoning else turn.text


@lru_cache(maxsize=16)
def _variables(template: str) -> frozenset[str]:
    """Asked for every turn."""
    return frozenset(name for _, name, _, _ in Formatter().parse(template) if name is not None)


def _check(name: str, template: str, variables: set[str], may_lack: set[str]) -> None:
    if (size := len(template.encode("utf-8", "replace"))) > MAX_TEMPLATE_BYTES:
        raise ConfigurationError(f"{name} has {size} bytes, the bound is {MAX_TEMPLATE_BYTES}: shorten it")
    known = ", ".join(f"{{{one}}}" for one in sorted(variables))
    try:
        pieces = list(Formatter().parse(template))
    except ValueError as error:
        raise ConfigurationError(f"{name}: {error}; its variables are {known}, and a brace is written twice") from error
    found = Counter(variable for _, variable, _, _ in pieces if variable is not None)
    odd = sorted(f"{{{one[:100]}}}" for one in found.keys() - variables)
    odd += [f"{{{one[:100]}:{form}}}" for _, one, form, how in pieces if one is not None and (form or how)]
    if odd:
        raise ConfigurationError(f"{name} has {odd[0]}: its variables are {known}, and a brace is written twice")
    if missing := sorted(variables - may_lack - found.keys()):
        raise ConfigurationError(f"{name} lacks {{{missing[0]}}}: its variables are {known}")
    variable, count = found.most_common(1)[0]
    if count > _MAX_USES:
        raise ConfigurationError(
            f"{name} has {{{variable}}} {count} times, the bound is {_MAX_USES}: use it less often"
        )
