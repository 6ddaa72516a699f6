"""The engine on servers that run elsewhere and speak OpenAI's protocol: vLLM, SGLang, LiteLLM and others.

Most speak text: a generation then has no tokens, and never trains. With `tokenizer_path` prompts are sent as token ids
and answers come back as token ids with logprobs, as vLLM's servers give them.

Weights are replaced by the servers' own routes (`weights.py`) while calls run, which go on. Where a server does
not report which version sampled which tokens, the version that it had when it was asked stands for all of them: none is
of an older one, so the policy lag is never taken for smaller than it is. The logprobs are those of what was sampled.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollstream.engines.bounds import refuse_impossible
from rollstream.engines.deadline import before_the_end
from rollstream.engines.http.answers import reported_spans, text_generation, token_generation
from rollstream.engines.http.bodies import most_bytes
from rollstream.engines.http.client import Call, HttpClient, ServerAnswer
from rollstream.engines.http.pool import Server
from rollstream.engines.http.ready import wait_until_ready
from rollstream.engines.http.requests import refuse_unfit, text_request, token_request
from rollstream.engines.http.weights import ServerWeights
from rollstream.engines.model_directory import Shapes, refuse_misfit, tensor_shapes
from rollstream.engines.protocol import Generation, GenerationRequest, LoadReport, Parsed
from rollstream.engines.settings import EngineSettings
from rollstream.engines.tokenizer import ChatTokenizer
from rollstream.process.begun import listener
from rollstream.process.masking import SECRETS
from rollstream.schemas.bounds import MAX_COUNT, MAX_SAMPLE_TOKENS
from rollstream.schemas.errors import EngineError
from rollstream.schemas.prompt import Message
from rollstream.schemas.rollout import WeightSpan


class OpenAiHttpEngine:
    """An `Engine` whose model runs in servers. Without `tokenizer_path` it has no tokens and no hashes."""

    name = "openai_http"

    def __init__(self, settings: EngineSettings) -> None:
        http = settings.http
        self._settings = http
        self._tokenizer = None if http.tokenizer_path is None else ChatTokenizer(http.tokenizer_path, settings.renderer)
        self._client = HttpClient(http)
        self._weights: ServerWeights | None = None
        self._shapes: Shapes = {}
        self._updating = asyncio.Lock()
        self._wanted_max_model_len = settings.max_model_len
        self.version = "unknown"
        self.max_model_len = settings.max_model_len or MAX_SAMPLE_TOKENS
        self.tokenizer_sha256 = "" if self._tokenizer is None else self._tokenizer.sha256
        self.chat_template_sha256 = "" if self._tokenizer is None else self._tokenizer.chat_template_sha256
        self.renderer = "" if self._tokenizer is None else self._tokenizer.renderer
        self.in_flight = 0
        if http.api_key is not None:
            SECRETS.add([http.api_key.get_secret_value()])

    def tokenize(self, messages: Sequence[Message], tools: Sequence[str]) -> NDArray[np.int32] | None:
        """The prompt as token ids; None without `tokenizer_path`: the servers read the messages themselves."""
        if self._tokenizer is not None:
            return self._tokenizer.tokenize(messages, tools)
        refuse_unfit(messages, tools, self._settings)
        return None

    def tokenize_text(self, text: str, *, is_own: bool = False) -> NDArray[np.int32] | None:
        return None if self._tokenizer is None else self._tokenizer.tokenize_text(text, is_own=is_own)

    def extend(
        self,
        prompt: NDArray[np.int32],
        sampled: NDArray[np.int32],
        before: Sequence[Message],
        messages: Sequence[Message],
        tools: Sequence[str],
    ) -> NDArray[np.int32] | None:
        if self._tokenizer is None:
            return None
        return self._tokenizer.extend(prompt, sampled, before, messages, tools)

    def parse(self, prompt: NDArray[np.int32], sampled: NDArray[np.int32], tools: Sequence[str]) -> Parsed | None:
        return None if self._tokenizer is None else self._tokenizer.parse(prompt, sampled, tools)

    def detokenize(self, token_ids: NDArray[np.int32]) -> str:
        """The text of token ids."""
        if self._tokenizer is None:
            raise EngineError("without http.tokenizer_path there is no tokenizer: answers are text already")
        return self._tokenizer.detokenize(token_ids)

    async def start(self, weight_version: int) -> None:
        """Wait until servers are ready. Their weights are called `weight_version`.

        Raises `ConfigurationError` for a key that is refused, or a server that can't be updated as the settings say.
        """
        self._client.open()
        try:
            await self._start(weight_version)
        except BaseException:
            await self._client.close()
            raise

    async def generate(self, request: GenerationRequest) -> Generation:
        """Have one server answer. Raises what `HttpClient.answered` raises, and `EngineError` if it can't be read."""
        if self._tokenizer is not None:
            refuse_impossible(request, self.max_model_len)
        self.in_flight += 1
        try:
            return await self._generated(request)
        finally:
            self.in_flight -= 1

    async def load_weights(self, weight_version: int, path: Path) -> LoadReport:
        """Load a version into every server. Files that do not fit are refused before a server is asked.

        Raises `EngineDeadError` if no server has loaded them: what they have now is not known.
        """
        if self._weights is None:
            raise EngineError(
                f"version {weight_version} can't be loaded: http.weight_updates is 'none'; set 'vllm' or 'sglang'"
            )
        started = time.monotonic()
        found = await asyncio.to_thread(tensor_shapes, path)
        if self._shapes:
            refuse_misfit(path, found, self._shapes, is_tied=True)
        async with self._updating:
            stall_seconds = await self._weights.load(weight_version, path.absolute())
        self._shapes = found
        return LoadReport(stall_seconds=stall_seconds, load_seconds=time.monotonic() - started)

    async def close(self) -> None:
        """Break off what runs; no server is asked any more."""
        await self._client.close()

    async def _start(self, weight_version: int) -> None:
        http = self._settings
        ready = await wait_until_ready(self._client, http.model, http.ready_seconds)
        for server in self._client.pool.servers:
            server.weight_version = weight_version
        if http.weight_updates != "none":
            self._weights = ServerWeights(self._client, http, weight_version)
            self._client.on_return = self._weights.confirm
            await self._weights.start_all(ready)
        self.version = next((one.software for one in ready.values() if one.software), self.version)
        known = [one.max_model_len for one in ready.values() if one.max_model_len is not None]
        self.max_model_len = min([self._wanted_max_model_len or MAX_SAMPLE_TOKENS, *known])

    async def _generated(self, request: GenerationRequest) -> Generation:
        make = text_request if self._tokenizer is None else token_request
        route, body = make(request, self._settings)
        most = most_bytes(len(request.prompt_token_ids), request.max_tokens)
        call = Call(route=route, body=lambda server: self._salted(server, body), most_bytes=most)
        async with before_the_end(request.ends_at):
            asked = await self._client.answered(call)
        try:
            return self._taken_apart(asked, request)
        # Whatever is raised here, a stranger's answer caused it, and it must not end more than this call.
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise EngineError(f"the answer can't be read: {type(error).__name__}: {str(error)[:500]}") from error

    def _taken_apart(self, asked: ServerAnswer, request: GenerationRequest) -> Generation:
        if self._tokenizer is None:
            return text_generation(asked.body, request)
        return token_generation(
            asked.body,
            request,
            spans=self._spans(asked),
            weight_version=asked.weight_version,
            detokenize=self._tokenizer.detokenize,
        )

    def _spans(self, asked: ServerAnswer) -> tuple[WeightSpan, ...] | None:
        """What the server reports, if anything. Labels that are none of ours: it started anew, see `ServerWeights`."""
        if self._weights is None:
            # Somebody else may update the server. A label that is no version says nothing.
            with suppress(EngineError):
                return reported_spans(asked.body, 0, MAX_COUNT)
            return None
        try:
            spans = reported_spans(asked.body, asked.weight_version, self._weights.version)
        except EngineError as error:
            self._client.pool.failed(asked.server, str(error))
            raise
        # One that waited at the server while weights changed may have begun with what the older ones had cached.
        is_of_the_newer = spans is not None and spans[0].weight_version != asked.weight_version
        return None if is_of_the_newer else spans

    def _salted(self, server: Server, body: dict[str, Any]) -> dict[str, Any]:
        """vLLM's cached prefixes are of the weights that computed them, so those of other weights must not be used."""
        listener()(server.weight_version)
        is_vllm = self._settings.weight_updates == "vllm"
        return {**body, "cache_salt": str(server.weight_version)} if is_vllm else body
