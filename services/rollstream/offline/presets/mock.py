"""Answers to `word_count` without a server. Most are right, some are off, some lack the form.

The answer depends only on the prompt and on the seed of the sample. It is an engine that speaks text only.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rollstream.engines.protocol import Generation, GenerationRequest, LoadReport, Parsed
from rollstream.schemas.errors import EngineError
from rollstream.schemas.prompt import Message
from rollstream.schemas.rollout import FinishReason

# The cumulated shares of the right answer, one off by one, one off by two, and the bare number without tags.
_RIGHT, _OFF_BY_ONE, _OFF_BY_TWO = 0.7, 0.85, 0.95
_SEPARATOR: Final = "\n\n"


class MockWordCounter:
    """Counts the words of the text after the first empty line of the last message."""

    name = "mock"
    version = "1"
    max_model_len = 2**20
    tokenizer_sha256 = ""
    chat_template_sha256 = ""
    renderer = ""
    in_flight = 0

    def tokenize(self, messages: Sequence[Message], tools: Sequence[str]) -> NDArray[np.int32] | None:
        return None

    def tokenize_text(self, text: str, *, is_own: bool = False) -> NDArray[np.int32] | None:
        return None

    def extend(
        self,
        prompt: NDArray[np.int32],
        sampled: NDArray[np.int32],
        before: Sequence[Message],
        messages: Sequence[Message],
        tools: Sequence[str],
    ) -> NDArray[np.int32] | None:
        return None

    def parse(self, prompt: NDArray[np.int32], sampled: NDArray[np.int32], tools: Sequence[str]) -> Parsed | None:
        return None

    def detokenize(self, token_ids: NDArray[np.int32]) -> str:
        raise EngineError("the mock engine has no tokenizer")

    async def start(self, weight_version: int) -> None:
        """There is nothing to load."""

    async def generate(self, request: GenerationRequest) -> Generation:
        return Generation(
            token_ids=np.zeros(0, dtype=np.int32),
            behavior_logprobs=np.zeros(0, dtype=np.float32),
            weight_spans=(),
            finish_reason=FinishReason.STOP,
            text=answer_to(request.messages[-1].content, request.seed),
        )

    async def load_weights(self, weight_version: int, path: Path) -> LoadReport:
        raise EngineError("the mock engine has no weights")

    async def close(self) -> None:
        """There is nothing to end."""


def answer_to(question: str, seed: int | None) -> str:
    """The answer that the prompt and the seed decide."""
    num_words = len(question.partition(_SEPARATOR)[2].split())
    digest = hashlib.sha256(f"{seed}/{question}".encode()).digest()
    chance = int.from_bytes(digest[:4], "little") / 2**32
    if chance >= _OFF_BY_TWO:
        return f"{num_words} words"
    off = 0 if chance < _RIGHT else 1 if chance < _OFF_BY_ONE else 2
    return f"<word_count>\n{num_words + off}\n</word_count>"
