"""Routes for engines that have none of their own: chat completions, and the list of models.

The answer comes as a whole, since `Engine.generate` gives whole answers. A task of its own answers a call. If the
client leaves, the task is cancelled, or ends as the settings say: there is nothing to record before an answer is whole.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray
from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope

from rollstream.engines.protocol import Engine, Generation, GenerationRequest
from rollstream.generator.serve.asking import MODELS, refuse, send_whole
from rollstream.generator.serve.call import CALLER, Caller, Recorder, ServedCall, ServedChoice
from rollstream.generator.serve.lane import ServingLane
from rollstream.generator.serve.metrics import TIME_TO_FIRST_TOKEN
from rollstream.generator.serve.plain_chat import ChatAnswer, ChatCall
from rollstream.generator.serve.said import CHAT
from rollstream.generator.serve.settings import ServeSettings
from rollstream.http.middleware import json_of
from rollstream.schemas.errors import EngineError, FailedSampleError, SpoolFullError
from rollstream.schemas.prompt import Sampling
from rollstream.schemas.record import utc_now


@dataclass(frozen=True, slots=True, kw_only=True)
class _AskedChat:
    """A call, ready for the engine."""

    response_id: str
    caller: Caller
    prompt_token_ids: NDArray[np.int32]
    sampling: Sampling
    num_choices: int
    started_at: datetime
    ends_at: float


class PlainRoutes:
    """An ASGI application behind `CallLayer`."""

    def __init__(
        self, engine: Engine, lane: ServingLane, recorder: Recorder, settings: ServeSettings, model: str
    ) -> None:
        self._engine = engine
        self._lane = lane
        self._recorder = recorder
        self._model = model
        self._aborts = settings.when_client_leaves == "abort"
        self._answer_seconds = settings.answer_seconds
        self._answering: set[asyncio.Task[Any]] = set()

    async def settled(self) -> None:
        """Wait until no answer is in work."""
        while self._answering:
            await asyncio.wait(list(self._answering))

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        if scope["path"] == MODELS:
            listed = {"id": self._model, "object": "model", "created": 0, "owned_by": "rollstream"}
            await send_whole(send, json.dumps({"object": "list", "data": [listed]}).encode())
            return
        if scope["path"] != CHAT:
            await refuse(scope, send, HTTPStatus.NOT_FOUND, f"this engine has the routes {CHAT} and {MODELS}")
            return
        try:
            call = ChatCall.read(json_of(scope), is_plain=_is_plain(CALLER.get()))
            asked = self._asked(call, CALLER.get())
            answer = await self._unless_left(self._answer(asked), receive)
        except (ValueError, FailedSampleError) as error:
            await refuse(scope, send, HTTPStatus.BAD_REQUEST, str(error))
        except EngineError:
            await refuse(scope, send, HTTPStatus.SERVICE_UNAVAILABLE, "the engine did not answer: try again")
        except SpoolFullError as error:
            await refuse(scope, send, HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        else:
            if answer is not None:
                await self._send(call, asked, answer, send)

    def _asked(self, call: ChatCall, caller: Caller) -> _AskedChat:
        """Raises `ValueError` for a call that this model can't answer."""
        if call.model != self._model:
            raise ValueError(f"this server has the model {self._model!r} alone: ask for it")
        prompt = self._engine.tokenize(caller.messages, caller.tools)
        tokens = np.zeros(0, dtype=np.int32) if prompt is None else prompt
        room = self._engine.max_model_len - len(tokens)
        if room < 1:
            raise ValueError(
                f"the prompt has {len(tokens)} tokens, and the model takes {self._engine.max_model_len} with the "
                "answer: shorten it"
            )
        return _AskedChat(
            response_id=f"chatcmpl-{uuid4().hex}",
            caller=caller,
            prompt_token_ids=tokens,
            sampling=call.sampling(is_plain=_is_plain(caller), room=room),
            num_choices=call.n or 1,
            started_at=utc_now(),
            ends_at=time.monotonic() + self._answer_seconds,
        )

    async def _unless_left(
        self, answer: Awaitable[Sequence[Generation]], receive: ASGIReceiveCallable
    ) -> Sequence[Generation] | None:
        """What `answer` gives; None if the client leaves before."""
        answering = asyncio.ensure_future(answer)
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            return answering.result() if answering.done() else None
        finally:
            leaving.cancel()
            if self._aborts:
                answering.cancel()

    async def _answer(self, asked: _AskedChat) -> Sequence[Generation]:
        try:
            async with asyncio.TaskGroup() as group:
                choices = [group.create_task(self._choice(asked, number)) for number in range(asked.num_choices)]
        except* (ValueError, FailedSampleError, EngineError) as errors:
            raise errors.exceptions[0] from None
        answers = [choice.result() for choice in choices]
        TIME_TO_FIRST_TOKEN.observe((utc_now() - asked.started_at).total_seconds())
        await self._recorder.keep(_served(asked, answers))
        return answers

    async def _choice(self, asked: _AskedChat, number: int) -> Generation:
        seed = asked.sampling.seed
        async with self._lane.place(asked.ends_at):
            return await self._engine.generate(
                GenerationRequest(
                    request_id=f"{asked.response_id}-{number}",
                    prompt_token_ids=asked.prompt_token_ids,
                    sampling=asked.sampling,
                    max_tokens=asked.sampling.max_tokens,
                    seed=None if seed is None else seed + number,
                    messages=asked.caller.messages,
                    tools=asked.caller.tools,
                    ends_at=asked.ends_at,
                )
            )

    async def _send(
        self, call: ChatCall, asked: _AskedChat, answers: Sequence[Generation], send: ASGISendCallable
    ) -> None:
        answer = ChatAnswer(
            response_id=asked.response_id,
            created=int(time.time()),
            model=self._model,
            num_prompt_tokens=len(asked.prompt_token_ids),
            choices=answers,
        )
        if call.stream:
            has_usage = bool((call.stream_options or {}).get("include_usage"))
            await send_whole(send, answer.events(has_usage=has_usage), content_type=b"text/event-stream")
        else:
            await send_whole(send, answer.whole())


async def _left(receive: ASGIReceiveCallable) -> None:
    """Wait until the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _is_plain(caller: Caller) -> bool:
    return caller.key.sampling == "plain"


def _served(asked: _AskedChat, answers: Sequence[Generation]) -> ServedCall:
    sampling = asked.sampling
    has_tokens = all(len(answer.token_ids) for answer in answers)
    return ServedCall(
        response_id=asked.response_id,
        caller=asked.caller,
        prompt_token_ids=asked.prompt_token_ids,
        sampling=sampling,
        # A text without tokens never trains.
        is_plain=has_tokens and sampling.is_plain,
        other_sampling="",
        choices=tuple(
            ServedChoice(
                number=number,
                token_ids=answer.token_ids,
                behavior_logprobs=answer.behavior_logprobs,
                weight_spans=answer.weight_spans,
                finish_reason=answer.finish_reason,
                text=answer.text,
            )
            for number, answer in enumerate(answers)
        ),
        started_at=asked.started_at,
        finished_at=utc_now(),
    )
