"""Updates are invisible to clients: no answer is empty, none ends in `abort`, and each token is in the records.

Many callers ask on all routes, with one choice or two. Some leave. Versions with unrelated weights come meanwhile.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from rollstream.generator.serve.call import ServedCall
from rollstream.schemas.rollout import FinishReason
from tests.harness import serving
from tests.harness.engine_fixtures import EngineHosts, TwoVersions
from tests.harness.engine_host import START_VERSION
from tests.harness.late import Late
from tests.harness.teacher_forcing import forced_logprobs

anthropic = Late("anthropic")
openai = Late("openai")

NUM_CALLERS = 48
LEAVING = 0.4
FIRST = START_VERSION + 100
EVERY_SECONDS = 0.25


class Callers:
    """What the callers saw: response id → texts of the choices of whole answers; ids of which a token was seen."""

    def __init__(self, url: str, seed: int) -> None:
        self._random = random.Random(seed)
        self._openai: Any = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=serving.KEY, max_retries=0)
        self._anthropic: Any = anthropic.AsyncAnthropic(base_url=url, api_key=serving.KEY, max_retries=0)
        self.whole: dict[str, list[str]] = {}
        self.reasons: set[str] = set()
        self.begun: set[str] = set()

    async def ask(self, num_calls: int) -> None:
        """The calls of one caller, one after another."""
        for _ in range(num_calls):
            asked = {
                "model": serving.MODEL,
                "messages": [{"role": "user", "content": f"{self._random.randrange(10**6)}="}],
                "max_tokens": self._random.randrange(20, 60),
            }
            route = self._random.choice([self._streamed, self._whole, self._message])
            await route(asked, leaves=self._random.random() < LEAVING)

    async def close(self) -> None:
        await self._openai.close()
        await self._anthropic.close()

    async def _streamed(self, asked: dict[str, Any], *, leaves: bool) -> None:
        num_choices = self._random.choice([1, 2])
        stream = await self._openai.chat.completions.create(**asked, n=num_choices, stream=True)
        texts, left = [""] * num_choices, self._random.randrange(1, 20)
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                if choice.delta.content:
                    self.begun.add(chunk.id)
                    left -= 1
                if choice.finish_reason:
                    self.reasons.add(choice.finish_reason)
            if leaves and left <= 0:
                await stream.close()
                return
        self.whole[chunk.id] = texts

    async def _whole(self, asked: dict[str, Any], *, leaves: bool) -> None:
        call = self._openai.chat.completions.create(**asked, n=self._random.choice([1, 2]))
        with suppress(TimeoutError):
            answer = await asyncio.wait_for(call, self._random.uniform(0, 0.5) if leaves else None)
            self.whole[answer.id] = [choice.message.content for choice in answer.choices]
            self.reasons.update(choice.finish_reason for choice in answer.choices)

    async def _message(self, asked: dict[str, Any], *, leaves: bool) -> None:
        call = self._anthropic.messages.create(**asked)
        with suppress(TimeoutError):
            answer = await asyncio.wait_for(call, self._random.uniform(0, 0.5) if leaves else None)
            self.whole[answer.id] = ["".join(part.text for part in answer.content)]
            self.reasons.add({"max_tokens": "length", "end_turn": "stop"}[answer.stop_reason])


@pytest.mark.parametrize(
    ("name", "num_calls"),
    [
        ("vllm-tied-keep", 3),
        pytest.param("vllm-tied-keep", 40, marks=pytest.mark.slow),
        pytest.param("vllm-untied-recompute", 10, marks=pytest.mark.slow),
    ],
)
def test_answers_are_whole_and_recorded_exactly_over_many_updates(
    name: str, num_calls: int, engine_hosts: EngineHosts
) -> None:
    host, versions = engine_hosts.get(name), engine_hosts.versions(name)
    host.run(serving.load, FIRST - 1, versions.new)
    url = host.run(serving.serve, host.settings, {})
    callers = Callers(url, seed=num_calls)

    began = time.monotonic()

    async def under_updates() -> int:
        asking = [asyncio.create_task(callers.ask(num_calls)) for _ in range(NUM_CALLERS)]
        num_versions = 0
        while not all(task.done() for task in asking):
            # By the clock: a load takes a part of the time between two.
            await asyncio.sleep(max(0.0, began + num_versions * EVERY_SECONDS - time.monotonic()))
            path = (versions.old, versions.new)[num_versions % 2]
            await asyncio.to_thread(host.run, serving.load, FIRST + num_versions, path)
            num_versions += 1
        await asyncio.gather(*asking)
        await callers.close()
        return num_versions

    num_versions = asyncio.run(under_updates())
    print(f"{num_versions / (time.monotonic() - began):.2f} versions a second")  # noqa: T201 (the figure of a campaign)
    calls: Sequence[ServedCall] = host.run(serving.recorded)
    host.run(serving.close)
    assert num_versions >= 2
    _assert_recorded(callers, {call.response_id: call for call in calls}, num_records=len(calls))
    _assert_right(calls, versions)


def _assert_recorded(callers: Callers, calls: dict[str, ServedCall], *, num_records: int) -> None:
    assert len(calls) == num_records, "a response was recorded twice"
    assert callers.reasons <= {"stop", "length"}
    assert callers.begun | callers.whole.keys() <= calls.keys()
    for response_id, texts in callers.whole.items():
        choices = calls[response_id].choices
        assert [choice.text for choice in choices] == texts
        assert FinishReason.ABORT not in {choice.finish_reason for choice in choices}
    for call in calls.values():
        assert call.choices
        for choice in call.choices:
            assert len(choice.token_ids) == len(choice.behavior_logprobs) == choice.weight_spans[-1].end > 0


def _assert_right(calls: Sequence[ServedCall], versions: TwoVersions) -> None:
    """The first span of each choice is of the weights that it names: also its prompt was read by them."""
    for call in calls:
        for choice in call.choices:
            first = choice.weight_spans[0]
            # Versions alternate, and the first is old.
            path = versions.old if (first.weight_version - FIRST) % 2 == 0 else versions.new
            tokens = choice.token_ids[: first.end]
            right = forced_logprobs(path, call.prompt_token_ids, tokens, call.sampling.temperature)
            assert np.abs(right - choice.behavior_logprobs[: first.end]).max() <= 1e-4
