"""What becomes of one prompt: how much it counts, its samples, their spans. Knows no Kafka.

`agents/samples.py` makes one sample.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from typing import Final

from rollstream.agents.journal import SampleJournal
from rollstream.agents.load import Agents
from rollstream.agents.samples import SampleBounds, SampleRunner, wanted_version
from rollstream.engines.protocol import Engine
from rollstream.generator import metrics
from rollstream.generator.current_version import CurrentVersion
from rollstream.generator.settings import GeneratorSettings
from rollstream.process.tracing.context import TraceHeaders
from rollstream.process.tracing.spans import GROUP_ID, ROLLOUT_ID, WEIGHT_VERSION, Span, Tracing
from rollstream.schemas.errors import RecordTooLargeError
from rollstream.schemas.failure import Failure, FailureCode
from rollstream.schemas.prompt import PromptSubmitted, group_out_of_bounds, out_of_bounds
from rollstream.schemas.rollout import GeneratorIdentity, RolloutGenerated, Status
from rollstream.tools.protocol import ToolSet

AHEAD: Final = 1.5
"""Samples in hand for each that the engine runs: when one ends, the next is there."""

Journals = Callable[[PromptSubmitted, int], SampleJournal | None]
"""The journal of sample `index` of a prompt; None: nothing is kept of it."""

_MOST_PROMPTS: Final = 4096


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
        tools: Mapping[str, ToolSet] | None = None,
        others: Mapping[str, Engine] | None = None,
    ) -> None:
        self._current = current
        self._deadline_seconds = bounds.deadline_seconds
        self._runner = SampleRunner(
            engine,
            identity=identity,
            bounds=bounds,
            agents=agents or Agents(),
            tools=tools or {},
            others=others or {},
            on_version=current.on_version,
            retried=metrics.ENGINE_ERRORS.inc,
            began_anew=lambda reason: metrics.BEGAN_ANEW.labels(reason=reason).inc(),
        )

    async def handle(
        self, prompt: PromptSubmitted, journals: Journals = lambda _prompt, _index: None
    ) -> AsyncGenerator[RolloutGenerated, None]:
        """Give out each sample as it ends. Closing the iterator cancels the samples that still run."""
        refused = out_of_bounds(prompt)  # of a large group the whole prompt is measured: once, not for each sample
        tasks = [
            asyncio.create_task(self._sample(prompt, index, refused, journals(prompt, index)))
            for index in samples_of(prompt)
        ]
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

    async def close_left(self, prompt: PromptSubmitted, index: int, journal: SampleJournal) -> None:
        """Close the session of tools that an earlier attempt at sample `index` left open."""
        await self._runner.close_left(prompt, index, journal)

    def waits(self, prompt: PromptSubmitted) -> Awaitable[bool] | None:
        """What an evaluation prompt waits for: the version that it names, if that is not loaded."""
        wanted = wanted_version(prompt)
        return None if wanted is None or self._current.has(wanted) else self._current.arrival(wanted)

    async def _sample(
        self, prompt: PromptSubmitted, index: int, refused: Failure | None, journal: SampleJournal | None
    ) -> RolloutGenerated:
        record = await self._runner.run(prompt, index, refused, journal)
        metrics.SAMPLES.labels(status=record.status.value).inc()
        if record.failure is not None:
            metrics.FAILURES.labels(code=record.failure.code.value).inc()
        seconds = (record.finished_at - record.started_at).total_seconds()
        if record.is_truncated and seconds >= self._deadline_seconds:
            metrics.DEADLINE_CUTS.inc()
        given_back = 0 if journal is None else journal.num_given_back_tokens
        metrics.TOKENS.inc(record.num_completion_tokens - given_back)
        metrics.GIVEN_BACK_TOKENS.inc(given_back)
        if journal is not None and journal.went_on is not None:
            metrics.RESUMED.labels(outcome=journal.went_on).inc()
        return record


class InHand:
    """How much a generator takes before what it has is done: by default so many samples that its engine is always full.

    It counts samples, or tokens where `max_tokens_in_flight` is set. `max_model_len`: the engine's, in tokens.

    Length is no bound by default: eight samples that may have 8,192 tokens each are as many as eight short ones, and
    what an engine can hold of long ones it knows itself. A sample that has ended has no share any more, while the
    others of its prompt run: of eight samples whose lengths vary, the longest takes several times as long as the mean.
    """

    def __init__(self, settings: GeneratorSettings, max_model_len: int, agents: Agents) -> None:
        self._agents = agents
        tokens = settings.max_tokens_in_flight
        samples = math.ceil(AHEAD * settings.engine.samples_at_once)
        self._longest = None if tokens is None else max_model_len
        self.most = samples if tokens is None else tokens
        """From this sum of weights on no prompt is taken."""
        self.most_prompts = max(_MOST_PROMPTS, samples)
        """From so many prompts on no other is taken. Those count that weigh nothing, since they wait."""

    def weight(self, prompt: PromptSubmitted) -> int:
        """How many samples a prompt has, or how many tokens they can have together."""
        return len(samples_of(prompt)) * self._of_sample(prompt)

    def freed(self, sample: RolloutGenerated) -> int:
        """The part of its prompt's weight that ends with a sample."""
        return self._of_sample(sample.prompt)

    def _of_sample(self, prompt: PromptSubmitted) -> int:
        if self._longest is None:
            return 1
        # The turns of a sample extend each other: together they have at most what the model takes.
        return min(prompt.sampling.max_tokens * self._agents.most_turns(prompt.agent), self._longest)


def samples_of(prompt: PromptSubmitted) -> range:
    """Which samples of a prompt are answered: all; of a group beyond its bound only one, which says so."""
    return range(prompt.group_size if group_out_of_bounds(prompt) is None else 1)


def without_tokens(sample: RolloutGenerated, error: RecordTooLargeError) -> RolloutGenerated:
    """The sample as failed and without its turns, because its record is larger than a message may be."""
    failure = Failure(code=FailureCode.TOO_LARGE, message=str(error))
    return sample.model_copy(update={"turns": (), "status": Status.FAILED, "failure": failure})


def headers_of_sample(tracing: Tracing, model: str, prompt_span: Span, sample: RolloutGenerated) -> TraceHeaders:
    """What the sample's rollout carries on: the context of its own span, which is over by now.

    The span is a child of its prompt's, named as OpenTelemetry names model calls.
    """
    if not prompt_span.is_recorded:
        return prompt_span.headers
    span = tracing.start(f"chat {model}", parent=prompt_span.context, started_at=sample.started_at)
    span.set(
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": sample.generator.engine,
            "gen_ai.request.model": model,
            "gen_ai.request.temperature": sample.prompt.sampling.temperature,
            "gen_ai.request.max_tokens": sample.prompt.sampling.max_tokens,
            "gen_ai.usage.input_tokens": sum(len(turn.prompt_token_ids) for turn in sample.turns),
            "gen_ai.usage.output_tokens": sample.num_completion_tokens,
            "gen_ai.response.finish_reasons": [turn.finish_reason.value for turn in sample.turns[-1:]],
            GROUP_ID: sample.group_id,
            ROLLOUT_ID: sample.rollout_id,
            **({WEIGHT_VERSION: max(sample.weight_versions)} if sample.weight_versions else {}),
        }
    )
    if sample.failure is not None:
        span.fail(sample.failure.code.value)
    span.end(sample.finished_at)
    return span.headers
