"""The interface of every engine: answer model calls, many at the same time, and replace the weights meanwhile."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rollstream.engines.deadline import task_ends_at
from rollstream.schemas.prompt import Message, Sampling, ToolCall
from rollstream.schemas.rollout import FinishReason, WeightSpan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerationRequest:
    """One model call. `prompt_token_ids` [P]; P + max_tokens must be at most the engine's `max_model_len`.

    Temperature, top_p, top_k and stop come from `sampling`. `max_tokens` and `seed` are used instead of `sampling`'s.
    Where `Engine.tokenize` gave no tokens P is 0, and the engine reads the fields after `seed` instead.
    `ends_at`, by `time.monotonic()`: then the engine ends the request and gives what it has sampled, finish reason
    `length`. It is `EngineLateError` if that is nothing, or if a server gives whole answers alone. By default it is
    the deadline of the task (`deadline.py`), so an agent need not pass it on.
    """

    request_id: str
    prompt_token_ids: NDArray[np.int32]
    sampling: Sampling
    max_tokens: int
    seed: int | None
    messages: Sequence[Message] = ()
    tools: Sequence[str] = ()
    opening: str = ""
    """What the answer begins with, without being sampled; it is in `prompt_token_ids` already if there are any."""
    is_text: bool = False
    """The one message is plain text that the model goes on with, without a chat template."""
    ends_at: float | None = field(default_factory=task_ends_at)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Generation:
    """What the model answered.

    `token_ids` [T]: the sampled tokens, including the stop token if the model chose one.
    `behavior_logprobs` [T]: natural logarithms, under the distribution that each token was sampled from, so after
    division by the temperature.
    `weight_spans`: cover [0, T) without gaps.
    T is 0 where a server gave only text; `reported_…_tokens` are how many tokens it says that this took.
    """

    token_ids: NDArray[np.int32]
    behavior_logprobs: NDArray[np.float32]
    weight_spans: tuple[WeightSpan, ...]
    finish_reason: FinishReason
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    reported_prompt_tokens: int | None = None
    reported_completion_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """The parts of an answer. `text`: without them.

    A call that can't be read is among `tool_calls` too, so that its answer can say so: it has no name, or its arguments
    are no JSON object.
    """

    text: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What an update cost. `stall_seconds`: without generation; `load_seconds`: in all, with reading the files."""

    stall_seconds: float
    load_seconds: float


class Engine(Protocol):
    """Generates with one policy, whose weights can be replaced while samples run."""

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
        """Hash of the tokenizer's files, see `engines/identity.py`; empty if the engine has none."""
        ...

    @property
    def chat_template_sha256(self) -> str:
        """Hash of the chat template's text; empty if the engine has none."""
        ...

    @property
    def renderer(self) -> str:
        """What renders conversations instead of the chat template, with its version; empty if nothing does."""
        ...

    @property
    def in_flight(self) -> int:
        """How many requests have started and not ended."""
        ...

    def tokenize(self, messages: Sequence[Message], tools: Sequence[str]) -> NDArray[np.int32] | None:
        """The prompt's tokens [P]: the chat template applied to `messages`. `tools` are JSON function schemas.

        None: this engine has no tokenizer, its requests carry the messages. Raises `ValueError` if the template or a
        schema does not fit.
        """
        ...

    def tokenize_text(self, text: str, *, is_own: bool = False) -> NDArray[np.int32] | None:
        """The tokens [N] of plain text, without template; None: this engine has no tokenizer.

        `is_own`: the text is an agent's own, such as `<think>`, so its control tokens are tokens.
        """
        ...

    def extend(
        self,
        prompt: NDArray[np.int32],
        sampled: NDArray[np.int32],
        before: Sequence[Message],
        messages: Sequence[Message],
        tools: Sequence[str],
    ) -> NDArray[np.int32] | None:
        """The tokens that follow `prompt` [P], all that the model saw, and the `sampled` [T] when `messages` come next.

        `before`: the conversation so far; its last message is the answer that was sampled. Nothing of it is tokenized
        again. None: the conversation can't go on from exactly these tokens, so a new prompt begins.
        """
        ...

    def parse(self, prompt: NDArray[np.int32], sampled: NDArray[np.int32], tools: Sequence[str]) -> Parsed | None:
        """What the `sampled` [T] tokens after `prompt` [P] say; None: without `renderer` an engine knows no parts."""
        ...

    def detokenize(self, token_ids: NDArray[np.int32]) -> str:
        """The text of sampled tokens, without special tokens. Raises `EngineError` if there is no tokenizer."""
        ...

    async def start(self, weight_version: int) -> None:
        """Load the settings' model and label it `weight_version`; raises `EngineError`."""
        ...

    async def generate(self, request: GenerationRequest) -> Generation:
        """Answer one request, by its deadline. If the caller is cancelled, the engine aborts the request.

        When it begins to sample, it tells the task's `process.begun.listener` with which version.
        Raises `EngineError`, or `FailedSampleError` if a server refuses the request for good.
        """
        ...

    async def load_weights(self, weight_version: int, path: Path) -> LoadReport:
        """Use the weights in directory `path` from now on, also for requests that run already.

        Raises `EngineError` if they can't be loaded: then the old weights go on. Raises `EngineDeadError`, a subclass,
        if the engine can't go on.
        """
        ...

    async def close(self) -> None:
        """Free the model; running requests end with `EngineError`."""
        ...
