"""The engine on Hugging Face's transformers, on a CPU or GPU: batched generation with a small loop of its own.

Between two decode steps, rows join and leave the batch and updates replace the weights. After an update, running
requests go on with their KV cache (`keep`), or the new weights compute their cache again (`recompute`). It works with
decoders that have full attention. vLLM is the faster engine.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rollstream.engines.bounds import refuse_impossible
from rollstream.engines.deadline import is_over, nothing_sampled
from rollstream.engines.model_directory import longest_sequence, refuse_misfit, stored_dtype, tensor_shapes
from rollstream.engines.protocol import Generation, GenerationRequest, LoadReport, Parsed
from rollstream.engines.settings import EngineSettings
from rollstream.engines.tokenizer import ChatTokenizer
from rollstream.process.begun import listener
from rollstream.schemas.errors import EngineDeadError, EngineError
from rollstream.schemas.prompt import Message
from rollstream.schemas.rollout import FinishReason

if TYPE_CHECKING:
    from rollstream.engines.decoding import DecodingBatch, Row


class TransformersEngine:
    """An `Engine` with one thread that computes; its event loop decides between two decode steps."""

    name = "transformers"

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._tokenizer = ChatTokenizer(settings.model_path, settings.renderer)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="transformers-engine")
        self._between_steps = asyncio.Lock()
        self._has_work = asyncio.Event()
        self._waiting: list[Row] = []
        self._answers: dict[Row, asyncio.Future[Generation]] = {}
        self._weight_version = 0
        self._loop_task: asyncio.Task[None] | None = None
        self.version = version("transformers")
        self.max_model_len = settings.max_model_len or longest_sequence(settings.model_path)
        self.tokenizer_sha256 = self._tokenizer.sha256
        self.chat_template_sha256 = self._tokenizer.chat_template_sha256
        self.renderer = self._tokenizer.renderer

    @property
    def in_flight(self) -> int:
        return len(self._answers)

    def tokenize(self, messages: Sequence[Message], tools: Sequence[str]) -> NDArray[np.int32]:
        return self._tokenizer.tokenize(messages, tools)

    def tokenize_text(self, text: str, *, is_own: bool = False) -> NDArray[np.int32]:
        return self._tokenizer.tokenize_text(text, is_own=is_own)

    def extend(
        self,
        prompt: NDArray[np.int32],
        sampled: NDArray[np.int32],
        before: Sequence[Message],
        messages: Sequence[Message],
        tools: Sequence[str],
    ) -> NDArray[np.int32] | None:
        return self._tokenizer.extend(prompt, sampled, before, messages, tools)

    def parse(self, prompt: NDArray[np.int32], sampled: NDArray[np.int32], tools: Sequence[str]) -> Parsed | None:
        return self._tokenizer.parse(prompt, sampled, tools)

    def detokenize(self, token_ids: NDArray[np.int32]) -> str:
        return self._tokenizer.detokenize(token_ids)

    async def start(self, weight_version: int) -> None:
        self._batch, ends = await self._in_thread(_load_model, self._settings)
        self._eos = ends | set(self._tokenizer.stop_token_ids)
        self._weight_version = weight_version
        self._loop_task = asyncio.create_task(self._generate_for_ever())
        self._loop_task.add_done_callback(self._end_requests)

    async def generate(self, request: GenerationRequest) -> Generation:
        from rollstream.engines.decoding import Row

        refuse_impossible(request, self.max_model_len)
        self._refuse_if_dead()
        row = Row(request=request, chance=random.Random(request.seed), listener=listener())
        answer: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._answers[row] = answer
        self._waiting.append(row)
        self._has_work.set()
        try:
            return await answer
        finally:
            self._answers.pop(row, None)

    async def load_weights(self, weight_version: int, path: Path) -> LoadReport:
        started = time.monotonic()
        # Files are read before the pause: that takes long, and a broken version must not stop generation.
        state = await asyncio.to_thread(_read_state, path)
        self._refuse_if_dead()
        paused = time.monotonic()
        async with self._between_steps:
            await self._in_thread(_replace_weights, self._batch.model, state, path)
            self._weight_version = weight_version
            if self._settings.kv_after_update == "recompute":
                # First in the queue, so that they are admitted again at the next step; their tokens stay.
                self._waiting = [*self._batch.rows, *self._waiting]
                self._batch.keep([])
        ended = time.monotonic()
        return LoadReport(stall_seconds=ended - paused, load_seconds=ended - started)

    async def close(self) -> None:
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.wait([self._loop_task])
        await asyncio.to_thread(self._thread.shutdown)

    async def _in_thread(self, function: Any, *arguments: Any) -> Any:
        """Run torch's work in one thread. OpenMP starts a set of threads for each thread that computes."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def _refuse_if_dead(self) -> None:
        if self._loop_task is None or self._loop_task.done():
            raise EngineDeadError("the transformers engine is not running: start() comes first, close() last")

    async def _generate_for_ever(self) -> None:
        while True:
            await self._has_work.wait()
            async with self._between_steps:
                self._forget_cancelled()
                self._refuse_late()
                room = self._settings.max_num_seqs - len(self._batch.rows)
                admitted, self._waiting = self._waiting[:room], self._waiting[room:]
                for row in admitted:
                    row.listener(self._weight_version)
                await self._in_thread(_advance, self._batch, admitted, self._weight_version)
                self._deliver()
            if not self._batch.rows and not self._waiting:
                self._has_work.clear()

    def _forget_cancelled(self) -> None:
        self._waiting = [row for row in self._waiting if row in self._answers]
        self._keep([row in self._answers for row in self._batch.rows])

    def _refuse_late(self) -> None:
        """End the requests that wait for their first token past their deadline."""
        for row in self._waiting:
            answer = self._answers[row]
            if not row.sampled and is_over(row.request.ends_at) and not answer.done():
                answer.set_exception(nothing_sampled())
        self._waiting = [row for row in self._waiting if not self._answers[row].done()]

    def _deliver(self) -> None:
        """Answer the requests that have ended, and keep the rows of the others."""
        ended = [self._ended(row) for row in self._batch.rows]
        for row, generation in zip(self._batch.rows, ended, strict=True):
            answer = self._answers.get(row)
            if generation is not None and answer is not None and not answer.done():
                answer.set_result(generation)
        self._keep([generation is None for generation in ended])

    def _keep(self, flags: list[bool]) -> None:
        if not all(flags):
            self._batch.keep([index for index, flag in enumerate(flags) if flag])

    def _ended(self, row: "Row") -> Generation | None:
        token_ids = np.array(row.sampled, dtype=np.int32)
        stops = row.request.sampling.stop
        has_stopped = row.sampled[-1] in self._eos
        # Detokenizing at every step costs time: only stop texts need the text before the end.
        text = self.detokenize(token_ids) if stops or has_stopped else ""
        cuts = [text.index(stop) for stop in stops if stop in text]
        is_whole = has_stopped or cuts or len(row.sampled) >= row.request.max_tokens
        if not is_whole and not is_over(row.request.ends_at):
            return None
        text = text or self.detokenize(token_ids)
        return Generation(
            token_ids=token_ids,
            behavior_logprobs=np.array(row.logprobs, dtype=np.float32),
            weight_spans=row.spans.covering(len(token_ids)),
            finish_reason=FinishReason.STOP if has_stopped or cuts else FinishReason.LENGTH,
            text=text[: min(cuts, default=len(text))],
        )

    def _end_requests(self, loop_task: "asyncio.Task[None]") -> None:
        """End every open request with `EngineDeadError`: the loop has ended and answers none of them."""
        cause = None if loop_task.cancelled() else loop_task.exception()
        for answer in self._answers.values():
            if not answer.done():
                error = EngineDeadError(f"the transformers engine has ended: {cause or 'closed'}")
                error.__cause__ = cause
                answer.set_exception(error)


def _load_model(settings: EngineSettings) -> tuple["DecodingBatch", frozenset[int]]:
    import torch
    from transformers import AutoModelForCausalLM

    from rollstream.engines.decoding import DecodingBatch

    device = ("cuda" if torch.cuda.is_available() else "cpu") if settings.device == "auto" else settings.device
    dtype = stored_dtype(settings.model_path) if settings.dtype == "auto" else settings.dtype
    try:
        model = AutoModelForCausalLM.from_pretrained(
            settings.model_path, dtype=getattr(torch, dtype), local_files_only=True
        )
        model = model.eval().requires_grad_(False).to(device)
    except (OSError, RuntimeError, ValueError) as error:
        raise EngineDeadError(f"{settings.model_path} could not be loaded: {error}") from error
    eos = model.generation_config.eos_token_id
    ids = eos if isinstance(eos, list) else [eos]
    return DecodingBatch(model), frozenset(token for token in ids if token is not None)


def _advance(batch: "DecodingBatch", admitted: "list[Row]", weight_version: int) -> None:
    """Sample one token for every row, then let new rows join and sample their first."""
    batch.step(weight_version)
    batch.admit(admitted, weight_version)


def _read_state(path: Path) -> dict[str, Any]:
    """Every tensor of the directory; raises `EngineError`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    tensor_shapes(path)
    try:
        return {name: tensor for file in sorted(path.glob("*.safetensors")) for name, tensor in load_file(file).items()}
    except (OSError, SafetensorError) as error:
        raise EngineError(f"cannot read the weights in {path}: {error}") from error


def _replace_weights(model: Any, state: dict[str, Any], path: Path) -> None:
    """Copy every tensor in place. All are checked first, so if this raises `EngineError` nothing has changed."""
    import torch

    targets = model.state_dict()
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    wanted = {name: tuple(tensor.shape) for name, tensor in targets.items()}
    refuse_misfit(path, found, wanted, is_tied=model.config.tie_word_embeddings)
    with torch.inference_mode():
        for name in state.keys() & targets.keys():  # computed tables and a tied head may be in one of them alone
            targets[name].copy_(state[name])
