"""Calls the user's functions from an event loop: sync or async, within a deadline, and again after a failure."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from tenacity import AsyncRetrying

from rollstream.schemas.errors import EngineError, EngineLateError
from rollstream.training.rollout_gen.groups import given_up, may_pass, retrying, with_own_reward, with_reward
from rollstream.training.types import RolloutConfig, Sample, ScoreFn


class FunctionCalls:
    """The functions of the settings, for one manager. What is not async runs in a thread, one call at a time."""

    def __init__(self, config: RolloutConfig) -> None:
        self._config = config
        self._thread_is_taken = threading.Lock()

    async def retried(self, name: str, function: Callable[..., Any], *arguments: Any, about: Sample) -> Any:
        """What the async `function` returns, in as many attempts as it takes. `name` and `about` are for the error."""
        try:
            return await AsyncRetrying(**retrying(self._config))(function, *arguments)
        except Exception as error:
            if not may_pass(error):
                raise
            raise given_up(error, name, about, self._config) from error

    async def scored(self, samples: Sequence[Sample], reward_fn: ScoreFn | None) -> list[Sample]:
        """The samples with their rewards, in their order. Raises `RewardError`, with the sample named."""
        if reward_fn is None:
            return [with_own_reward(sample) for sample in samples]

        async def scored(sample: Sample) -> Sample:
            call = self.retried("reward_fn", self.called, "reward_fn", reward_fn, sample, about=sample)
            return with_reward(sample, await call)

        if not is_async(reward_fn):
            return [await scored(sample) for sample in samples]
        return await _side_by_side([scored(sample) for sample in samples])

    async def called(self, name: str, function: Callable[[Any], Any], argument: Any) -> Any:
        """What a function answers. Raises `EngineLateError` past `timeout`, `EngineError` if it cancelled itself."""
        try:
            async with asyncio.timeout(self._config.timeout) as deadline:
                answer = function(argument) if is_async(function) else await self._in_thread(function, argument)
                return await answer if isawaitable(answer) else answer
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise EngineError(f"{name} was cancelled, by nobody outside it") from error
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise EngineLateError(f"{name} gave no answer within `timeout`, {self._config.timeout:g} s") from error

    async def _in_thread(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """In a thread that ends with the process: a call that hangs can be given up, but not stopped."""
        answer: Future[Any] = Future()

        def work() -> None:
            with self._thread_is_taken:
                if answer.set_running_or_notify_cancel():
                    try:
                        answer.set_result(function(argument))
                    except StopIteration as error:
                        # No future takes it: it would never come to whoever waits.
                        answer.set_exception(RuntimeError(f"{error!r} was raised where an iterator was empty"))
                    except BaseException as error:  # noqa: BLE001 (raised to whoever waits for the answer)
                        answer.set_exception(error)

        threading.Thread(target=work, name="rollouts", daemon=True).start()
        return await asyncio.wrap_future(answer)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it only begins its work, also for an object that is called."""
    return iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


async def _side_by_side(calls: list[Coroutine[Any, Any, Sample]]) -> list[Sample]:
    """All results in order, or the first error as it is."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(call) for call in calls]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return [task.result() for task in running]
