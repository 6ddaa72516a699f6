"""What a collection asks for its samples: an engine in this process, or an agent that runs elsewhere."""

import os
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, Protocol

from rollstream.agents.load import Agents
from rollstream.agents.samples import SampleRunner, identity_of
from rollstream.engines.others import other_engines
from rollstream.engines.protocol import Engine
from rollstream.environments.pool.verdicts import ScoringSample
from rollstream.offline.ended import EndedSample
from rollstream.offline.settings import CollectSettings
from rollstream.offline.tasks import CollectTask, TaskSource
from rollstream.schemas.ids import group_id
from rollstream.schemas.prompt import PromptSource, PromptSubmitted, Purpose, Sampling
from rollstream.schemas.record import utc_now
from rollstream.schemas.rollout import RolloutGenerated, Status, Turn
from rollstream.tools.build import tool_sets

_RUN: Final = "collect"


@dataclass(frozen=True, slots=True)
class AskedSample:
    """How a sample ended. `unscored`: what a rubric may score; None where there is nothing, or it has its reward."""

    ended: EndedSample
    unscored: ScoringSample | None = None


class SampleAsker(Protocol):
    """Gives samples of tasks, several at a time. `start` comes first, `close` last."""

    @property
    def name(self) -> str:
        """What answers, e.g. `vllm`; with its version it is noted beside the output."""

    @property
    def version(self) -> str:
        """Its version; "" if it does not say."""

    async def start(self) -> None:
        """Get ready. Raises `EngineDeadError` or `ConfigurationError` if nothing can be asked."""

    async def ask(self, task: CollectTask, sample: int, attempts: int) -> AskedSample:
        """One attempt, after `attempts` in vain. What went wrong with it is in the sample.

        Raises what ends the collection: `EngineDeadError`, `ConfigurationError`.
        """

    async def close(self) -> None:
        """Break off what runs."""


class EngineAsker:
    """Runs the settings' agent on `engine`, as the generator does."""

    def __init__(self, engine: Engine, settings: CollectSettings, tasks: TaskSource) -> None:
        self._engine = engine
        self._settings = settings
        self._tasks = tasks
        self._identity = ""
        self._open = AsyncExitStack()
        self.name, self.version = engine.name, engine.version
        self._runner = SampleRunner(
            engine,
            identity=identity_of(engine, f"{_RUN}-{socket.gethostname()}-{os.getpid()}"),
            bounds=settings.bounds,
            agents=Agents(settings.agents),
        )

    async def start(self) -> None:
        """Start the engine; a server may be waited for a long time."""
        self._runner.tools = await self._open.enter_async_context(tool_sets(self._settings.tools))
        self._runner.others = await self._open.enter_async_context(other_engines(self._settings.engines))
        await self._engine.start(weight_version=0)
        self.version = self._engine.version
        self._identity = self._tasks.identity()

    async def ask(self, task: CollectTask, sample: int, attempts: int) -> AskedSample:
        """One attempt by `agents.samples`."""
        rollout = await self._runner.run(prompt_of(task, self._settings, self._identity), sample)
        ended = ended_sample(rollout, row=task.number, attempts=attempts + 1)
        return AskedSample(ended, ScoringSample.of(rollout) if ended.is_completed else None)

    async def close(self) -> None:
        """Close the engine, and end the tools."""
        try:
            await self._engine.close()
        finally:
            await self._open.aclose()


def prompt_of(task: CollectTask, settings: CollectSettings, identity: str) -> PromptSubmitted:
    """The prompt of a task; the same each time but for its time. Its group is the stable key of the task."""
    prompt_id = f"{identity}/{task.number}"
    group = group_id(_RUN, prompt_id, 0)
    return PromptSubmitted(
        prompt_id=prompt_id,
        group_id=group,
        purpose=Purpose.SERVE,
        environment=settings.environment,
        messages=task.messages,
        reference_answer=task.reference_answer,
        sampling=_seeded(settings.sampling, group),
        group_size=settings.num_samples,
        agent=settings.agent,
        metadata=dict(task.metadata),
        source=PromptSource(dataset=identity, row=task.number),
        producer=_RUN,
        sequence=task.number,
        submitted_at=utc_now(),
    )


def _seeded(sampling: Sampling, group: str) -> Sampling:
    """`sampling` with a seed of the task's own; one seed for all tasks would draw the same noise for each."""
    if sampling.seed is None:
        return sampling
    return sampling.model_copy(update={"seed": (sampling.seed + int(group[:8], 16)) % 2**32})


def ended_sample(rollout: RolloutGenerated, *, row: int, attempts: int) -> EndedSample:
    """What is noted of a rollout."""
    last = rollout.answer
    failure = rollout.failure
    return EndedSample(
        row=row,
        sample=rollout.sample_index,
        attempts=attempts,
        status=rollout.status.value,
        response=last.text if last is not None and rollout.status is Status.COMPLETED else None,
        failure=None if failure is None else failure.code.value,
        message=None if failure is None else failure.message,
        finish_reason=None if last is None else last.finish_reason.value,
        num_tokens=rollout.num_completion_tokens,
        turns=[_said(turn) for turn in rollout.turns] if len(rollout.turns) > 1 else [],
        seconds=round((rollout.finished_at - rollout.started_at).total_seconds(), 6),
    )


def _said(turn: Turn) -> dict[str, Any]:
    names = {"turn_type", "turn_number", "cycle_step", "text", "reasoning", "tool_calls", "tool_answers", "model"}
    return {**turn.model_dump(mode="json", include=names), "num_tokens": len(turn.token_ids)}
