"""One attempt at one sample of a prompt: its agent runs on an engine, and every outcome becomes a rollout.

A sample ends as completed, failed or unresolved. Two errors are raised instead: one that an agent's `run` raises
itself, and a dead engine. The generator asks prompts of a topic this way, and `collect` the tasks of a file.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Final

from rollstream.agents.journal import SampleJournal
from rollstream.agents.load import Agents
from rollstream.agents.model_calls import ModelCalls
from rollstream.agents.protocol import Agent
from rollstream.agents.session import BeganAnew, Session
from rollstream.agents.tool_sessions import close_left, keep_verdict, opened_tools
from rollstream.engines.deadline import is_over, requests_end_at
from rollstream.engines.protocol import Engine
from rollstream.process.masking import SECRETS
from rollstream.schemas.bounds import MIN_TEMPERATURE
from rollstream.schemas.errors import (
    DivergedError,
    EngineDeadError,
    EngineError,
    EngineLateError,
    FailedSampleError,
    FencedToolError,
    NoRoomError,
    ToolError,
)
from rollstream.schemas.failure import Failure, FailureCode
from rollstream.schemas.ids import new_attempt_id, rollout_id
from rollstream.schemas.prompt import PromptSubmitted, Purpose
from rollstream.schemas.record import utc_now
from rollstream.schemas.rollout import GeneratorIdentity, RolloutGenerated, Status, Turn
from rollstream.tools.protocol import ToolSet

OnVersion = Callable[[int], AbstractAsyncContextManager[None]]
"""Keeps a weight version loaded as long as the block runs; `FailedSampleError` if it can't be had."""

# Another process has the sample's prompt. This one, which was suspended, soon notices that and breaks the sample off.
# What it published of it until then would count beside the other's.
_FENCED_SECONDS: Final = 60.0
_UNRESOLVED: Final = {
    EngineError: FailureCode.ENGINE,
    ToolError: FailureCode.TOOL,
    DivergedError: FailureCode.DIVERGED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBounds:
    """How long and how often one sample is tried."""

    deadline_seconds: float
    """Then the engine ends what it samples. The tokens so far are the sample's: it is truncated."""
    max_tries: int
    grace_seconds: float = 10.0
    """So much later the sample is unresolved: neither the engine nor the agent has ended."""
    piece_tokens: int = 0
    """A longer turn is kept in its journal after each so many tokens; 0: only when it ends."""


@dataclass(eq=False)
class SampleRunner:
    """Runs prompts' agents, sample by sample. By default there are only the built-in agents.

    `others`: models beside the policy that agents may ask, by name.
    `on_version`: for evaluation prompts that name a version. `retried` is told of each engine error, and
    `began_anew` of each later turn that does not go on from sampled tokens, with the reason.
    """

    engine: Engine
    _: KW_ONLY
    identity: GeneratorIdentity
    bounds: SampleBounds
    agents: Agents = field(default_factory=Agents)
    tools: Mapping[str, ToolSet] = field(default_factory=dict)
    others: Mapping[str, Engine] = field(default_factory=dict)
    on_version: OnVersion | None = None
    retried: Callable[[], None] = lambda: None
    began_anew: Callable[[BeganAnew], None] = lambda _: None

    async def run(
        self,
        prompt: PromptSubmitted,
        index: int,
        refused: Failure | None = None,
        journal: SampleJournal | None = None,
    ) -> RolloutGenerated:
        """Sample `index` of the prompt; with `refused` it fails at once, and says so.

        With a journal it goes on where earlier attempts left it.
        """
        started, attempt_id = utc_now(), new_attempt_id() if journal is None else journal.attempt_id
        session = self._session(prompt, index, attempt_id)
        session.journal = journal
        status, failure = (Status.FAILED, refused) if refused is not None else await self._outcome(session)
        return self._record(session, attempt_id, started, status=status, failure=failure)

    def given_up(self, prompt: PromptSubmitted, index: int, error: Exception) -> RolloutGenerated:
        """The sample as unresolved, without a try."""
        attempt_id, failure = new_attempt_id(), failure_of(FailureCode.GIVEN_UP, error)
        session = self._session(prompt, index, attempt_id)
        return self._record(session, attempt_id, utc_now(), status=Status.UNRESOLVED, failure=failure)

    async def close_left(self, prompt: PromptSubmitted, index: int, journal: SampleJournal) -> None:
        """Close the session of tools that an earlier attempt at the sample left open."""
        session = self._session(prompt, index, journal.attempt_id)
        session.journal = journal
        await close_left(self.tools, session)

    def _session(self, prompt: PromptSubmitted, index: int, attempt_id: str) -> Session:
        calls = ModelCalls(
            self.engine,
            name=f"{rollout_id(prompt.group_id, index)}-{attempt_id}",
            sample_index=index,
            max_tries=self.bounds.max_tries,
            retried=self.retried,
            piece_tokens=self.bounds.piece_tokens,
        )
        return Session(prompt, calls, began_anew=self.began_anew, others=self.others)

    async def _outcome(self, session: Session) -> tuple[Status, Failure | None]:
        late = f"not done within {self.bounds.deadline_seconds} s"
        ends_at = time.monotonic() + self.bounds.deadline_seconds
        try:
            with requests_end_at(ends_at):
                async with asyncio.timeout(self.bounds.deadline_seconds + self.bounds.grace_seconds) as bound:
                    session.is_late = bound.expired
                    await self._run_agent(session)
        except FailedSampleError as error:
            return Status.FAILED, failure_of(FailureCode(error.code), error)
        except TimeoutError:
            return Status.UNRESOLVED, Failure(code=FailureCode.DEADLINE, message=late)
        # A dead engine answers no other sample either: its error must not end as an unresolved sample.
        except EngineDeadError:
            raise
        except EngineLateError as error:
            said = EngineLateError(f"{late}: {error}") if is_over(ends_at) else error
            return Status.UNRESOLVED, failure_of(FailureCode.DEADLINE, said)
        except FencedToolError as error:
            if session.journal is not None:
                await asyncio.sleep(_FENCED_SECONDS)
            return Status.UNRESOLVED, failure_of(FailureCode.TOOL, error)
        except (EngineError, ToolError, DivergedError) as error:
            code = next(code for kind, code in _UNRESOLVED.items() if isinstance(error, kind))
            return Status.UNRESOLVED, failure_of(code, error)
        return Status.COMPLETED, None

    async def _run_agent(self, session: Session) -> None:
        prompt = session.prompt
        agent = self.agents.make(prompt.agent)
        if not getattr(agent, "chooses_sampling", False):
            refuse_truncated_distribution(prompt)
        async with AsyncExitStack() as stack:
            wanted = wanted_version(prompt)
            if wanted is not None and self.on_version is not None:
                await stack.enter_async_context(self.on_version(wanted))
            await self._go_on(agent, session)
        _refuse_other_version(prompt, session.turns)
        _refuse_untrainable(prompt, session.turns)

    async def _go_on(self, agent: Agent, session: Session) -> None:
        """Take what earlier attempts left of the sample, and run its agent for the rest."""
        journal = session.journal
        if journal is not None and journal.earlier.ended is not None:
            session.turns = [one.turn for one in journal.earlier.turns if one.turn is not None]
            session.observations = dict(journal.earlier.ended.observations)
            journal.give_back(journal.earlier.num_tokens)
            await close_left(self.tools, session)
            return
        try:
            await self._attempt(agent, session)
        except DivergedError:
            if session.has_called_for_good:
                raise
            session.begin_anew()
            await self._attempt(agent, session)

    async def _attempt(self, agent: Agent, session: Session) -> None:
        async with AsyncExitStack() as stack:
            if tool_set := getattr(agent, "tool_set", ""):
                session.tool_session = await stack.enter_async_context(opened_tools(self.tools, tool_set, session))
            # Cut off: what there is, is the sample.
            with suppress(NoRoomError):
                await agent.run(session)
            await keep_verdict(session)
            await session.end()

    def _record(
        self, session: Session, attempt_id: str, started: datetime, *, status: Status, failure: Failure | None
    ) -> RolloutGenerated:
        prompt, index = session.prompt, session.calls.sample_index
        return RolloutGenerated(
            rollout_id=rollout_id(prompt.group_id, index),
            attempt_id=attempt_id,
            group_id=prompt.group_id,
            sample_index=index,
            group_size=prompt.group_size,
            prompt=prompt,
            turns=tuple(session.turns),
            observations=session.observations,
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
        renderer=engine.renderer,
    )


def failure_of(code: FailureCode, error: Exception) -> Failure:
    """What `error` says, for everybody who reads the run's topics: an agent knows secrets of the settings."""
    return Failure(code=code, message=SECRETS.masked(str(error)))


def wanted_version(prompt: PromptSubmitted) -> int | None:
    """The weight version that must answer an evaluation prompt; None if any may."""
    return prompt.weight_version if prompt.purpose is Purpose.EVALUATE else None


def refuse_truncated_distribution(prompt: PromptSubmitted) -> None:
    """Fail training samples of another distribution than the policy's at the prompt's temperature, e.g. of top_k."""
    sampling = prompt.sampling
    if prompt.purpose is not Purpose.TRAIN:
        return
    if not sampling.is_plain:
        raise FailedSampleError(
            FailureCode.UNSUPPORTED_SAMPLING,
            f"training needs temperature >= {MIN_TEMPERATURE}, top_p 1 and top_k 0, got "
            f"{sampling.temperature}, {sampling.top_p} and {sampling.top_k}",
        )


def _refuse_other_version(prompt: PromptSubmitted, turns: Sequence[Turn]) -> None:
    wanted = wanted_version(prompt)
    if wanted is None:
        return
    seen = {span.weight_version for turn in turns for span in turn.weight_spans}
    if seen - {wanted}:
        raise FailedSampleError(FailureCode.VERSION_GONE, f"version {wanted} was asked for, {sorted(seen)} answered")


def _refuse_untrainable(prompt: PromptSubmitted, turns: Sequence[Turn]) -> None:
    if prompt.purpose is Purpose.TRAIN and turns and not any(turn.may_train for turn in turns):
        raise FailedSampleError(
            FailureCode.UNSUPPORTED_SAMPLING,
            f"none of its {len(turns)} turns may train: the agent samples each otherwise than the policy does, or lets "
            "none train",
        )
