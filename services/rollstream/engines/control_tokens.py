"""Encodes text such that nothing from outside becomes a control token, nor any other token that was added by its text.

A tokenizer finds such tokens (`<|im_end|>`, `<tool_call>`) wherever their text stands. A second tokenizer is therefore
made of the first one, in which they have names that nobody outside can know. Where a template wrote the text of one,
its name is written instead. For all other text both tokenizers are the same, so the tokens are the same too.

`split_special_tokens` of transformers is no way to do this: fast tokenizers still find the added tokens that are not
called special, such as Qwen's `<tool_call>`.
"""

import json
import re
import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rollstream.engines.marked_text import Marked


class OutsideEncoder:
    """Texts to token ids, as `tokenizer` gives them, but for control tokens in text from outside."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises `ValueError` if the tokens can't be renamed."""
        state = json.loads(tokenizer.to_str())
        # White space that was added as a token, e.g. four spaces, is text like any other.
        texts = [token["content"] for token in state["added_tokens"] if not token["content"].isspace()]
        # Letters and digits, which no normalizer changes.
        secret = secrets.token_hex(12)
        self._names = {text: f"x{secret}{number:06d}" for number, text in enumerate(texts)}
        longest_first = sorted(map(re.escape, texts), key=len, reverse=True)
        self._controls = re.compile("|".join(longest_first) or r"(?!)")
        self._renamed = Tokenizer.from_str(json.dumps(_renamed(state, self._names)))
        self._is_control = self._flags(tokenizer, _unknown(state["model"]))

    def encode(self, text: str) -> NDArray[np.int32]:
        """Token ids [N]. Raises `ValueError` if text from outside became a control token all the same."""
        pieces, num_controls = list[str](), 0
        for piece, is_own in text.runs() if isinstance(text, Marked) else ((text, False),):
            named, num_found = self._controls.subn(self._name, piece) if is_own else (piece, 0)
            pieces.append(named)
            num_controls += num_found
        ids = np.array(self._renamed.encode("".join(pieces), add_special_tokens=False).ids, dtype=np.int32)
        found = int(self._is_control[ids].sum())
        if found > num_controls:
            raise ValueError(f"{found} control tokens where the chat template wrote {num_controls}")
        return ids

    @property
    def controls(self) -> tuple[str, ...]:
        """The texts of all control tokens."""
        return tuple(self._names)

    def is_control(self, token_id: int) -> bool:
        """Whether this is a control token."""
        return bool(self._is_control[token_id])

    def _name(self, found: re.Match[str]) -> str:
        return self._names[found[0]]

    def _flags(self, tokenizer: Tokenizer, unknown: str | None) -> NDArray[np.bool_]:
        """Whether an id [V] is that of a control token; but for the one that stands for unknown characters."""
        ids = tokenizer.get_vocab(with_added_tokens=True)
        moved = [text for text, name in self._names.items() if self._renamed.token_to_id(name) != ids[text]]
        if moved:
            raise ValueError(f"added tokens would have other ids under other names: {', '.join(moved[:3])}")
        flags = np.zeros(1 + max(ids.values()), dtype=np.bool_)
        flags[[ids[text] for text in self._names if text != unknown]] = True
        return flags


def _unknown(model: dict[str, Any]) -> str | None:
    """The token that stands for characters that no other token has."""
    number = model.get("unk_id")
    return model.get("unk_token") if number is None else model["vocab"][number][0]


def _renamed(state: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """A tokenizer's state with other texts for some of its tokens."""
    model = state["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        vocabulary = {names.get(text, text): number for text, number in vocabulary.items()}
    else:
        vocabulary = [[names.get(text, text), score] for text, score in vocabulary]
    changed = {**model, "vocab": vocabulary}
    if "merges" in model:
        changed["merges"] = [pair for pair in model["merges"] if not _makes(pair, names)]
    if isinstance(model.get("unk_token"), str):
        changed["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    added = [{**token, "content": names.get(token["content"], token["content"])} for token in state["added_tokens"]]
    # What a post-processor adds, templates write themselves.
    return {
        **state,
        "model": changed,
        "added_tokens": added,
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }


def _makes(pair: Any, names: dict[str, str]) -> bool:
    """Whether a rule of byte pair encoding makes or uses such a token."""
    left, right = pair.split(" ", 1) if isinstance(pair, str) else pair
    return left in names or right in names or left + right in names
