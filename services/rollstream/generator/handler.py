"""Generates the samples of one prompt: group_size rollouts, each given out as it ends.

Every sample ends as completed, failed or unresolved. Two errors are raised instead: one that an agent's `run` raises
itself, and a dead engine, which ends the process.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime

from rollstream.agents.load import Agents
from rollstream.engines.protocol import Engine
from rollstream.generator import metrics
from rollstream.generator.current_version import CurrentVersion
from rollstream.process.masking import SECRETS
from rollstream.schemas.bounds import MIN_TEMPERATURE
from rollstream.schemas.errors import EngineDeadError, EngineError, FailedSampleError, RecordTooLargeError
from rollstream.schemas.failure import Failure, FailureCode
from rollstream.schemas.ids import new_attempt_id, rollout_id
from rollstream.schemas.prompt import PromptSubmitted, Purpose, Sampling, group_out_of_bounds, out_of_bounds
from rollstream.schemas.record import utc_now
from rollstream.schemas.rollout import GeneratorIdentity, RolloutGenerated, Status, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBounds:
    """How long and how often one sample is tried."""

    deadline_seconds: float
    max_tries: int


class GeneratorHandler:
    """Runs a prompt's agent group_size times side by side. By default there are only the built-in agents."""

    def __init__(
        self,
        engine: Engine,
        *,
        identity: GeneratorIdentity,
        bounds: SampleBounds,
        current: CurrentVersion,
        agents: Agents | None = None,
    ) -> None:
        self._engine = engine
        self._identity = identity
        self._bounds = bounds
        self._current = current
        self._agents = agents or Agents()

    async def handle(self, prompt: PromptSubmitted) -> AsyncGenerator[RolloutGenerated, None]:
        """Give out each sample as it ends. Closing the iterator cancels the samples that still run."""
        refused = out_of_bounds(prompt)  # of a large group the whole prompt is measured: once, not for each sample
        tasks = [asyncio.create_task(self._sample(prompt, index, refused)) for index in _indices(prompt)]
        try:
            for ended in asyncio.as_completed(tasks):
                yield await ended
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def give_up(self, prompt: PromptSubmitted, error: Exception) -> Iterator[RolloutGenerated]:
        """group_size unresolved samples, so that the group closes: a prompt that can be read is never dead-lettered."""
        for index in _indices(prompt):
            failure = _failure(FailureCode.GIVEN_UP, error)
            yield self._record(prompt, index, new_attempt_id(), utc_now(), status=Status.UNRESOLVED, failure=failure)

    def weight(self, prompt: PromptSubmitted) -> int:
        """The largest number of tokens that the samples of a prompt can generate together."""
        return len(_indices(prompt)) * min(prompt.sampling.max_tokens, self._engine.max_model_len)

    async def _sample(self, prompt: PromptSubmitted, index: int, refused: Failure | None) -> RolloutGenerated:
        started, attempt_id = utc_now(), new_attempt_id()
        status, failure, turns = (
            (Status.FAILED, refused, ()) if refused is not None else await self._outcome(prompt, index, attempt_id)
        )
        record = self._record(prompt, index, attempt_id, started, status=status, failure=failure, turns=turns)
        metrics.SAMPLES.labels(status=record.status.value).inc()
        if failure is not None:
            metrics.FAILURES.labels(code=failure.code.value).inc()
        metrics.TOKENS.inc(record.num_completion_tokens)
        return record

    async def _outcome(
        self, prompt: PromptSubmitted, index: int, attempt_id: str
    ) -> tuple[Status, Failure | None, tuple[Turn, ...]]:
        try:
            _refuse_truncated_distribution(prompt)
            async with asyncio.timeout(self._bounds.deadline_seconds):
                turns = await self._turns_with_retries(prompt, index, attempt_id)
        except FailedSampleError as error:
            return Status.FAILED, _failure(FailureCode(error.code), error), ()
        except TimeoutError:
            late = f"not done within {self._bounds.deadline_seconds} s"
            return Status.UNRESOLVED, Failure(code=FailureCode.DEADLINE, message=late), ()
        # A dead engine answers no other sample either: its error must not end as an unresolved sample.
        except EngineDeadError:
            raise
        except EngineError as error:
            return Status.UNRESOLVED, _failure(FailureCode.ENGINE, error), ()
        return Status.COMPLETED, None, turns

    async def _turns_with_retries(self, prompt: PromptSubmitted, index: int, attempt_id: str) -> tuple[Turn, ...]:
        agent = self._agents.make(prompt.agent)
        for number in range(self._bounds.max_tries):
            request_id = f"{rollout_id(prompt.group_id, index)}-{attempt_id}-{number}"
            try:
                async with AsyncExitStack() as stack:
                    if prompt.purpose is Purpose.EVALUATE and prompt.weight_version is not None:
                        await stack.enter_async_context(self._current.on_version(prompt.weight_version))
                    seed = sample_seed(prompt.sampling, index)
                    turns = await agent.run(prompt, self._engine, request_id=request_id, seed=seed)
                _refuse_other_version(prompt, turns)
                return turns
            except EngineDeadError:
                raise
            except EngineError:
                metrics.ENGINE_ERRORS.inc()
                if number + 1 == self._bounds.max_tries:
                    raise
        raise AssertionError("max_tries is at least 1")

    def _record(  # the parts of one record
        self,
        prompt: PromptSubmitted,
        index: int,
        attempt_id: str,
        started: datetime,
        *,
        status: Status,
        failure: Failure | None,
        turns: tuple[Turn, ...] = (),
    ) -> RolloutGenerated:
        return RolloutGenerated(
            rollout_id=rollout_id(prompt.group_id, index),
            attempt_id=attempt_id,
            group_id=prompt.group_id,
            sample_index=index,
            group_size=prompt.group_size,
            prompt=prompt,
            turns=turns,
            status=status,
            failure=failure,
            generator=self._identity,
            started_at=started,
            finished_at=utc_now(),
        )


def _failure(code: FailureCode, error: Exception) -> Failure:
    """What `error` says, for everybody who reads the run's topics: an agent knows secrets of the settings."""
    return Failure(code=code, message=SECRETS.masked(str(error)))


def _indices(prompt: PromptSubmitted) -> range:
    """Which samples of a prompt are answered: all; of a group beyond its bound only one, which says so."""
    return range(prompt.group_size if group_out_of_bounds(prompt) is None else 1)


def sample_seed(sampling: Sampling, sample_index: int) -> int | None:
    """The sample's own seed: 63 bits of sha256(seed, sample_index). None: the engine chooses one."""
    if sampling.seed is None:
        return None
    digest = hashlib.sha256(f"{sampling.seed}/{sample_index}".encode()).digest()
    # 63 bits, because engines take the seed as a signed integer of 64 bits.
    return int.from_bytes(digest[:8], "little") >> 1


def _refuse_truncated_distribution(prompt: PromptSubmitted) -> None:
    """Fail training samples of another distribution than the policy's at the prompt's temperature, e.g. of top_k."""
    sampling = prompt.sampling
    if prompt.purpose is not Purpose.TRAIN:
        return
    if sampling.temperature < MIN_TEMPERATURE or sampling.top_p != 1 or sampling.top_k != 0:
        raise FailedSampleError(
            FailureCode.UNSUPPORTED_SAMPLING,
            f"training needs temperature >= {MIN_TEMPERATURE}, top_p 1 and top_k 0, got "
            f"{sampling.temperature}, {sampling.top_p} and {sampling.top_k}",
        )


def _refuse_other_version(prompt: PromptSubmitted, turns: tuple[Turn, ...]) -> None:
    wanted = prompt.weight_version
    if prompt.purpose is not Purpose.EVALUATE or wanted is None:
        return
    seen = {span.weight_version for turn in turns for span in turn.weight_spans}
    if seen - {wanted}:
        raise FailedSampleError(FailureCode.VERSION_GONE, f"version {wanted} was asked for, {sorted(seen)} answered")


def without_tokens(sample: RolloutGenerated, error: RecordTooLargeError) -> RolloutGenerated:
    """The sample as failed and without its turns, because its record is larger than a message may be."""
    failure = Failure(code=FailureCode.TOO_LARGE, message=str(error))
    return sample.model_copy(update={"turns": (), "status": Status.FAILED, "failure": failure})
