"""Stands before vLLM's engine for vLLM's own HTTP routes, and records each answer exactly.

Each choice of a call is a request of its own in vLLM, so that one which an update takes back before its first token is
asked again alone (`VllmEngine.stream`). A task reads them that outlives the client: if the client leaves, the requests
are ended, and what they have is read to the end and recorded. The last output of a call reaches the client only after
the record is kept.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal
from uuid import uuid4

import numpy as np

from rollstream.engines.vllm.answers import StreamRequest, logprobs_of, spans_of
from rollstream.engines.vllm.engine import VllmEngine
from rollstream.generator.serve.call import CALLER, Caller, Recorder, ServedCall, ServedChoice
from rollstream.generator.serve.lane import ServingLane
from rollstream.generator.serve.metrics import TAKEN_BACK, TIME_PER_TOKEN, TIME_TO_FIRST_TOKEN
from rollstream.generator.serve.said import COMPLETIONS, RESPONSES
from rollstream.generator.serve.sampled import as_used, is_plain, made_plain, others
from rollstream.schemas.errors import EngineLateError, SpoolFullError
from rollstream.schemas.record import utc_now
from rollstream.schemas.rollout import FinishReason, WeightSpan

_LOG = logging.getLogger(__name__)

_FINISHED: Final = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "repetition": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
}
_RETRYABLE: Final = (SpoolFullError, EngineLateError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What every call needs."""

    engine: VllmEngine
    lane: ServingLane
    recorder: Recorder
    when_client_leaves: Literal["abort", "finish"]
    answer_seconds: float


class RecordingEngine:
    """vLLM's AsyncLLM for the routes, but for `generate`."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._reading: set[asyncio.Task[None]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._serving.engine.llm, name)

    def generate(
        self,
        prompt: Mapping[str, Any],
        sampling_params: Any,
        request_id: str,
        *,
        reasoning_ended: bool | None = None,
        reasoning_parser_kwargs: dict[str, Any] | None = None,
        **_not_the_clients: Any,
    ) -> AsyncIterator[Any]:
        """vLLM's outputs for one prompt, as the routes ask for them. The rest (priority, rank …) is not the client's.

        Reads whose call it is when it is called: the iterator may run in another task.
        """
        caller = CALLER.get()
        params = made_plain(sampling_params) if caller.key.sampling == "plain" else copy(sampling_params)
        asked = _AskedPrompt.of(caller, prompt, params, request_id)
        call = _Call(
            self._serving,
            asked,
            {"reasoning_ended": reasoning_ended, "reasoning_parser_kwargs": reasoning_parser_kwargs},
        )
        return self._answers(call)

    async def settled(self) -> None:
        """Wait until no call is read any more, those included whose clients have left."""
        while self._reading:
            await asyncio.wait(list(self._reading))

    async def _answers(self, call: "_Call") -> AsyncIterator[Any]:
        reading = asyncio.create_task(call.read(), name="serve call")
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)
        try:
            while (output := await call.outputs.get()) is not None:
                if isinstance(output, Exception):
                    raise output
                yield output
        finally:
            call.leave()


@dataclass(frozen=True, slots=True, kw_only=True)
class _AskedPrompt:
    """A prompt of a call. `first_choice`: the number of its first choice in the response."""

    caller: Caller
    prompt: Mapping[str, Any]
    params: Any
    response_id: str
    first_choice: int

    @classmethod
    def of(cls, caller: Caller, prompt: Mapping[str, Any], params: Any, request_id: str) -> "_AskedPrompt":
        """vLLM names a request of a response for the response: `cmpl-1` asks `cmpl-1-0`, `resp_1` asks `resp_1_0`."""
        response_id, number = request_id, 0
        if caller.route == RESPONSES:
            response_id = request_id.rpartition("_")[0]
        elif caller.route == COMPLETIONS:
            response_id, _, place = request_id.rpartition("-")
            number = int(place)
            caller = replace(caller, messages=caller.messages[number : number + 1])
        # The sampled token's, which the routes leave out where the client asked for none.
        if params.logprobs is None:
            params.logprobs, params.flat_logprobs = 0, True
        params.prompt_logprobs = None
        # vLLM writes into what it does not copy, and it may be asked twice.
        params.skip_clone = False
        return cls(caller=caller, prompt=prompt, params=params, response_id=response_id, first_choice=number * params.n)


class _Call:
    """The answer to one prompt: all its choices, for its client and for its record."""

    def __init__(self, serving: Serving, asked: _AskedPrompt, reasoning: Mapping[str, Any]) -> None:
        self._serving = serving
        self._asked = asked
        self._reasoning = reasoning
        self._is_final_only = asked.params.output_kind.name == "FINAL_ONLY"
        self._choices = [_Choice(number) for number in range(asked.params.n)]
        self._num_open = len(self._choices)
        self._lasts: list[Any] = []
        self._has_left = False
        self._started_at = utc_now()
        self._started = time.monotonic()
        self._has_begun = False
        self._ending: asyncio.Task[None] | None = None
        self.outputs: asyncio.Queue[Any] = asyncio.Queue()
        """What the client gets, then None; or an exception."""

    async def read(self) -> None:
        """Read all choices to their ends, and record them; whatever is wrong the client is told."""
        try:
            async with asyncio.TaskGroup() as choices:
                for choice in self._choices:
                    choice.task = choices.create_task(self._read(choice))
            if self._num_open and not self._has_left:
                raise RuntimeError("a choice ended without a last output")
            if self._num_open:
                await self._keep()
            self.outputs.put_nowait(None)
        except* Exception as errors:  # noqa: BLE001 (whatever it is, the client is told)
            self._tell(errors.exceptions[0])
        finally:
            if self._ending is not None:
                self._ending.cancel()

    def leave(self) -> None:
        """The client wants no more; it may have got everything."""
        self._has_left = True
        if not self._num_open or self._ending is not None:
            return
        for choice in self._choices:
            if not choice.is_asked and choice.task is not None:
                choice.task.cancel()
        if self._serving.when_client_leaves == "abort":
            asked = [choice.request_id for choice in self._choices if choice.is_asked]
            self._ending = asyncio.create_task(self._serving.engine.keep_aborting(asked))

    async def _read(self, choice: "_Choice") -> None:
        request = StreamRequest(
            request_id=choice.request_id,
            prompt=self._asked.prompt,
            params=_params_of(self._asked.params, choice.number),
            tenant=self._asked.caller.key.tenant,
            ends_at=self._started + self._serving.answer_seconds,
            on_taken_back=TAKEN_BACK.inc,
            reasoning=self._reasoning,
        )
        async with self._serving.lane.place(request.ends_at):
            if self._has_left:
                return
            choice.is_asked = True
            async with aclosing(self._serving.engine.stream(request)) as outputs:
                async for output in outputs:
                    self._note_first_token()
                    choice.add(output.outputs[0])
                    output.outputs[0].index = choice.number
                    await self._give(output)

    async def _give(self, output: Any) -> None:
        """Pass an output on; the last one after the record is kept."""
        if output.finished:
            self._num_open -= 1
        output.finished = is_last = self._num_open == 0
        if self._is_final_only:
            self._lasts.append(output)
            if not is_last:
                return
            output.outputs = sorted((one.outputs[0] for one in self._lasts), key=lambda choice: choice.index)
        if is_last:
            await self._keep()
        if not self._has_left:
            self.outputs.put_nowait(output)

    async def _keep(self) -> None:
        # A choice whose client left before its first token was not answered.
        answered = [choice for choice in self._choices if choice.token_ids]
        if not answered or any(choice.finish_reason is None for choice in answered):
            return
        await self._serving.recorder.keep(_served(self._asked, answered, self._started_at))

    def _note_first_token(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            TIME_TO_FIRST_TOKEN.observe(time.monotonic() - self._started)

    def _tell(self, error: Exception) -> None:
        if self._has_left:
            _LOG.warning("an answer ended after its client had left: %s", type(error).__name__)
        self.outputs.put_nowait(_retryable(error) if isinstance(error, _RETRYABLE) else error)


class _Choice:
    """What was sampled of a choice so far."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.request_id = f"serve-{uuid4().hex}"
        self.task: asyncio.Task[None] | None = None
        self.is_asked = False
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.spans: tuple[WeightSpan, ...] = ()
        self.finish_reason: FinishReason | None = None
        self._texts: deque[str] = deque()
        self._first_at = 0.0

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def add(self, output: Any) -> None:
        """Add an output of vLLM: what is new since the one before, or all at once."""
        if not self.token_ids:
            self._first_at = time.monotonic()
        self.token_ids += output.token_ids
        self.logprobs += logprobs_of(output.logprobs, output.token_ids)
        self._texts.append(output.text)
        if output.finish_reason is None:
            return
        self.finish_reason = _FINISHED.get(output.finish_reason)
        self.spans = spans_of(output)
        if len(self.token_ids) > 1:
            TIME_PER_TOKEN.observe((time.monotonic() - self._first_at) / (len(self.token_ids) - 1))


def _retryable(error: Exception) -> Exception:
    """The same for vLLM's routes, which answer it with 503."""
    from vllm.exceptions import RetryableRequestError

    retryable: Exception = RetryableRequestError(f"{error}: try again")
    return retryable


def _params_of(params: Any, number: int) -> Any:
    """Those of a choice by itself; seeds as vLLM derives them."""
    own = copy(params)
    own.n = 1
    if params.seed is not None:
        own.seed = params.seed + number
    return own


def _served(asked: _AskedPrompt, answered: Sequence[_Choice], started_at: datetime) -> ServedCall:
    return ServedCall(
        response_id=asked.response_id,
        caller=asked.caller,
        prompt_token_ids=np.array(asked.prompt["prompt_token_ids"], dtype=np.int32),
        sampling=as_used(asked.params),
        is_plain=is_plain(asked.params),
        other_sampling=others(asked.params),
        choices=tuple(
            ServedChoice(
                number=asked.first_choice + choice.number,
                token_ids=np.array(choice.token_ids, dtype=np.int32),
                behavior_logprobs=np.array(choice.logprobs, dtype=np.float32),
                weight_spans=choice.spans,
                finish_reason=choice.finish_reason or FinishReason.ABORT,
                text=choice.text,
            )
            for choice in answered
        ),
        started_at=started_at,
        finished_at=utc_now(),
    )
