"""What a turn asks, and the turn that is made of it and of what was answered. Pure; used by `Session`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rollstream.engines.protocol import Generation, Parsed
from rollstream.schemas.bounds import MAX_TOOL_ANSWER_BYTES, MAX_TOOL_CALLS
from rollstream.schemas.prompt import Message, Sampling, ToolCall
from rollstream.schemas.rollout import ToolAnswer, Turn

_CUT_MARK: Final = "\n[cut: the answer was longer]"


@dataclass(frozen=True, slots=True)
class Form:
    """How a turn is asked.

    `opening`: what the answer begins with, without being sampled; the agent's own, so it may hold control tokens.
    `is_text`: the one message is plain text that the model goes on with, without a chat template.
    `model`: which of the session's other models answers; empty: the policy.
    """

    opening: str = ""
    is_text: bool = False
    model: str = ""


CHAT: Final = Form()
"""As a message of a conversation, to the policy."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What a turn asks: `messages` after the turn that it `follows`; `prompt` [P], the tokens after `prefix` [N].

    With an empty prefix the turn begins anew, and `prompt` is the whole conversation. The form's opening is at its end.
    """

    messages: Sequence[Message]
    follows: int | None
    prefix: NDArray[np.int32]
    prompt: NDArray[np.int32]
    form: Form = CHAT

    @property
    def tokens(self) -> NDArray[np.int32]:
        """All that the model sees before it answers."""
        return np.concatenate([self.prefix, self.prompt]) if len(self.prefix) else self.prompt


def turn_of(asked: Asked, found: Generation, parsed: Parsed | None, **fields: object) -> Turn:
    """The turn; `fields`: what else is known of it."""
    parsed = parsed or Parsed(text=found.text, tool_calls=found.tool_calls)
    return Turn.model_validate(
        {
            **fields,
            "prefix_turn": asked.follows,
            "prefix_tokens": len(asked.prefix),
            "prompt_token_ids": asked.prompt,
            "token_ids": found.token_ids,
            "behavior_logprobs": found.behavior_logprobs,
            "weight_spans": found.weight_spans,
            "finish_reason": found.finish_reason,
            "text": parsed.text,
            "reasoning": parsed.reasoning,
            "tool_calls": parsed.tool_calls,
            "reported_prompt_tokens": found.reported_prompt_tokens,
            "reported_completion_tokens": found.reported_completion_tokens,
        }
    )


def generation_of(turn: Turn) -> Generation:
    """The first tokens of a turn, as they were sampled."""
    return Generation(
        token_ids=turn.token_ids,
        behavior_logprobs=turn.behavior_logprobs,
        weight_spans=turn.weight_spans,
        finish_reason=turn.finish_reason,
        text=turn.text,
    )


def asks_the_same(kept: Turn, asked: Asked, said: Mapping[str, Any]) -> bool:
    """Whether a turn that was kept answers this. How many tokens it may have depends on the engine alone."""
    is_alike = all(getattr(kept, name) == value for name, value in said.items() if name != "max_tokens")
    is_there = (kept.prefix_turn, kept.prefix_tokens) == (asked.follows, len(asked.prefix))
    return is_alike and is_there and np.array_equal(kept.prompt_token_ids, asked.prompt)


def shape_of(sampling: Sampling) -> str:
    """What shapes the distribution beside the temperature, as JSON; empty if nothing does."""
    return "" if sampling.is_plain else json.dumps({"top_p": sampling.top_p, "top_k": sampling.top_k})


def answer_of(turn: Turn) -> Message:
    """The turn as a message of the conversation."""
    return Message(role="assistant", content=turn.text, tool_calls=turn.tool_calls, reasoning=turn.reasoning or None)


def not_made(call: ToolCall) -> ToolAnswer:
    """What the model is told of a call beyond the bound."""
    why = f"not made: a turn may have {MAX_TOOL_CALLS} calls"
    return ToolAnswer(call_id=call.call_id, content=json.dumps({"error": why}), error=why)


def cut(text: str) -> str:
    """At most `MAX_TOOL_ANSWER_BYTES` of it, marked where it was cut."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= MAX_TOOL_ANSWER_BYTES:
        return text
    return encoded[: MAX_TOOL_ANSWER_BYTES - len(_CUT_MARK)].decode("utf-8", "ignore") + _CUT_MARK
