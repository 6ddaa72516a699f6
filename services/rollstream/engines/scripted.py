"""A deterministic engine without a model. It starts at once.

It answers `digits=` with the sorted digits, or with a wrong answer. If `model_path` has a `tokenizer.json` of single
characters, it uses those tokens, so that a real trainer can train on its samples. Else tokens are bytes, and token 256
ends the answer. The settings may fill answers with spaces to log-normal lengths (`answer_tokens`).
"""

import asyncio
import hashlib
import json
import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from rollstream.engines.bounds import refuse_impossible
from rollstream.engines.deadline import before_the_end, nothing_sampled
from rollstream.engines.identity import chat_template_sha256, tokenizer_sha256
from rollstream.engines.protocol import Generation, GenerationRequest, LoadReport, Parsed
from rollstream.engines.settings import EngineSettings, ScriptedSettings
from rollstream.engines.spans import SpanRecorder
from rollstream.process.begun import listener
from rollstream.schemas.errors import EngineDeadError, EngineError
from rollstream.schemas.prompt import Message
from rollstream.schemas.rollout import FinishReason

_DEFAULT_MAX_MODEL_LEN = 4096
_SORTING = re.compile(r"(\d+)=$")


class ScriptedEngine:
    """Answers by a rule. The answer depends only on the seed, the prompt and the version when the request starts."""

    name = "scripted"
    renderer = ""
    version = "1"

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings.scripted
        self._vocabulary = _vocabulary(settings.model_path)
        self._weight_version: int | None = None
        self._is_closed = False
        self.max_model_len = settings.max_model_len or _DEFAULT_MAX_MODEL_LEN
        self.tokenizer_sha256 = tokenizer_sha256(settings.model_path)
        self.chat_template_sha256 = chat_template_sha256(settings.model_path)
        self._slots = asyncio.Semaphore(settings.max_num_seqs)
        self.in_flight = 0

    def tokenize(self, messages: Sequence[Message], tools: Sequence[str]) -> NDArray[np.int32]:
        """The tokens of all contents, joined without a template; tools are ignored."""
        return np.array(self._vocabulary.encode("".join(message.content for message in messages)), dtype=np.int32)

    def tokenize_text(self, text: str, *, is_own: bool = False) -> NDArray[np.int32]:
        return np.array(self._vocabulary.encode(text), dtype=np.int32)

    def extend(
        self,
        prompt: NDArray[np.int32],
        sampled: NDArray[np.int32],
        before: Sequence[Message],
        messages: Sequence[Message],
        tools: Sequence[str],
    ) -> NDArray[np.int32] | None:
        return self.tokenize(messages, tools)

    def parse(self, prompt: NDArray[np.int32], sampled: NDArray[np.int32], tools: Sequence[str]) -> Parsed | None:
        return None

    def detokenize(self, token_ids: NDArray[np.int32]) -> str:
        return self._vocabulary.decode(token_ids)

    async def start(self, weight_version: int) -> None:
        """There is nothing to load."""
        self._weight_version = weight_version

    async def generate(self, request: GenerationRequest) -> Generation:
        """One token per `token_seconds`, `max_num_seqs` requests side by side."""
        self.in_flight += 1
        try:
            async with before_the_end(request.ends_at):
                await self._slots.acquire()
            try:
                planned = self._plan(request)
                listener()(self._running_version())
                spans, num_sampled = await self._sample(len(planned), request.ends_at)
            finally:
                self._slots.release()
        finally:
            self.in_flight -= 1
        planned = planned[:num_sampled]
        token_ids = np.array(planned, dtype=np.int32)
        text = self.detokenize(token_ids)
        stops = [text.index(stop) for stop in request.sampling.stop if stop in text]
        has_ended = bool(stops) or planned[-1] == self._vocabulary.eos
        return Generation(
            token_ids=token_ids,
            behavior_logprobs=np.array(-(1 + token_ids % 7) / 8, dtype=np.float32),
            weight_spans=spans.covering(len(planned)),
            finish_reason=FinishReason.STOP if has_ended else FinishReason.LENGTH,
            text=text[: min(stops, default=len(text))],
        )

    async def load_weights(self, weight_version: int, path: Path) -> LoadReport:
        """Read every file of `path`, but keep only the version."""
        started = time.monotonic()
        await asyncio.to_thread(_read_all, path)
        self._running_version()
        self._weight_version = weight_version
        return LoadReport(stall_seconds=0.0, load_seconds=time.monotonic() - started)

    async def close(self) -> None:
        self._is_closed = True

    def _running_version(self) -> int:
        """The weight version; raises `EngineDeadError` if the engine does not run."""
        if self._weight_version is None or self._is_closed:
            raise EngineDeadError("the scripted engine is not running: start() comes first, close() last")
        return self._weight_version

    async def _sample(self, num_tokens: int, ends_at: float | None) -> tuple[SpanRecorder, int]:
        """Take the time of so many tokens, at most until `ends_at`.

        Returns which version was there when each of them came, and how many came.
        """
        spans, at_once = SpanRecorder(), self._settings.tokens_at_once
        for position in range(0, num_tokens, at_once):
            seconds = self._settings.token_seconds * min(at_once, num_tokens - position)
            left = math.inf if ends_at is None else ends_at - time.monotonic()
            await asyncio.sleep(min(seconds, left))
            if left <= seconds:
                if not position:
                    raise nothing_sampled()
                return spans, position
            spans.note(self._running_version(), position)
        return spans, num_tokens

    def _plan(self, request: GenerationRequest) -> list[int]:
        """The tokens of the answer, cut at the first stop text or at `max_tokens`."""
        refuse_impossible(request, self.max_model_len)
        answer = self._answer(request)
        planned = [*self._vocabulary.encode(answer), self._vocabulary.eos][: request.max_tokens]
        if not request.sampling.stop:
            # The search below takes a time that grows with the square of the length.
            return planned
        for length in range(1, len(planned) + 1):
            text = self.detokenize(np.array(planned[:length], dtype=np.int32))
            if any(stop in text for stop in request.sampling.stop):
                return planned[:length]
        return planned

    def _answer(self, request: GenerationRequest) -> str:
        version = self._running_version()
        prompt = self.detokenize(request.prompt_token_ids)
        ratio = self._settings.correct_ratio + version * self._settings.correct_ratio_gain
        seed = request.request_id if request.seed is None else request.seed
        sample = f"{seed if request.sampling.temperature else 'greedy'}/{prompt}"
        digest = hashlib.sha256(sample.encode()).digest()
        is_correct = int.from_bytes(digest[:4], "little") / 2**32 < ratio
        question = _SORTING.search(prompt)
        right = "".join(sorted(question[1])) if question else "yes"
        # One beyond the request's limit is enough to be cut there.
        length = min(answer_tokens(self._settings, prompt=prompt, sample=sample) or 1, request.max_tokens + 1)
        return (right if is_correct else right[:-1]).ljust(length - 1)


def answer_tokens(settings: ScriptedSettings, *, prompt: str, sample: str) -> int | None:
    """Tokens of an answer, its end included, before any limit; None if the settings do not spread lengths.

    A length is a median times a factor of the prompt times a factor of the sample, which names one answer to it. So the
    answers to one prompt resemble each other in length, as hard problems take a model longer, and among the answers of
    many prompts some are very long.
    """
    if settings.answer_tokens_median is None:
        return None
    of_prompt = settings.answer_tokens_sigma_of_prompts * _normal(f"prompt/{prompt}")
    of_sample = settings.answer_tokens_sigma_of_samples * _normal(f"sample/{sample}")
    return max(1, round(settings.answer_tokens_median * math.exp(of_prompt + of_sample)))


def _normal(name: str) -> float:
    """A number of the standard normal distribution that `name` decides."""
    digest = hashlib.sha256(name.encode()).digest()
    # The half keeps it away from 0, where the inverse has no value; of 32 bits so that it is not rounded to 1.
    return NormalDist().inv_cdf((int.from_bytes(digest[:4], "little") + 0.5) / 2**32)


class _ByteVocabulary:
    """Tokens are the bytes of UTF-8."""

    eos = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: NDArray[np.int32]) -> str:
        return bytes(token for token in token_ids.tolist() if token < self.eos).decode(errors="replace")


class _CharacterVocabulary:
    """Tokens are the single characters of a `tokenizer.json`. Characters that it lacks are left out."""

    def __init__(self, characters: dict[str, int], eos: int) -> None:
        self.eos = eos
        self._ids = characters
        self._characters = {token: character for character, token in characters.items()}

    def encode(self, text: str) -> list[int]:
        return [self._ids[character] for character in text if character in self._ids]

    def decode(self, token_ids: NDArray[np.int32]) -> str:
        return "".join(self._characters.get(token, "") for token in token_ids.tolist())


def _vocabulary(model_path: Path) -> _ByteVocabulary | _CharacterVocabulary:
    if not (model_path / "tokenizer.json").exists():
        return _ByteVocabulary()
    vocabulary = json.loads((model_path / "tokenizer.json").read_text())["model"]["vocab"]
    eos = json.loads((model_path / "config.json").read_text())["eos_token_id"]
    return _CharacterVocabulary({text: token for text, token in vocabulary.items() if len(text) == 1}, eos)


def _read_all(path: Path) -> None:
    try:
        files = [file for file in sorted(path.rglob("*")) if file.is_file()]
        for file in files:
            file.read_bytes()
    except OSError as error:
        raise EngineError(f"cannot read weights in {path}: {error.strerror}") from error
    if not any(file.suffix == ".safetensors" for file in files):
        raise EngineError(f"{path} has no .safetensors file: it is not a weight version")
