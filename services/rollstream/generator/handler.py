"""Generates the samples of one prompt: group_size rollouts, each given out as it ends. See `agents.samples`."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Iterator

from rollstream.agents.load import Agents
from rollstream.agents.samples import SampleBounds, SampleRunner, wanted_version
from rollstream.engines.protocol import Engine
from rollstream.generator import metrics
from rollstream.generator.current_version import CurrentVersion
from rollstream.schemas.errors import RecordTooLargeError
from rollstream.schemas.failure import Failure, FailureCode
from rollstream.schemas.prompt import PromptSubmitted, group_out_of_bounds, out_of_bounds
from rollstream.schemas.rollout import GeneratorIdentity, RolloutGenerated, Status


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
        self._current = current
        self._runner = SampleRunner(
            engine,
            identity=identity,
            bounds=bounds,
            agents=agents,
            on_version=current.on_version,
            retried=metrics.ENGINE_ERRORS.inc,
        )

    async def handle(self, prompt: PromptSubmitted) -> AsyncGenerator[RolloutGenerated, None]:
        """Give out each sample as it ends. Closing the iterator cancels the samples that still run."""
        refused = out_of_bounds(prompt)  # of a large group the whole prompt is measured: once, not for each sample
        tasks = [asyncio.create_task(self._sample(prompt, index, refused)) for index in samples_of(prompt)]
        try:
            for ended in asyncio.as_completed(tasks):
                yield await ended
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def give_up(self, prompt: PromptSubmitted, error: Exception) -> Iterator[RolloutGenerated]:
        """group_size unresolved samples, so that the group closes: a prompt that can be read is never dead-lettered."""
        return (self._runner.given_up(prompt, index, error) for index in samples_of(prompt))

    def waits(self, prompt: PromptSubmitted) -> Awaitable[bool] | None:
        """What an evaluation prompt waits for: the version that it names, if that is not loaded."""
        wanted = wanted_version(prompt)
        return None if wanted is None or self._current.has(wanted) else self._current.arrival(wanted)

    async def _sample(self, prompt: PromptSubmitted, index: int, refused: Failure | None) -> RolloutGenerated:
        record = await self._runner.run(prompt, index, refused)
        metrics.SAMPLES.labels(status=record.status.value).inc()
        if record.failure is not None:
            metrics.FAILURES.labels(code=record.failure.code.value).inc()
        metrics.TOKENS.inc(record.num_completion_tokens)
        return record


def samples_of(prompt: PromptSubmitted) -> range:
    """Which samples of a prompt are answered: all; of a group beyond its bound only one, which says so."""
    return range(prompt.group_size if group_out_of_bounds(prompt) is None else 1)


def without_tokens(sample: RolloutGenerated, error: RecordTooLargeError) -> RolloutGenerated:
    """The sample as failed and without its turns, because its record is larger than a message may be."""
    failure = Failure(code=FailureCode.TOO_LARGE, message=str(error))
    return sample.model_copy(update={"turns": (), "status": Status.FAILED, "failure": failure})
