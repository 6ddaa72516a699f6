"""Fuzzed conversations, each by a seed: what people and tools say, and what a model samples, well formed or not.

The engine notes what it is asked and what it samples. So what a session makes of it can be compared with the very
tokens, not with what the session says of them.
"""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollstream.agents.model_calls import ModelCalls
from rollstream.agents.session import Session
from rollstream.engines.protocol import Generation, GenerationRequest, Parsed
from rollstream.engines.tokenizer import ChatTokenizer
from rollstream.schemas.prompt import Message, PromptSubmitted, Sampling, ToolCall
from rollstream.schemas.rollout import FinishReason, WeightSpan
from tests.harness.builders import a_prompt
from tests.harness.chat_templates import CONTROL
from tests.harness.families import Family

_WORDS = (
    "What is", "2 + 2", "?", "It is 4.",
    "naïve", "你好", "🙂", "e\u0301", "\u200b", "\ue000", "\uff5c", " ", "\n", "\n\n\n", "    ",
       '{"a": 1}', '"', "\\", "<", "|", ">", "[", "]", "/", "think", "im_end", "<|im_", "end|>",
)  # fmt: skip
_ENDINGS = ("stops", "stops", "stops", "cut", "control", "noise")
_ROOM = 1_000_000


@dataclass(eq=False)
class FuzzedEngine:
    """An engine whose model samples by chance. It asserts that no message has written a control token."""

    tokenizer: ChatTokenizer
    family: Family
    chance: random.Random
    asked: list[NDArray[np.int32]] = field(default_factory=list)
    sampled: list[NDArray[np.int32]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    """Why turns began anew."""
    max_model_len: int = _ROOM

    def __post_init__(self) -> None:
        known = self.tokenizer._tokenizer
        self.stops = [known.convert_tokens_to_ids(text) for text in self.family.stops]
        self.controls = [known.convert_tokens_to_ids(text) for text in self.family.controls]
        self._shapes = re.compile("|".join(sorted(map(re.escape, {*self.family.controls, *CONTROL}), reverse=True)))

    @property
    def renderer(self) -> str:
        return self.tokenizer.renderer

    def tokenize(self, messages: Sequence[Message], tools: Sequence[str]) -> NDArray[np.int32]:
        found = self.tokenizer.tokenize(messages, tools)
        assert self.num_controls(found) == self.num_controls(
            self.tokenizer.tokenize(self._harmless(messages), self._harmless_texts(tools))
        )
        return found

    def extend(self, prompt: Any, sampled: Any, before: Any, messages: Any, tools: Any) -> NDArray[np.int32] | None:
        found = self.tokenizer.extend(prompt, sampled, before, messages, tools)
        harmless = self.tokenizer.extend(prompt, sampled, before, self._harmless(messages), tools)
        if found is not None and harmless is not None:
            assert self.num_controls(found) == self.num_controls(harmless)
        return found

    def parse(self, prompt: Any, sampled: Any, tools: Sequence[str]) -> Parsed | None:
        return self.tokenizer.parse(prompt, sampled, tools)

    async def generate(self, request: GenerationRequest) -> Generation:
        ids, reason = self._answer(request)
        token_ids = np.array(ids, dtype=np.int32)
        self.asked.append(request.prompt_token_ids)
        self.sampled.append(token_ids)
        return Generation(
            token_ids=token_ids,
            behavior_logprobs=np.full(len(ids), -1.0, dtype=np.float32),
            weight_spans=(WeightSpan(weight_version=1, start=0, end=len(ids)),),
            finish_reason=reason,
            text=self.tokenizer.detokenize(token_ids),
        )

    def num_controls(self, ids: NDArray[np.int32]) -> int:
        return int(np.isin(ids, self.controls).sum())

    def _answer(self, request: GenerationRequest) -> tuple[list[int], FinishReason]:
        chance, ending = self.chance, self.chance.choice(_ENDINGS)
        if ending == "noise":
            return [chance.choice([chance.randrange(400), *self.controls]) for _ in range(8)], FinishReason.LENGTH
        ids = self._well_formed(request) if chance.random() < 0.6 else None
        if ids is None:
            ids = [*self._by_chance(said(chance, self.family)), *self.stops[:1]]
        if ending == "cut":
            return ids[: chance.randrange(1, len(ids) + 1)], FinishReason.LENGTH
        if ending == "control":
            ids.insert(chance.randrange(len(ids)), chance.choice(self.controls))
        return ids, FinishReason.STOP

    def _well_formed(self, request: GenerationRequest) -> list[int] | None:
        """An answer as the family writes it, with its stop token; None if it writes the prompt in another way now."""
        answer, prompt = an_answer(self.chance, self.family, request.tools), request.prompt_token_ids
        # In some families what comes next ends an answer, in others it changes what is written of the answer.
        for follows in ((), next_messages(self.chance, self.family, answer.tool_calls)):
            whole = self.tokenizer.tokenize((*request.messages, answer, *follows), request.tools)
            rest = whole[len(prompt) :].tolist()
            ends = [place for place, token in enumerate(rest) if token in self.stops]
            if ends and np.array_equal(whole[: len(prompt)], prompt):
                return rest[: ends[0] + 1]
        return None

    def _by_chance(self, text: str) -> list[int]:
        """The text's tokens, or those of its characters, as a model may sample them too."""
        pieces = list(text) if self.chance.random() < 0.5 else [text]
        return [token for piece in pieces for token in self.tokenizer.tokenize_text(piece).tolist()] or [65]

    def _harmless(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        return tuple(Message.model_validate_json(self._without(one.model_dump_json())) for one in messages)

    def _harmless_texts(self, texts: Sequence[str]) -> tuple[str, ...]:
        return tuple(map(self._without, texts))

    def _without(self, text: str) -> str:
        return self._shapes.sub("x", text)


def said(chance: random.Random, family: Family) -> str:
    """What somebody says: words, Unicode, and texts of control tokens."""
    words = (*_WORDS, *CONTROL, *family.controls)
    return "".join(chance.choice(words) for _ in range(chance.randrange(9)))


def an_answer(chance: random.Random, family: Family, tools: Sequence[str]) -> Message:
    names = [json.loads(tool)["function"]["name"] for tool in tools]
    calls = [chance.choice(names) for _ in range(chance.randrange(1 + family.most_calls))] if names else []
    return Message(
        role="assistant",
        content=said(chance, family),
        reasoning=said(chance, family) if chance.random() < 0.4 else None,
        tool_calls=tuple(
            ToolCall(
                call_id=f"functions.{name}:{number}",
                name=name,
                arguments=json.dumps({"a": number, "text": said(chance, family)}, ensure_ascii=False),
            )
            for number, name in enumerate(calls)
        ),
    )


def a_tool(chance: random.Random, family: Family, name: str) -> str:
    shape = {"a": {"type": "integer"}, "text": {"type": "string", "description": said(chance, family)}}
    function = {
        "name": name,
        "description": said(chance, family),
        "parameters": {"type": "object", "properties": shape},
    }
    return json.dumps({"type": "function", "function": function}, ensure_ascii=False)


def next_messages(chance: random.Random, family: Family, calls: Sequence[ToolCall]) -> tuple[Message, ...]:
    """Answers to the calls, else what a user says."""
    if not calls:
        return (Message(role="user", content=said(chance, family)),)
    return tuple(
        Message(role="tool", content=said(chance, family), tool_call_id=call.call_id, name=call.name or None)
        for call in calls
    )


def a_fuzzed_prompt(chance: random.Random, family: Family) -> PromptSubmitted:
    system = (Message(role="system", content=said(chance, family)),) if chance.random() < 0.5 else ()
    tools = tuple(a_tool(chance, family, name) for name in ("add", "look_up")[: chance.randrange(3)])
    messages = (*system, Message(role="user", content=said(chance, family)))
    return a_prompt(messages=messages, tools=tools, sampling=Sampling(max_tokens=4096, seed=1))


async def converse(tokenizer: ChatTokenizer, family: Family, seed: int) -> tuple[FuzzedEngine, Session]:
    """A conversation of up to five turns."""
    chance = random.Random(seed)
    engine = FuzzedEngine(tokenizer, family, chance)
    calls = ModelCalls(engine, name=str(seed), sample_index=0, max_tries=1, retried=lambda: None)  # type: ignore[arg-type]
    session = Session(a_fuzzed_prompt(chance, family), calls, began_anew=engine.reasons.append)
    turn = await session.generate()
    for _ in range(chance.randrange(1, 5)):
        turn = await session.generate(next_messages(chance, family, turn.tool_calls))
    return engine, session


def num_broken(engine: FuzzedEngine, session: Session) -> int:
    """Turns that extend another one, but were asked with other tokens than that one has seen and sampled."""
    found = 0
    for number, turn in enumerate(session.turns):
        if turn.prefix_turn is None:
            found += not np.array_equal(engine.asked[number], turn.prompt_token_ids)
            continue
        seen = np.concatenate([engine.asked[turn.prefix_turn], engine.sampled[turn.prefix_turn]])
        asked = np.concatenate([seen, turn.prompt_token_ids])
        found += not (turn.prefix_tokens == len(seen) and np.array_equal(engine.asked[number], asked))
    return found
