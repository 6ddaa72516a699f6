"""One attempt at a sample, as its agent sees it: it asks the model, and keeps the turns that come of it.

A turn extends an earlier one where the engine can add to its very tokens (`Engine.extend`). Where it can't, the turn
begins anew with the whole conversation, as a training sample of its own: nothing trains on tokens that nobody sampled.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from rollstream.agents.model_calls import ModelCalls
from rollstream.engines.protocol import Engine, Generation, GenerationRequest, Parsed
from rollstream.schemas.bounds import (
    MAX_OBSERVATION_BYTES,
    MAX_OBSERVATIONS,
    MAX_TOOL_ANSWER_BYTES,
    MAX_TOOL_CALLS,
    MAX_TURNS,
)
from rollstream.schemas.errors import FailedSampleError, NoRoomError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.prompt import Message, PromptSubmitted, Sampling, ToolCall
from rollstream.schemas.rollout import FinishReason, ToolAnswer, Turn
from rollstream.tools.protocol import ToolSession

BeganAnew = Literal["history", "renderer", "template"]
"""Why: the agent wrote another history, or what renders does not write the conversation so that it goes on."""
LAST: Final = -1
"""Extend the last turn; of the first turn: begin."""
_CUT_MARK: Final = "\n[cut: the answer was longer]"
_NOTHING: Final[NDArray[np.int32]] = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """What a turn asks: `messages` after the turn that it `follows`; `prompt` [P], the tokens after `prefix` [N].

    With an empty prefix the turn begins anew, and `prompt` is the whole conversation.
    """

    messages: Sequence[Message]
    follows: int | None
    prefix: NDArray[np.int32]
    prompt: NDArray[np.int32]

    @property
    def tokens(self) -> NDArray[np.int32]:
        """All that the model sees before it answers."""
        return np.concatenate([self.prefix, self.prompt]) if len(self.prefix) else self.prompt


@dataclass(eq=False)
class Session:
    """Made by `agents/samples.py` for one attempt. `turns` are those that have ended, in their order.

    `began_anew` is told why a later turn does not go on from sampled tokens.
    """

    prompt: PromptSubmitted
    calls: ModelCalls
    tool_session: ToolSession | None = None
    began_anew: Callable[[BeganAnew], None] = lambda _: None
    turns: list[Turn] = field(default_factory=list)
    observations: dict[str, str] = field(default_factory=dict)
    _asked: list[_Asked] = field(default_factory=list)

    @property
    def engine(self) -> Engine:
        """For what it says of itself; it is asked through `generate` alone."""
        return self.calls.engine

    @property
    def tools(self) -> Sequence[str]:
        """What the model may call, each a JSON function schema."""
        return self.prompt.tools if self.tool_session is None else self.tool_session.schemas

    async def generate(
        self,
        messages: Sequence[Message] | None = None,
        *,
        extends: int | None = LAST,
        turn_type: str = "answer",
        turn_number: int | None = None,
        cycle_step: int = 0,
        trains: bool = True,
        sampling: Sampling | None = None,
    ) -> Turn:
        """Ask the model, and keep its answer as the next turn.

        `messages`: what follows the turn that is extended; with `extends=None`, and in the first turn, the whole
        conversation, by default the prompt's. `turn_number`: which turn of its type, by default counted from 0.
        `trains=False`: it never trains; else it does if its sampling is the policy's own distribution.

        Raises `FailedSampleError` for a first turn that the template does not take or that leaves no room, and
        `NoRoomError` for a later one without room, which ends the sample as completed and cut off. Raises `EngineError`
        if the engine does not answer.
        """
        asked = self._rendered(self.prompt.messages if messages is None else messages, extends)
        sampling = sampling or self.prompt.sampling
        max_tokens = min(sampling.max_tokens, self._room(len(asked.prefix) + len(asked.prompt)))
        started = time.monotonic()
        found = await self.calls.answer(self._request(asked, sampling, max_tokens), len(self.turns))
        turn = _turn(
            asked,
            found,
            self.engine.parse(asked.tokens, found.token_ids, self.tools),
            turn_type=turn_type,
            turn_number=self._number_of(turn_type) if turn_number is None else turn_number,
            cycle_step=cycle_step,
            trains=trains,
            is_plain=sampling.is_plain,
            sampling=_shape_of(sampling),
            temperature=sampling.temperature,
            max_tokens=max_tokens,
            latency_seconds=time.monotonic() - started,
        )
        self.turns.append(turn)
        self._asked.append(asked)
        return turn

    async def call(self, tool_calls: Sequence[ToolCall], *, in_parallel: bool = False) -> tuple[Message, ...]:
        """Have the tools answer calls of the last turn. The messages are the answers, in the order of the calls.

        Of more than `MAX_TOOL_CALLS` the later ones are not made, which the model is told. Raises `ToolError` if
        nothing says what became of a call.
        """
        made, refused = tool_calls[:MAX_TOOL_CALLS], tool_calls[MAX_TOOL_CALLS:]
        answers = self.turns[-1].tool_answers
        for some in [made] if in_parallel else [[call] for call in made]:
            answers += tuple(await asyncio.gather(*map(self._answered, some)))
            # At once: a sample that ends in the middle keeps what it was told.
            self._told(answers)
        self._told(answers + tuple(map(_not_made, refused)))
        return tuple(
            Message(role="tool", content=answer.content, tool_call_id=answer.call_id, name=call.name)
            for call, answer in zip(tool_calls, self.turns[-1].tool_answers[-len(tool_calls) :], strict=True)
        )

    def cut_off(self, why: str) -> NoReturn:
        """End the sample as completed, although its agent would have gone on."""
        self.turns[-1] = self.turns[-1].model_copy(update={"finish_reason": FinishReason.LENGTH})
        raise NoRoomError(why)

    def note(self, key: str, value: str) -> None:
        """Keep what the agent saw that scorers need; raises `ValueError` beyond the bounds."""
        num_keys = len(self.observations.keys() | {key})
        if len(value.encode()) > MAX_OBSERVATION_BYTES or num_keys > MAX_OBSERVATIONS:
            raise ValueError(
                f"observation {key[:100]!r} has {len(value.encode())} bytes and is one of {num_keys}: "
                f"the bounds are {MAX_OBSERVATION_BYTES} bytes and {MAX_OBSERVATIONS} observations"
            )
        self.observations[key] = value

    def conversation(self, number: int) -> tuple[Message, ...]:
        """All messages that turn `number` saw, and its answer."""
        found: list[Message] = []
        follows: int | None = number
        while follows is not None:
            asked = self._asked[follows]
            found = [*asked.messages, _answer_of(self.turns[follows]), *found]
            follows = asked.follows
        return tuple(found)

    def _rendered(self, messages: Sequence[Message], extends: int | None) -> _Asked:
        follows = len(self.turns) - 1 if extends == LAST else extends
        if follows is None or follows < 0:
            if self.turns:
                self.began_anew("history")
            return _Asked(messages, None, _NOTHING, self._tokenized(messages))
        before = self.conversation(follows)
        prompt, sampled = self._asked[follows].tokens, self.turns[follows].token_ids
        added = self.engine.extend(prompt, sampled, before, messages, self.tools)
        if added is not None:
            return _Asked(messages, follows, np.concatenate([prompt, sampled]), added)
        if len(sampled):  # else a server tokenizes, and nothing is known of it
            self.began_anew("renderer" if self.engine.renderer else "template")
        return _Asked((*before, *messages), None, _NOTHING, self._tokenized((*before, *messages)))

    def _tokenized(self, messages: Sequence[Message]) -> NDArray[np.int32]:
        """The conversation's tokens; none if the engine reads the messages, since its server knows their length."""
        try:
            found = self.engine.tokenize(messages, self.tools)
        except ValueError as error:
            raise FailedSampleError(FailureCode.BAD_PROMPT, f"the chat template does not take it: {error}") from error
        return _NOTHING if found is None else found

    def _room(self, num_tokens: int) -> int:
        """How many tokens an answer to so many may have."""
        room = self.engine.max_model_len - num_tokens
        why = f"{num_tokens} tokens leave no room in the model's {self.engine.max_model_len}"
        if len(self.turns) >= MAX_TURNS:
            room, why = 0, f"it has {len(self.turns)} turns, as many as a sample may have"
        if room > 0:
            return room
        if not self.turns:
            raise FailedSampleError(FailureCode.PROMPT_TOO_LONG, why)
        return self.cut_off(why)

    def _request(self, asked: _Asked, sampling: Sampling, max_tokens: int) -> GenerationRequest:
        before = () if asked.follows is None else self.conversation(asked.follows)
        return GenerationRequest(
            request_id="",
            prompt_token_ids=asked.tokens,
            sampling=sampling,
            max_tokens=max_tokens,
            seed=None,
            messages=(*before, *asked.messages) if before else asked.messages,
            tools=self.tools,
        )

    async def _answered(self, call: ToolCall) -> ToolAnswer:
        if self.tool_session is None:
            raise FailedSampleError(FailureCode.BAD_AGENT_OPTIONS, "the agent calls tools, and has no `tool_set`")
        started = time.monotonic()
        answer = await self.tool_session.call(call)
        seconds = time.monotonic() - started
        return answer.model_copy(update={"content": _cut(answer.content), "latency_seconds": seconds})

    def _told(self, answers: tuple[ToolAnswer, ...]) -> None:
        self.turns[-1] = self.turns[-1].model_copy(update={"tool_answers": answers})

    def _number_of(self, turn_type: str) -> int:
        return sum(turn.turn_type == turn_type for turn in self.turns)


def _turn(asked: _Asked, found: Generation, parsed: Parsed | None, **fields: object) -> Turn:
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


def _shape_of(sampling: Sampling) -> str:
    """What shapes the distribution beside the temperature, as JSON; empty if nothing does."""
    return "" if sampling.is_plain else json.dumps({"top_p": sampling.top_p, "top_k": sampling.top_k})


def _answer_of(turn: Turn) -> Message:
    return Message(role="assistant", content=turn.text, tool_calls=turn.tool_calls, reasoning=turn.reasoning or None)


def _not_made(call: ToolCall) -> ToolAnswer:
    why = f"not made: a turn may have {MAX_TOOL_CALLS} calls"
    return ToolAnswer(call_id=call.call_id, content=json.dumps({"error": why}), error=why)


def _cut(text: str) -> str:
    """At most `MAX_TOOL_ANSWER_BYTES` of it, marked where it was cut."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= MAX_TOOL_ANSWER_BYTES:
        return text
    return encoded[: MAX_TOOL_ANSWER_BYTES - len(_CUT_MARK)].decode("utf-8", "ignore") + _CUT_MARK
