"""One attempt at a sample, as its agent sees it: it asks the model, and keeps the turns that come of it.

A turn extends an earlier one where the engine can add to its very tokens (`Engine.extend`). Where it can't, the turn
begins anew with the whole conversation, as a training sample of its own: nothing trains on tokens that nobody sampled.

With a journal a sample goes on where another process left it (`journal.py`).
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from rollstream.agents.journal import SampleJournal
from rollstream.agents.model_calls import Begun, ModelCalls
from rollstream.agents.turns import (
    CHAT,
    Asked,
    Form,
    answer_of,
    asks_the_same,
    cut,
    generation_of,
    not_made,
    shape_of,
    turn_of,
)
from rollstream.engines.protocol import Engine, Generation, GenerationRequest
from rollstream.schemas.bounds import (
    MAX_OBSERVATION_BYTES,
    MAX_OBSERVATIONS,
    MAX_TOOL_CALLS,
    MAX_TURNS,
)
from rollstream.schemas.errors import DivergedError, FailedSampleError, NoRoomError, ToolError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.progress import ProgressKind
from rollstream.schemas.prompt import Message, PromptSubmitted, Sampling, ToolCall
from rollstream.schemas.rollout import FinishReason, ToolAnswer, Turn
from rollstream.tools.protocol import ToolSession

BeganAnew = Literal["history", "renderer", "template"]
"""Why: the agent wrote another history, or what renders does not write the conversation so that it goes on."""
LAST: Final = -1
"""Extend the last turn; of the first turn: begin."""
_NOTHING: Final[NDArray[np.int32]] = np.zeros(0, dtype=np.int32)


@dataclass(eq=False)
class Session:
    """Made by `agents/samples.py` for one attempt. `turns` are those that have ended, in their order.

    `others`: models beside the policy, by name. They speak text, and their turns never train.

    `is_late`: whether it is broken off because its time is over.
    `began_anew` is told why a later turn does not go on from sampled tokens.
    """

    prompt: PromptSubmitted
    calls: ModelCalls
    tool_session: ToolSession | None = None
    began_anew: Callable[[BeganAnew], None] = lambda _: None
    journal: SampleJournal | None = None
    others: Mapping[str, Engine] = field(default_factory=dict)
    is_late: Callable[[], bool] = lambda: False
    turns: list[Turn] = field(default_factory=list)
    observations: dict[str, str] = field(default_factory=dict)
    _asked: list[Asked] = field(default_factory=list)
    _is_kept: bool = True

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
        form: Form = CHAT,
    ) -> Turn:
        """Ask the model, and keep its answer as the next turn.

        `messages`: what follows the turn that is extended; with `extends=None`, and in the first turn, the whole
        conversation, by default the prompt's. `turn_number`: which turn of its type, by default counted from 0.
        `trains=False`: it never trains; else it does if its sampling is the policy's own distribution.

        Raises `FailedSampleError` for a first turn that the template does not take or that leaves no room, and
        `NoRoomError` for a later one without room, which ends the sample as completed and cut off. Raises `EngineError`
        if the engine does not answer, and `DivergedError` if an earlier attempt asked something else.
        """
        asked = self._opened(self._asking(self.prompt.messages if messages is None else messages, extends, form))
        sampling = sampling or self.prompt.sampling
        said: dict[str, Any] = {
            "turn_type": turn_type,
            "turn_number": self._number_of(turn_type) if turn_number is None else turn_number,
            "cycle_step": cycle_step,
            "trains": trains,
            "is_plain": sampling.is_plain,
            "sampling": shape_of(sampling),
            "temperature": sampling.temperature,
            "max_tokens": min(sampling.max_tokens, self._room(asked)),
            "model": form.model,
        }
        await self.keep()
        turn = self._given_back(asked, said) or await self._sampled(asked, sampling, said)
        self._is_kept = False
        self.turns.append(turn)
        self._asked.append(asked)
        return turn

    async def call(self, tool_calls: Sequence[ToolCall], *, in_parallel: bool = False) -> tuple[Message, ...]:
        """Have the tools answer calls of the last turn. The messages are the answers, in the order of the calls.

        Of more than `MAX_TOOL_CALLS` the later ones are not made, which the model is told. Raises `ToolError` if
        nothing says what became of a call.
        """
        if self.tool_session is None:
            raise FailedSampleError(FailureCode.BAD_AGENT_OPTIONS, "the agent calls tools, and has no `tool_set`")
        made, refused = tool_calls[:MAX_TOOL_CALLS], tool_calls[MAX_TOOL_CALLS:]
        answers = self.turns[-1].tool_answers
        for some in [made] if in_parallel else [[call] for call in made]:
            answers += await self._answers(some, answers, self.tool_session)
            # At once: a sample that ends in the middle keeps what it was told.
            self._told(answers)
        self._told(answers + tuple(map(not_made, refused)))
        return tuple(
            Message(role="tool", content=answer.content, tool_call_id=answer.call_id, name=call.name)
            for call, answer in zip(tool_calls, self.turns[-1].tool_answers[-len(tool_calls) :], strict=True)
        )

    def cut_off(self, why: str) -> NoReturn:
        """End the sample as completed, although its agent would have gone on."""
        self.turns[-1] = self.turns[-1].model_copy(update={"finish_reason": FinishReason.LENGTH})
        self._is_kept = False
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

    async def keep(self, *, is_urgent: bool = False) -> None:
        """Keep the last turn as it is now, so that another process can go on from it; if urgent, it is safe then."""
        if self.journal is not None and not self._is_kept:
            self._is_kept = True
            await self.journal.note(ProgressKind.TURN, len(self.turns) - 1, self.turns[-1], is_urgent=is_urgent)

    async def end(self) -> None:
        """Keep that the sample is complete, if anything of it was kept: one short turn is not worth a record."""
        if self.journal is not None and self.journal.num_kept:
            await self.keep()
            await self.journal.ended(self.turns, self.observations)

    @property
    def has_called_for_good(self) -> bool:
        """Whether an earlier attempt called, or may have called, what must not be called twice."""
        if self.journal is None or self.tool_session is None:
            return False
        earlier = self.journal.earlier
        called = {
            call.name
            for number, one in enumerate(earlier.turns)
            if one.turn is not None and (one.turn.tool_answers or earlier.is_at(number, ProgressKind.CALLING))
            for call in one.turn.tool_calls
        }
        return not all(map(self.tool_session.is_replayable, called))

    def begin_anew(self) -> None:
        """Forget the turns: what earlier attempts kept does not hold."""
        if self.journal is not None:
            self.journal.forget()
        self.turns.clear()
        self._asked.clear()
        self.observations.clear()
        self._is_kept = True

    def conversation(self, number: int) -> tuple[Message, ...]:
        """All messages that turn `number` saw, and its answer."""
        found: list[Message] = []
        follows: int | None = number
        while follows is not None:
            asked = self._asked[follows]
            found = [*asked.messages, answer_of(self.turns[follows]), *found]
            follows = asked.follows
        return tuple(found)

    def _engine(self, model: str) -> Engine:
        if not model:
            return self.engine
        if model not in self.others:
            raise FailedSampleError(
                FailureCode.BAD_AGENT_OPTIONS,
                f"model {model[:100]!r} is none beside the policy ({', '.join(sorted(self.others)) or 'none'}): "
                "declare it under [generator.engines.NAME]",
            )
        return self.others[model]

    def _asking(self, messages: Sequence[Message], extends: int | None, form: Form) -> Asked:
        engine = self._engine(form.model)
        follows = len(self.turns) - 1 if extends == LAST else extends
        if follows is None or follows < 0:
            if self.turns:
                self.began_anew("history")
            return Asked(messages, None, _NOTHING, self._tokenized(messages, form), form)
        before = self.conversation(follows)
        prompt, sampled = self._asked[follows].tokens, self.turns[follows].token_ids
        is_of_policy = engine is self.engine and not self.turns[follows].model
        added = engine.extend(prompt, sampled, before, messages, self.tools) if is_of_policy else None
        if added is not None:
            return Asked(messages, follows, np.concatenate([prompt, sampled]), added, form)
        if len(sampled):  # else a server tokenizes, and nothing is known of it
            self.began_anew("renderer" if engine.renderer else "template")
        return Asked((*before, *messages), None, _NOTHING, self._tokenized((*before, *messages), form), form)

    def _tokenized(self, messages: Sequence[Message], form: Form) -> NDArray[np.int32]:
        """The conversation's tokens; none if the engine reads the messages, since its server knows their length."""
        engine = self._engine(form.model)
        try:
            found = engine.tokenize_text(messages[0].content) if form.is_text else None
            found = engine.tokenize(messages, self.tools) if found is None else found
        except ValueError as error:
            raise FailedSampleError(FailureCode.BAD_PROMPT, f"the chat template does not take it: {error}") from error
        return _NOTHING if found is None else found

    def _opened(self, asked: Asked) -> Asked:
        form = asked.form
        added = self._engine(form.model).tokenize_text(form.opening, is_own=True) if form.opening else None
        # Without tokens the engine reads the opening from the request.
        return asked if added is None else replace(asked, prompt=np.concatenate([asked.prompt, added]))

    def _room(self, asked: Asked) -> int:
        """How many tokens an answer may have."""
        num_tokens, most = len(asked.prefix) + len(asked.prompt), self._engine(asked.form.model).max_model_len
        room, why = most - num_tokens, f"{num_tokens} tokens leave no room in the model's {most}"
        if len(self.turns) >= MAX_TURNS:
            room, why = 0, f"it has {len(self.turns)} turns, as many as a sample may have"
        if room > 0:
            return room
        if not self.turns:
            raise FailedSampleError(FailureCode.PROMPT_TOO_LONG, why)
        return self.cut_off(why)

    def _request(self, asked: Asked, sampling: Sampling, max_tokens: int) -> GenerationRequest:
        before = () if asked.follows is None else self.conversation(asked.follows)
        return GenerationRequest(
            request_id="",
            prompt_token_ids=asked.tokens,
            sampling=sampling,
            max_tokens=max_tokens,
            seed=None,
            messages=(*before, *asked.messages) if before else asked.messages,
            tools=self.tools,
            opening=asked.form.opening,
            is_text=asked.form.is_text,
        )

    def _given_back(self, asked: Asked, said: Mapping[str, Any]) -> Turn | None:
        """The turn as an earlier attempt has it; None: it is to be sampled, from its beginning or on."""
        number = len(self.turns)
        kept = None if self.journal is None else self.journal.earlier.turn(number)
        if self.journal is None or kept is None:
            return None
        # Without tokens nothing says that it is the same. What another model is asked follows from the turns before.
        is_known = len(asked.tokens) > 0 or said["model"] != "" or self.journal.takes_text
        if not is_known or not asks_the_same(kept, asked, said):
            raise DivergedError(f"turn {number} asks something else than an earlier attempt did")
        self.journal.give_back(len(kept.token_ids))
        if self.journal.earlier.is_at(number, ProgressKind.PIECE):
            return None
        return kept.model_copy(update={"tool_answers": ()})

    async def _sampled(self, asked: Asked, sampling: Sampling, said: Mapping[str, Any]) -> Turn:
        started, number, engine = time.monotonic(), len(self.turns), self._engine(said["model"])

        def made(found: Generation) -> Turn:
            parsed = engine.parse(asked.tokens, found.token_ids, self.tools)
            return turn_of(asked, found, parsed, **said, latency_seconds=time.monotonic() - started)

        request = self._request(asked, sampling, said["max_tokens"])
        calls = self.calls if engine is self.engine else replace(self.calls, engine=engine)
        try:
            return made(await calls.answer(request, number, self._begun(number, made)))
        except FailedSampleError as error:
            # A server that alone knows the length of a prompt says the same as `_room`.
            if error.code != FailureCode.PROMPT_TOO_LONG or not self.turns:
                raise
            self.cut_off(str(error))

    def _begun(self, number: int, made: Callable[[Generation], Turn]) -> Begun | None:
        """How to keep the first tokens of turn `number`, and those that an earlier attempt kept."""
        if self.journal is None:
            return None
        keep = partial(self.journal.note, ProgressKind.PIECE, number)
        kept = self.journal.earlier.turn(number)
        return Begun(lambda found: keep(made(found)), None if kept is None else generation_of(kept))

    async def _answers(
        self, calls: Sequence[ToolCall], before: tuple[ToolAnswer, ...], tools: ToolSession
    ) -> tuple[ToolAnswer, ...]:
        """What the calls were answered in an earlier attempt, and what the others are answered now."""
        kept = None if self.journal is None else self.journal.earlier.turn(len(self.turns) - 1)
        given = () if kept is None else kept.tool_answers[len(before) : len(before) + len(calls)]
        if [answer.call_id for answer in given] != [call.call_id for call in calls[: len(given)]]:
            raise DivergedError(f"turn {len(self.turns) - 1} calls other tools than an earlier attempt did")
        asked = calls[len(given) :]
        if asked:
            await self._about_to_call(asked, before + given, tools)
        return given + tuple(await asyncio.gather(*(_answered(call, tools) for call in asked)))

    async def _about_to_call(
        self, calls: Sequence[ToolCall], answers: tuple[ToolAnswer, ...], tools: ToolSession
    ) -> None:
        """Keep the turn safely; what may not be made twice is made only if it is known that it was not made yet."""
        number, journal = len(self.turns) - 1, self.journal
        once = [call.name for call in calls if not tools.is_replayable(call.name)]
        if journal is None or not once:
            # What may be made again is so by the same turn alone: another one would call something else.
            await self.keep(is_urgent=True)
            return
        kept = journal.earlier.turn(number)
        if kept is not None and journal.earlier.is_at(number, ProgressKind.CALLING) and kept.tool_answers == answers:
            raise ToolError(
                f"a call of {once[0][:100]!r} may have arrived before its process ended, and is not declared replayable"
            )
        turn = self.turns[-1].model_copy(update={"tool_answers": answers})
        await journal.note(ProgressKind.CALLING, number, turn, is_urgent=True)

    def _told(self, answers: tuple[ToolAnswer, ...]) -> None:
        self.turns[-1] = self.turns[-1].model_copy(update={"tool_answers": answers})
        self._is_kept = False

    def _number_of(self, turn_type: str) -> int:
        return sum(turn.turn_type == turn_type for turn in self.turns)


async def _answered(call: ToolCall, tools: ToolSession) -> ToolAnswer:
    started = time.monotonic()
    answer = await tools.call(call)
    seconds = time.monotonic() - started
    return answer.model_copy(update={"content": cut(answer.content), "latency_seconds": seconds})
