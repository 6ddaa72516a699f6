"""Callers of a generator's endpoint, who say on `feedback` what they think of some answers, as ingest would."""

import asyncio
import random
import threading
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

import httpx

from rollstream.bus.message import OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.bus.run import Run
from rollstream.environments.protocol import Task
from rollstream.environments.sort_digits import SortDigits
from rollstream.schemas.feedback import FeedbackGiven
from rollstream.schemas.record import utc_now
from rollstream.schemas.topics import FEEDBACK
from tests.bench.callers import Callers, is_right

NAME: Final = "callers"
KEY: Final = "key-of-the-callers-of-the-bench"
TENANT: Final = "bench"
_CONCURRENT: Final = 32
_AHEAD_STEPS: Final = 4
"""Callers judge at most so many steps' worth of answers that are not trained yet: else most would be many steps old."""


class CallersOverHttp:
    """Many callers in a thread of their own. They ask until `stop` is called, and wait while training is behind."""

    def __init__(self, run: Run, base_url: str, *, seed: int, num_answers: int) -> None:
        self._run, self._base_url, self._num_answers = run, base_url, num_answers
        self._callers = Callers(random.Random(seed))
        self._tasks = SortDigits().tasks("train", seed)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._ask_all()), name="callers", daemon=True)
        self.step = 0
        """Of the trainer, as the bench sees it."""
        self.num_answered = self.num_judged = self.num_right = self.num_refused = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(timeout=60)

    async def _ask_all(self) -> None:
        headers = {"Authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(base_url=self._base_url, headers=headers, timeout=60) as client:
            with self._run.publisher(NAME) as publisher:
                await asyncio.gather(*(self._ask_for_ever(client, publisher) for _ in range(_CONCURRENT)))

    async def _ask_for_ever(self, client: httpx.AsyncClient, publisher: Publisher) -> None:
        while not self._ended.is_set():
            if self.num_judged >= (self.step + _AHEAD_STEPS) * self._num_answers:
                await asyncio.sleep(0.1)
                continue
            task = next(self._tasks)
            answer = None
            with suppress(httpx.TransportError):
                answer = await client.post("/v1/chat/completions", json=_call(task))
            if answer is None or answer.status_code != httpx.codes.OK:
                self.num_refused += 1
                await asyncio.sleep(0.5)
                continue
            self.num_answered += 1
            await self._judge(task, answer.json(), publisher)

    async def _judge(self, task: Task, answer: dict[str, Any], publisher: Publisher) -> None:
        text = answer["choices"][0]["message"]["content"] or ""
        self.num_right += is_right(task, text)
        if self._callers.judges():
            self.num_judged += 1
            await publisher.publish(self._said(answer["id"], self._callers.thumb(task, text)))

    def _said(self, response_id: str, thumb: float) -> OutRecord:
        now = utc_now()
        given = FeedbackGiven(
            feedback_id=uuid4().hex, response_id=response_id, metric="thumbs", number=thumb,
            client=NAME, tenant=TENANT, given_at=now, submitted_at=now,
        )  # fmt: skip
        codec = self._run.codec(FEEDBACK)
        return OutRecord(topic=self._run.topic(FEEDBACK), key=response_id.encode(), value=codec.encode(given))


def _call(task: Task) -> dict[str, Any]:
    messages = [{"role": message.role, "content": message.content} for message in task.messages]
    return {"model": "policy", "messages": messages, "max_tokens": 12, "temperature": 1.0}
