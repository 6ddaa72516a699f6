"""What every engine does: one model call at a time, many side by side, and new weights while it generates."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.prompt import Message, Sampling
from rollstream.schemas.rollout import FinishReason, WeightSpan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerationRequest:
    """One model call. `prompt_token_ids` [P]; P + max_tokens must fit the engine's `max_model_len`.

    Temperature, top_p, top_k and stop come from `sampling`; `max_tokens` and `seed` here replace its own.
    """

    request_id: str
    prompt_token_ids: NDArray[np.int32]
    sampling: Sampling
    max_tokens: int
    seed: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Generation:
    """What the model answered.

    `token_ids` [T] with the stop token when the model chose it; `behavior_logprobs` [T], natural logarithms under the
    distribution that each token was sampled from (after temperature); `weight_spans` cover [0, T).
    """

    token_ids: NDArray[np.int32]
    behavior_logprobs: NDArray[np.float32]
    weight_spans: tuple[WeightSpan, ...]
    finish_reason: FinishReason
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What an update cost: `stall_seconds` without generation, `load_seconds` in all, reading the files included."""

    stall_seconds: float
    load_seconds: float


class Engine(Protocol):
    """Generates with one policy whose weights can be replaced in mid-sample."""

    @property
    def name(self) -> str:
        """Which engine this is, e.g. `vllm`."""
        ...

    @property
    def version(self) -> str:
        """Version of the library that generates."""
        ...

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and answer together."""
        ...

    @property
    def tokenizer_sha256(self) -> str:
        """Of the tokenizer's files."""
        ...

    @property
    def chat_template_sha256(self) -> str:
        """Of the chat template's text."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests that have started and not ended."""
        ...

    def tokenize(self, messages: Sequence[Message], tools: Sequence[str]) -> NDArray[np.int32]:
        """The prompt's tokens [P]: the chat template over `messages`; `tools` are JSON function schemas.

        Raises `ValueError` if the template or a schema does not fit.
        """
        ...

    def detokenize(self, token_ids: NDArray[np.int32]) -> str:
        """The text of sampled tokens, without special tokens."""
        ...

    async def start(self, weight_version: int) -> None:
        """Load the settings' model and label it `weight_version`; raises `EngineError`."""
        ...

    async def generate(self, request: GenerationRequest) -> Generation:
        """Answer one request; cancelling aborts it in the engine. Raises `EngineError`."""
        ...

    async def load_weights(self, weight_version: int, path: Path) -> LoadReport:
        """Serve the weights in directory `path` from now on, running requests included.

        Raises `EngineError`, before which nothing has changed unless it is an `EngineDeadError`.
        """
        ...

    async def close(self) -> None:
        """Free the model; running requests end with `EngineError`."""
        ...
