"""Renders, extends and parses conversations as the package `renderers` does for a family of models, chosen by name.

It knows which tokens may follow those that were sampled, so a conversation goes on in more cases than with a chat
template, and it reads reasoning and calls of tools from tokens instead of text.

The package encodes its own texts and a message's as one. So that no message writes a control token, the signs of
control tokens are other characters in all text from outside until it is encoded (`_Signs`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rollstream.engines.marked_text import Marked
from rollstream.engines.protocol import Parsed
from rollstream.schemas.bounds import MAX_ITEMS
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.prompt import ToolCall

if TYPE_CHECKING:
    from rollstream.engines.control_tokens import OutsideEncoder

_ROLES: Final = frozenset({"system", "user", "assistant", "tool"})
"""The package writes some roles as they are, so others could be anything."""
# Half of a character of two, alone: no text that can be written has them.
_FIRST_STAND_IN: Final = 0xDC00
_NUM_STAND_INS: Final = 0x400
_HALVES: Final = dict.fromkeys(range(0xD800, 0xE000), "\ufffd")


class _Signs:
    """Signs of control tokens, such as `<` and `|`, and what stands for them in text from outside."""

    def __init__(self, controls: Sequence[str]) -> None:
        """Raises `ValueError` for a control token without signs, and if there are too many signs."""
        plain = [control for control in controls if not any(map(_is_sign, control))]
        if plain:
            raise ValueError(f"control tokens without any sign, such as {plain[0]!r}, can't be told from text")
        signs = sorted({sign for control in controls for sign in control if _is_sign(sign)})
        if len(signs) > _NUM_STAND_INS:
            raise ValueError(f"its control tokens have {len(signs)} different signs, more than {_NUM_STAND_INS}")
        places = range(_FIRST_STAND_IN, _FIRST_STAND_IN + len(signs))
        self._away = {**_HALVES, **{ord(sign): chr(place) for sign, place in zip(signs, places, strict=True)}}
        self._back = {place: sign for sign, place in zip(signs, places, strict=True)}

    def away(self, value: Any) -> Any:
        """JSON from outside, in which other characters stand for the signs."""
        if isinstance(value, str):
            return value.translate(self._away)
        if isinstance(value, Mapping):
            return {self.away(key): self.away(found) for key, found in value.items()}
        return [self.away(found) for found in value] if isinstance(value, Sequence) else value

    def back(self, text: str) -> Marked:
        """The text with the signs again; those that were away are from outside."""
        own = bytes(ord(character) not in self._back for character in text)
        return Marked(text.translate(self._back), own)


def _is_sign(character: str) -> bool:
    # JSON writes quotes and backslashes in another way, which it would not do with what stands for them.
    return not (character.isalnum() or character.isspace() or character in '_"\\')


class _OutsideTokenizer:
    """A tokenizer as `renderers` wants it: control tokens come only from its own texts and by their ids."""

    name_or_path = ""

    def __init__(self, tokenizer: Any, encoder: OutsideEncoder, signs: _Signs) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._signs = signs
        self.unk_token_id: int | None = tokenizer.unk_token_id
        self.eos_token_id: int | None = tokenizer.eos_token_id

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids; `renderers` never asks for special tokens around them."""
        ids: list[int] = self._encoder.encode(self._signs.back(text)).tolist()
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def convert_tokens_to_ids(self, token: str) -> int | None:
        found: int | None = self._tokenizer.convert_tokens_to_ids(token)
        return found


class NamedRenderer:
    """One of the package's renderers, over a model's tokenizer. `tokenizer` is of transformers."""

    def __init__(self, name: str, tokenizer: Any, encoder: OutsideEncoder) -> None:
        """Raises `ConfigurationError` if the tokenizer is not one of the family that `name` says."""
        from renderers.base import create_renderer
        from renderers.configs import config_from_name

        try:
            self._signs = _Signs(encoder.controls)
            self._tokenizer = _OutsideTokenizer(tokenizer, encoder, self._signs)
            self._renderer = create_renderer(self._tokenizer, config_from_name(name))
            self.stop_token_ids = tuple(self._renderer.get_stop_token_ids())
        except Exception as error:  # the package raises AssertionError and others
            raise ConfigurationError(
                f"engine.renderer {name!r} does not fit the model's tokenizer: {error}; name the model's family, or "
                "leave it out"
            ) from error

    def render(self, chat: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> NDArray[np.int32]:
        """The prompt's tokens [P], with the beginning of an answer. Raises whatever the package raises."""
        ids = self._renderer.render_ids(self._outside(chat), tools=self._signs.away(tools), add_generation_prompt=True)
        return np.array(ids, dtype=np.int32)

    def extend(
        self,
        prompt: NDArray[np.int32],
        sampled: NDArray[np.int32],
        chat: Sequence[Mapping[str, Any]],
        tools: Sequence[Any],
    ) -> NDArray[np.int32] | None:
        """What follows `prompt` [P] and `sampled` [T] when `chat` comes next; None if the family's rules forbid it."""
        found = self._renderer.bridge_to_next_turn(
            prompt.tolist(), sampled.tolist(), self._outside(chat), tools=self._signs.away(tools)
        )
        if found is None:
            return None
        seen, ids = np.concatenate([prompt, sampled]), np.array(found.token_ids, dtype=np.int32)
        # The package promises it, and cuts what was sampled after a stop token all the same.
        return ids[len(seen) :] if np.array_equal(ids[: len(seen)], seen) else None

    def parse(self, prompt: NDArray[np.int32], sampled: NDArray[np.int32], tools: Sequence[Any]) -> Parsed:
        """Reasoning, text and calls in the tokens `sampled` [T] after `prompt` [P]; all is text if it can't be read."""
        try:
            found = self._renderer.parse_response(sampled.tolist(), tools=list(tools), prompt_ids=prompt.tolist())
            # The length of the prompt tells the calls of one turn from those of another.
            named = [(call, f"call-{len(prompt)}-{number}") for number, call in enumerate(found.tool_calls[:MAX_ITEMS])]
            return Parsed(
                text=found.content,
                reasoning=found.reasoning_content or "",
                tool_calls=tuple(_tool_call(call, call_id) for call, call_id in named),
            )
        # Whatever a model writes, arguments nested a thousand times for example, is its answer.
        except Exception:  # noqa: BLE001
            return Parsed(text=self._tokenizer.decode(sampled.tolist(), skip_special_tokens=True))

    def _outside(self, chat: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        roles = {str(message["role"]) for message in chat}
        if roles - _ROLES:
            raise ValueError(f"role {min(roles - _ROLES)[:100]!r} is none of {', '.join(sorted(_ROLES))}")
        return [self._signs.away(message) for message in chat]


def _tool_call(call: Any, call_id: str) -> ToolCall:
    """A call as the model wrote it. One that can't be read has no name, or arguments that are no object."""
    arguments = call.raw if call.arguments is None else call.arguments
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(call_id=call.id or call_id, name=call.name or "", arguments=arguments)
