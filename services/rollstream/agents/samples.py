"""One attempt at one sample of a prompt: its agent runs on an engine, and every outcome becomes a rollout.

A sample ends as completed, failed or unresolved. Two errors are raised instead: one that an agent's `run` raises
itself, and a dead engine. The generator asks prompts of a topic this way, and `collect` the tasks of a file.
"""

import asyncio
import hashlib
import socket
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime

from rollstream.agents.load import Agents
from rollstream.engines.deadline import is_over, requests_end_at, task_ends_at
from rollstream.engines.protocol import Engine
from rollstream.process.masking import SECRETS
from rollstream.schemas.bounds import MIN_TEMPERATURE
from rollstream.schemas.errors import EngineDeadError, EngineError, EngineLateError, FailedSampleError
from rollstream.schemas.failure import Failure, FailureCode
from rollstream.schemas.ids import new_attempt_id, rollout_id
from rollstream.schemas.prompt import PromptSubmitted, Purpose, Sampling
from rollstream.schemas.record import utc_now
from rollstream.schemas.rollout import GeneratorIdentity, RolloutGenerated, Status, Turn

OnVersion = Callable[[int], AbstractAsyncContextManager[None]]
"""Keeps a weight version loaded as long as the block runs; `FailedSampleError` if it can't be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBounds:
    """How long and how often one sample is tried."""

    deadline_seconds: float
    """Then the engine ends what it samples. The tokens so far are the sample's: it is truncated."""
    max_tries: int
    grace_seconds: float = 10.0
    """So much later the sample is unresolved: neither the engine nor the agent has ended."""


@dataclass(eq=False)
class SampleRunner:
    """Runs prompts' agents, sample by sample. By default there are only the built-in agents.

    `on_version`: for evaluation prompts that name a version. `retried` is told of each engine error.
    """

    engine: Engine
    _: KW_ONLY
    identity: GeneratorIdentity
    bounds: SampleBounds
    agents: Agents = field(default_factory=Agents)
    on_version: OnVersion | None = None
    retried: Callable[[], None] = lambda: None

    async def run(self, prompt: PromptSubmitted, index: int, refused: Failure | None = None) -> RolloutGenerated:
        """Sample `index` of the prompt; with `refused` it fails at once, and says so."""
        started, attempt_id = utc_now(), new_attempt_id()
        status, failure, turns = (
            (Status.FAILED, refused, ()) if refused is not None else await self._outcome(prompt, index, attempt_id)
        )
        return self._record(prompt, index, attempt_id, started, status=status, failure=failure, turns=turns)

    def given_up(self, prompt: PromptSubmitted, index: int, error: Exception) -> RolloutGenerated:
        """The sample as unresolved, without a try."""
        failure = failure_of(FailureCode.GIVEN_UP, error)
        return self._record(prompt, index, new_attempt_id(), utc_now(), status=Status.UNRESOLVED, failure=failure)

    async def _outcome(
        self, prompt: PromptSubmitted, index: int, attempt_id: str
    ) -> tuple[Status, Failure | None, tuple[Turn, ...]]:
        late = f"not done within {self.bounds.deadline_seconds} s"
        ends_at = time.monotonic() + self.bounds.deadline_seconds
        try:
            refuse_truncated_distribution(prompt)
            with requests_end_at(ends_at):
                async with asyncio.timeout(self.bounds.deadline_seconds + self.bounds.grace_seconds):
                    turns = await self._turns_with_retries(prompt, index, attempt_id)
        except FailedSampleError as error:
            return Status.FAILED, failure_of(FailureCode(error.code), error), ()
        except TimeoutError:
            return Status.UNRESOLVED, Failure(code=FailureCode.DEADLINE, message=late), ()
        # A dead engine answers no other sample either: its error must not end as an unresolved sample.
        except EngineDeadError:
            raise
        except EngineLateError as error:
            said = EngineLateError(f"{late}: {error}") if is_over(ends_at) else error
            return Status.UNRESOLVED, failure_of(FailureCode.DEADLINE, said), ()
        except EngineError as error:
            return Status.UNRESOLVED, failure_of(FailureCode.ENGINE, error), ()
        return Status.COMPLETED, None, turns

    async def _turns_with_retries(self, prompt: PromptSubmitted, index: int, attempt_id: str) -> tuple[Turn, ...]:
        agent = self.agents.make(prompt.agent)
        for number in range(self.bounds.max_tries):
            request_id = f"{rollout_id(prompt.group_id, index)}-{attempt_id}-{number}"
            try:
                async with AsyncExitStack() as stack:
                    wanted = wanted_version(prompt)
                    if wanted is not None and self.on_version is not None:
                        await stack.enter_async_context(self.on_version(wanted))
                    seed = sample_seed(prompt.sampling, index)
                    turns = await agent.run(prompt, self.engine, request_id=request_id, seed=seed)
                _refuse_other_version(prompt, turns)
                return turns
            except EngineDeadError:
                raise
            except EngineError:
                if is_over(task_ends_at()):  # most likely no fault of the engine's
                    raise
                self.retried()
                if number + 1 == self.bounds.max_tries:
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
            generator=self.identity,
            started_at=started,
            finished_at=utc_now(),
        )


def identity_of(engine: Engine, generator_id: str) -> GeneratorIdentity:
    """Who generates with this engine, on this machine."""
    return GeneratorIdentity(
        generator_id=generator_id,
        engine=engine.name,
        engine_version=engine.version,
        host=socket.gethostname(),
        tokenizer_sha256=engine.tokenizer_sha256,
        chat_template_sha256=engine.chat_template_sha256,
    )


def failure_of(code: FailureCode, error: Exception) -> Failure:
    """What `error` says, for everybody who reads the run's topics: an agent knows secrets of the settings."""
    return Failure(code=code, message=SECRETS.masked(str(error)))


def sample_seed(sampling: Sampling, sample_index: int) -> int | None:
    """The sample's own seed: 63 bits of sha256(seed, sample_index). None: the engine chooses one."""
    if sampling.seed is None:
        return None
    digest = hashlib.sha256(f"{sampling.seed}/{sample_index}".encode()).digest()
    # 63 bits, because engines take the seed as a signed integer of 64 bits.
    return int.from_bytes(digest[:8], "little") >> 1


def wanted_version(prompt: PromptSubmitted) -> int | None:
    """The weight version that must answer an evaluation prompt; None if any may."""
    return prompt.weight_version if prompt.purpose is Purpose.EVALUATE else None


def refuse_truncated_distribution(prompt: PromptSubmitted) -> None:
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
    wanted = wanted_version(prompt)
    if wanted is None:
        return
    seen = {span.weight_version for turn in turns for span in turn.weight_spans}
    if seen - {wanted}:
        raise FailedSampleError(FailureCode.VERSION_GONE, f"version {wanted} was asked for, {sorted(seen)} answered")
