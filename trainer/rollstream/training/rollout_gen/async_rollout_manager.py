"""`AsyncRolloutManager`: whole groups of samples, generated side by side and over-sampled, in batches."""

import asyncio
from collections.abc import Sequence
from typing import Any, Self

from rollstream.schemas.errors import BadMessageError, ConfigurationError
from rollstream.training.datasets.data_buffer import DataBuffer
from rollstream.training.rollout_gen.calling import FunctionCalls, is_async
from rollstream.training.rollout_gen.groups import RolloutGroup, Selection, Slot, calls_for, new_groups, settle
from rollstream.training.types import RolloutBatch, RolloutConfig, Sample, ScoreFn


class AsyncRolloutManager:
    """Asks for groups, keeps what is finished, and hands out batches; what is too much begins the next batch.

    Within `async with` answers that a batch did not wait for go on while the caller trains. Leaving it, also by an
    error, cancellation or Ctrl-C, stops them: finished groups are kept, and the other prompts are asked again by the
    next batch or, after `state_dict` and `load_state_dict`, by the next process. It may be entered again, and within
    itself. Without it, `generate_batch` enters it for its own time.
    """

    def __init__(self, buffer: DataBuffer, config: RolloutConfig) -> None:
        self.buffer = buffer
        self.config = config
        self._pending: dict[int, RolloutGroup] = {}
        self._finished: list[RolloutGroup] = []
        """In the order in which they came."""
        self._asked: set[Slot] = set()
        self._running: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._depth = 0
        self._calls = FunctionCalls(config)

    async def __aenter__(self) -> Self:
        if not self._depth:
            self._changed, self._one_batch = asyncio.Event(), asyncio.Lock()
            self._tasks = await asyncio.TaskGroup().__aenter__()
        self._depth += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth or self._tasks is None:
            return
        tasks, self._tasks = self._tasks, None
        self._changed.set()
        for task in self._running:
            task.cancel()
        # Without the error of the block, which the group would wrap.
        await tasks.__aexit__(None, None, None)
        self._asked.clear()

    async def generate_batch(self, reward_fn: ScoreFn | None = None) -> RolloutBatch:
        """The next batch: what was left over first, then groups in the order in which they are finished.

        `reward_fn` replaces that of the settings for this batch. Cancelling the call loses nothing. Raises
        `EngineError` or `RewardError` once a function has failed for too often, `RewardError` for a sample without
        reward, `ConfigurationError` where the filters leave too few groups.
        """
        if self._tasks is None:
            async with self:
                return await self.generate_batch(reward_fn)
        async with self._one_batch:
            self._failure = None
            selection = Selection(self.config)
            while selection.missing:
                self._request_more(selection)
                if not await self._next_is_finished(selection):
                    break
                await self._judge_finished(selection, reward_fn or self.config.reward_fn)
            batch = selection.batch(waiting=len(self._pending) + len(self._finished) - len(selection.kept))
            del self._finished[: len(selection.kept)]
            return batch

    def state_dict(self) -> dict[str, Any]:
        """The buffer's state, and every group that was asked for and not returned in a batch; plain data."""
        groups = [*self._finished, *self._pending.values()]
        return {
            "buffer": self.buffer.save_state(),
            "groups": [[sample.to_dict() for sample in group.samples] for group in groups],
        }

    def load_state_dict(self, state: object) -> None:
        """Goes on where `state_dict` was called, instead of where it is. The buffer needs the same prompts.

        Raises `BadMessageError` for what cannot be such a state, and then changes nothing.
        """
        if self._running:
            raise ConfigurationError(
                "load_state_dict was called while samples are generated: call it before `async with`"
            )
        if not isinstance(state, dict) or set(state) != {"buffer", "groups"} or not isinstance(state["groups"], list):
            raise BadMessageError("the state of a rollout manager is a dict with the fields buffer and groups")
        before = self.buffer.save_state()
        try:
            self.buffer.load_state(state["buffer"])
            groups = {group.index: group for group in map(self._stored_group, state["groups"])}
            if len(groups) < len(state["groups"]):
                raise BadMessageError("two groups in the state of a rollout manager have the same group_index")
        except BaseException:
            self.buffer.load_state(before)
            raise
        self._finished = [group for group in groups.values() if group.is_finished]
        self._pending = {index: group for index, group in groups.items() if not group.is_finished}

    def _stored_group(self, stored: object) -> RolloutGroup:
        samples = [Sample.from_dict(one) for one in stored] if isinstance(stored, list) else []
        places = [(sample.group_index, sample.index, sample.prompt) for sample in samples]
        size = self.config.n_samples_per_prompt
        if not samples or places != [(samples[0].group_index, index, samples[0].prompt) for index in range(size)]:
            raise BadMessageError(
                f"a stored group of {len(samples)} samples does not fit: it has one prompt, one group_index, and index "
                f"from 0 below n_samples_per_prompt, {size}; set that as it was when the state was saved"
            )
        index = samples[0].group_index
        if index is None or index >= self.buffer.position or samples[0].prompt not in self.buffer.prompts:
            raise BadMessageError(
                f"{samples[0]} was never asked for: group_index must be below {self.buffer.position}, the buffer's "
                f"position, and the prompt one of its {len(self.buffer.prompts)}: load the state with the prompts that "
                "it was saved with"
            )
        return RolloutGroup(index, samples)

    def _request_more(self, selection: Selection) -> None:
        """Asks for what the batch lacks, and again for what is unfinished and not asked for."""
        if self._tasks is None:
            raise asyncio.CancelledError("the rollout manager was left while a batch was made")
        if self._failure is not None:
            raise self._failure
        in_play = len(self._finished) - len(selection.kept) + len(self._pending)
        if count := selection.to_request(in_play):
            self._pending |= {group.index: group for group in new_groups(self.buffer, count, self.config)}
        slots = [slot for group in self._pending.values() for slot in group.slots if slot not in self._asked]
        each_alone = is_async(self.config.generate_fn)
        for together in [[slot] for slot in slots] if each_alone else [slots] * bool(slots):
            self._asked.update(together)
            task = self._tasks.create_task(self._fill(together))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _next_is_finished(self, selection: Selection) -> bool:
        """Waits until there may be a finished group that was not judged. False: none will come."""
        if len(self._finished) > len(selection.kept):
            return True
        if not self._pending:
            return False
        await self._changed.wait()
        self._changed.clear()
        return True

    async def _judge_finished(self, selection: Selection, reward_fn: ScoreFn | None) -> None:
        """Scores and judges finished groups. Those that are kept stay first in the list until the batch is returned."""
        begin = len(selection.kept)
        ready = self._finished[begin : begin + selection.missing]
        samples = iter(await self._calls.scored([sample for group in ready for sample in group.samples], reward_fn))
        for group in ready:
            group.samples = [next(samples) for _ in group.samples]
            if not selection.judge(group):
                self._finished.remove(group)

    async def _fill(self, slots: list[Slot]) -> None:
        """Asks for these samples until they are finished."""
        try:
            group, place = slots[0]
            await self._calls.retried("generate_fn", self._ask, slots, about=group.samples[place])
        except Exception as error:  # noqa: BLE001 (raised to whoever waits for a batch, beside the other groups)
            self._failure = self._failure or error
        finally:
            self._asked.difference_update(slots)
            self._changed.set()

    async def _ask(self, slots: list[Slot]) -> None:
        for name, argument, asked in calls_for(slots, self.config):
            answers = await self._calls.called(name, getattr(self.config, name), argument)
            try:
                settle(asked, answers, name)
            finally:
                self._collect(asked)

    def _collect(self, slots: Sequence[Slot]) -> None:
        for group, _ in slots:
            if group.is_finished and group.index in self._pending:
                self._finished.append(self._pending.pop(group.index))
        self._changed.set()
        if self._tasks is None:
            # A function may end its cancellation by what it has so far; it is not asked again.
            raise asyncio.CancelledError
