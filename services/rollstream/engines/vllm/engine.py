"""The engine on vLLM, on a GPU or the CPU: its weights are replaced while requests run.

An update is: read and check the files, pause, reload, check the output head, label, resume. Running requests go on with
their KV cache (`keep`), or their cache is computed again (`recompute`). A request that arrives during an update waits
for its end.

Every request carries its weight version as cache salt. So no new request reuses a cached prefix that older weights
computed: logprobs were off by 0.09 nats where one did.

A request whose first token comes after an update would have the salt of the version before it: it reused what the old
weights had computed, and its tokens were off by 0.5 to 1.2 nats under the new version's name. So at an update those
without a token are taken back and asked again (`_take_back_unstarted`, `_answered`). There are few of them: vLLM is
given hardly more requests than it can start at once, the others wait here.

Clients of the generator are answered by the same vLLM, through `stream`, which passes the same gate.
"""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollstream.engines.bounds import refuse_impossible
from rollstream.engines.deadline import before_the_end
from rollstream.engines.model_directory import (
    Shapes,
    longest_sequence,
    read_config,
    refuse_misfit,
    refuse_undivided,
    tensor_shapes,
)
from rollstream.engines.protocol import Generation, GenerationRequest, LoadReport, Parsed
from rollstream.engines.settings import EngineSettings
from rollstream.engines.tokenizer import ChatTokenizer
from rollstream.engines.vllm import setup as vllm_setup
from rollstream.engines.vllm.answers import StreamRequest, checked, cut_if_late, generation_of, sampling_params
from rollstream.engines.vllm.places import NO_RESERVE, Reserve, TrainingPlaces
from rollstream.engines.vllm.temporary import VllmDirectory
from rollstream.process.begun import listener
from rollstream.process.heap import hide_loaded_objects
from rollstream.process.parent import end_forks_with_this_process
from rollstream.schemas.errors import EngineDeadError, EngineError
from rollstream.schemas.prompt import Message

_CLOSE_SECONDS = 5.0
_GONE = "vLLM's engine process is gone; start a new generator"
_ABORT_AGAIN_SECONDS = 0.1


class VllmEngine:
    """An `Engine`. Logprobs are vLLM's `processed_logprobs`. Spans are recorded by vLLM's engine core."""

    name = "vllm"

    def __init__(self, settings: EngineSettings, reserve: Reserve = NO_RESERVE) -> None:
        """`reserve`: of the requests that run side by side, those that `generate` leaves to `stream`."""
        refuse_undivided(settings.model_path, settings.tensor_parallel_size)
        vllm_setup.prepare(settings)
        self._settings = settings
        self._tokenizer = ChatTokenizer(settings.model_path, settings.renderer)
        self._llm: Any = None
        self._sockets: VllmDirectory | None = None
        self._weight_version = 0
        self._is_open = asyncio.Event()
        self._updating = asyncio.Lock()
        self._places = TrainingPlaces(settings.max_num_seqs, reserve)
        self._taken_back: set[str] = set()
        self._shapes: Shapes = {}
        self._is_tied = False
        self.version = vllm_setup.installed_version()
        self.max_model_len = settings.max_model_len or longest_sequence(settings.model_path)
        self.tokenizer_sha256 = self._tokenizer.sha256
        self.chat_template_sha256 = self._tokenizer.chat_template_sha256
        self.renderer = self._tokenizer.renderer
        self.in_flight = 0

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
        """Takes 20 s and more on a CPU, and must come before any other use of torch here."""
        self._shapes = tensor_shapes(self._settings.model_path)
        self._is_tied = bool(read_config(self._settings.model_path).get("tie_word_embeddings"))
        config = await asyncio.to_thread(vllm_setup.engine_config, self._settings)
        from vllm.v1.engine.async_llm import AsyncLLM

        end_forks_with_this_process()
        self._sockets = VllmDirectory.make()
        try:
            # Not in a thread, although it blocks the event loop: the client binds its sockets to the running loop.
            self._llm = AsyncLLM.from_vllm_config(config, disable_log_stats=not self._settings.vllm_metrics)
        except (RuntimeError, ValueError, OSError) as error:
            raise EngineDeadError(f"vLLM did not start with {self._settings.model_path}: {error}") from error
        # Again, for processes that were spawned: they have not inherited the call above.
        await self._llm.collective_rpc("begin", args=(os.getpid(),))
        await self._label(weight_version)
        hide_loaded_objects()
        self._is_open.set()

    async def generate(self, request: GenerationRequest) -> Generation:
        refuse_impossible(request, self.max_model_len)
        self.in_flight += 1
        try:
            async with before_the_end(request.ends_at):
                await self._places.take()
            try:
                answer = await self._answered(request)
            finally:
                self._places.give()
            token_ids = np.array(answer.token_ids, dtype=np.int32)
            return generation_of(
                answer, token_ids, answer.text if request.sampling.stop else self.detokenize(token_ids)
            )
        finally:
            self._taken_back.discard(request.request_id)
            self.in_flight -= 1

    async def _answered(self, request: GenerationRequest) -> Any:
        """vLLM's answer, asked for again until no update came between the request and its first token."""
        from vllm.inputs.engine import tokens_input

        while True:
            async with before_the_end(request.ends_at):
                await self._is_open.wait()
            salt = str(self._weight_version)
            listener()(self._weight_version)
            prompt = tokens_input(request.prompt_token_ids.tolist(), cache_salt=salt)
            with _as_engine_errors(), self._ended_in_time(request):
                params = sampling_params(request, self._tokenizer.stop_token_ids)
                outputs = self._running().generate(prompt, params, request.request_id)
                answer = [output async for output in outputs][-1].outputs[0]
            if not self._is_overtaken(request.request_id, answer, salt):
                return checked(answer, request)

    @property
    def llm(self) -> Any:
        """vLLM's AsyncLLM, whose own `generate` must not be called: it passes no gate. Raises `EngineDeadError`."""
        return self._running()

    async def stream(self, request: StreamRequest) -> AsyncGenerator[Any, None]:
        """vLLM's outputs of one sequence as they come. Its caller has a place for it already.

        Like `_answered` it asks again if an update comes before the first token; nothing was given out then. Raises
        vLLM's own errors, which its routes expect; `EngineLateError` if there is no token by the deadline.
        """
        self.in_flight += 1
        try:
            if await self._places.call_begins():
                # They would be started before this call. They are asked again; those on their way may still come first.
                await self._take_back_unstarted()
            while True:
                async with before_the_end(request.ends_at):
                    await self._is_open.wait()
                version, num_tokens, is_first = str(self._weight_version), 0, True
                outputs = self._running().generate(
                    request.prompt_of(version), request.params, request.request_id, **request.reasoning
                )
                with self._ended_in_time(request):
                    async with aclosing(outputs):
                        async for output in outputs:
                            (sampled,) = output.outputs
                            if is_first and self._is_overtaken(request.request_id, sampled, version):
                                request.on_taken_back()
                                break
                            is_first = False
                            num_tokens += len(sampled.token_ids)
                            cut_if_late(sampled, request.ends_at, num_tokens)
                            yield output
                        else:
                            return
        finally:
            self._places.call_ends()
            self._taken_back.discard(request.request_id)
            self.in_flight -= 1

    def require_alive(self) -> None:
        """Raise `EngineDeadError` if vLLM will never answer again."""
        if self._running().errored:
            raise EngineDeadError(_GONE)

    async def keep_aborting(self, request_ids: Iterable[str]) -> None:
        """End these requests with what they have so far; until it is cancelled, or vLLM is dead."""
        # A dead engine ends the requests by itself.
        with suppress(EngineError), _as_engine_errors():
            while True:
                await self._running().abort(list(request_ids))
                # Again: one may have been on its way into vLLM.
                await asyncio.sleep(_ABORT_AGAIN_SECONDS)

    @contextmanager
    def _ended_in_time(self, request: GenerationRequest | StreamRequest) -> Iterator[None]:
        """Inside the block vLLM ends the request at its deadline, and gives what it has sampled."""
        if request.ends_at is None:
            yield
            return
        ending = asyncio.create_task(self._abort_at(request.ends_at, request.request_id))
        try:
            yield
        finally:
            ending.cancel()

    async def _abort_at(self, moment: float, request_id: str) -> None:
        await asyncio.sleep(moment - time.monotonic())
        await self.keep_aborting([request_id])

    def _is_overtaken(self, request_id: str, output: Any, salt: str) -> bool:
        """Whether an update came between the request and its first token, which `output` holds."""
        if request_id in self._taken_back:
            self._taken_back.discard(request_id)
            return True
        # It was on its way to vLLM when `_take_back_unstarted` looked. A cache that is computed again has no old parts.
        return self._settings.kv_after_update == "keep" and self._first_version(output, salt) != salt

    def _first_version(self, output: Any, asked: str) -> str:
        """The version that sampled the first token, or a later one if that is not known yet; `asked` if none has."""
        if output.weight_versions is None:
            # Only the last output says which: the version of now, as long as no update came since it was asked.
            return str(self._weight_version) if output.finish_reason is None else asked
        return output.weight_versions[0].version if output.weight_versions else asked

    async def load_weights(self, weight_version: int, path: Path) -> LoadReport:
        started = time.monotonic()
        found = await asyncio.to_thread(tensor_shapes, path)
        refuse_misfit(path, found, self._shapes, is_tied=self._is_tied)
        async with self._updating:
            paused = time.monotonic()
            async with self._paused():
                await self._load(path)
                await self._label(weight_version)
        ended = time.monotonic()
        return LoadReport(stall_seconds=ended - paused, load_seconds=ended - started)

    async def close(self) -> None:
        llm, self._llm = self._llm, None
        # Requests that wait for an update must go on, to find that the engine is closed.
        self._is_open.set()
        if llm is not None:
            await self._end_requests(llm)
            if llm.output_handler is not None:
                # Otherwise it logs the end of the engine's process as a failure.
                llm.output_handler.cancel()
            await asyncio.to_thread(llm.shutdown)
        if self._sockets is not None:
            self._sockets.delete()

    async def _end_requests(self, llm: Any) -> None:
        """End the open requests with an error: after a shutdown alone they would wait for tokens for ever.

        Repeated, because a request that is just starting registers itself in vLLM only after the first time.
        """
        dead, _ = _vllm_errors()
        deadline = time.monotonic() + _CLOSE_SECONDS
        while self.in_flight and time.monotonic() < deadline:
            llm.output_processor.propagate_error(dead())
            await asyncio.sleep(0.01)

    def _running(self) -> Any:
        if self._llm is None:
            raise EngineDeadError("vLLM is not running: it was not started, was closed, or failed during an update")
        return self._llm

    async def _load(self, path: Path) -> None:
        with _as_engine_errors():
            problems = await self._running().collective_rpc("load_version", args=(str(path),))
        for problem in problems:
            if problem is not None:
                raise EngineDeadError(f"{path} could not be loaded, the engine ends: {problem}")

    async def _label(self, weight_version: int) -> None:
        await self._running().update_weight_version(str(weight_version))
        self._weight_version = weight_version

    @asynccontextmanager
    async def _paused(self) -> AsyncIterator[None]:
        """No token is sampled inside the block.

        If it raises, weights may be partly old: the engine ends, and the error is `EngineDeadError`.
        """
        self._is_open.clear()
        is_done = False
        try:
            recompute = self._settings.kv_after_update == "recompute"
            # Not `pause_generation`: it does this, then sleeps for 20 ms. Answers that are still on their way here when
            # this returns are taken back below, and asked for again.
            await self._running().engine_core.pause_scheduler_async(mode="keep", clear_cache=recompute)
            if not recompute:
                await self._take_back_unstarted()
            yield
            await self._running().resume_generation()
            is_done = True
        except EngineDeadError:
            raise
        except Exception as error:
            raise EngineDeadError(f"the update failed in its pause, so the engine ends: {error}") from error
        finally:
            self._is_open.set()
            if not is_done:
                await self.close()

    async def _take_back_unstarted(self) -> None:
        """End the requests that have no token yet: `_answered` asks for them again, as requests of the new version."""
        states = self._running().output_processor.request_states
        unstarted = {one: state.external_req_id for one, state in states.items() if state.is_prefilling}
        self._taken_back.update(unstarted.values())
        await self._running().abort(list(unstarted), internal=True)


@contextmanager
def _as_engine_errors() -> Iterator[None]:
    """Raise our errors instead of vLLM's."""
    dead, refused = _vllm_errors()
    try:
        yield
    except dead as error:
        raise EngineDeadError(_GONE) from error
    except (refused, ValueError) as error:
        raise EngineError(f"vLLM refused the request: {error}") from error


@cache
def _vllm_errors() -> tuple[type[Exception], type[Exception]]:
    from vllm.exceptions import VLLMError
    from vllm.v1.engine.exceptions import EngineDeadError as VllmDeadError

    return VllmDeadError, VLLMError
