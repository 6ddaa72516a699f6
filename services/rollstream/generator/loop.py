"""The generator stage: reads prompts and writes rollouts, with the newest weight version that it can load.

Consumes   `prompts`, `eval-prompts` and `serve-prompts`, in one consumer group for all generators;
           `weights`, each generator on its own; `progress` and `eval-progress` of a partition when it gets it.
Produces   `rollouts`, `eval-rollouts` and `serve-rollouts`, one record for each sample when it ends; `weights-applied`;
           `progress` and `eval-progress`, while samples of several turns or long ones run.
Waits for  the engine; room for more samples (`InHand`); a weight version at most max_policy_lag steps behind.
Unblocked  by samples that end, and by the trainer's next version.

Order at start: engine → Kafka clients → newest version loaded → subscribe. The engine comes first because it may
fork, which is safe only before Kafka's threads exist. Before it a child process asks whether the topics are there.

What happens when … (the loop itself is `stage/loop.py`)
  … this process is killed: another generator gets the prompts without a committed offset. It samples them again, with
    the same rollout ids and new attempt ids. Turns that had ended, and answers of tools, are not asked again: it reads
    them from `progress` (`progress.py`, `agents/journal.py`).
  … it is suspended until it is thought dead, and wakes: another one goes on with its samples by then. A server of tools
    refuses it, and it publishes nothing of a sample that is refused. It soon notices its loss, and drops what it has.
  … a prompt comes twice: it is sampled twice. The trainer takes one attempt of each rollout.
  … a prompt can't be read: it goes to dead-letters. `schemas/bounds.py` has the bounds of what can be read.
  … a prompt can be read but not handled: it never goes to dead-letters. Its samples end as failed (it can't be asked)
    or as unresolved (deadline, engine, a prompt that kills the process each time, after decoding), and say why.
  … a prompt names an agent that the settings do not declare, or options that it does not take: its samples are
    failed. If the `run` of an agent raises, all samples of the prompt are published as unresolved, also those published
    before. More than 20 such prompts a minute end the process. An agent that can't be imported ends it at the start.
  … the engine dies: the process ends and unfinished samples are not published, see “killed”.
  … the process is asked to stop: running prompts have 20 s to end. For the others see “killed”. Before it has
    subscribed it ends within 10 s.
  … a new version is published: it is loaded while samples run. Their spans say which version sampled which tokens
    (`engines/vllm/engine.py`). Evaluation samples delay the load for a bounded time (`current_version.py`).
  … an evaluation prompt names a version that is not published: its samples fail after 5 s.
  … a version's files are damaged or do not fit: the old one goes on, or a nearer ancestor that can be loaded, and the
    load is retried with backoff (`weights.py`). If vLLM fails while it replaces weights, they are half new: the process
    ends. Files outside of `weight_store` are never read, whatever a record names.
  … the record of a version can't be read: nothing is loaded until the next version comes.
  … this generator is more than max_policy_lag steps behind: it takes no prompts and is not ready (`_LagKeeper`).

With `serve.enabled` all this is the training lane of a process that answers clients too (`serve/endpoint.py`). It is
made anew after an error of the bus, and the process goes on (`serve/outliving.py`). The lane's state then is a metric,
and the process is ready when it can answer. It starts without a broker, and its first version waits for one.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from functools import partial

from rollstream.agents.load import Agents
from rollstream.agents.samples import SampleBounds
from rollstream.bus.consumer import GroupConsumer
from rollstream.bus.group_config import ConsumerSettings
from rollstream.bus.in_flight import InFlight
from rollstream.bus.message import Headers
from rollstream.bus.publisher import Publisher
from rollstream.bus.run import Run
from rollstream.engines.build import build_engine
from rollstream.engines.others import other_engines
from rollstream.engines.protocol import Engine
from rollstream.generator import metrics
from rollstream.generator.current_version import CurrentVersion
from rollstream.generator.handler import GeneratorHandler, InHand, headers_of_sample, without_tokens
from rollstream.generator.parts import GeneratorParts
from rollstream.generator.progress import ProgressKeeper
from rollstream.generator.settings import GeneratorSettings
from rollstream.generator.standstill import Standstill
from rollstream.generator.weights import WeightWatcher
from rollstream.history.weight_store import open_weight_store
from rollstream.process.fleet import Fleet
from rollstream.process.health import Health
from rollstream.process.in_child import run_in_child
from rollstream.process.settings.address import revealed
from rollstream.process.stop import Stop, ending_within, first_to_end
from rollstream.process.tracing.begin import require_tracing, tracing_of
from rollstream.process.tracing.spans import Span
from rollstream.schemas.errors import BrokerError
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.rollout import RolloutGenerated
from rollstream.schemas.topics import (
    DEAD_LETTERS,
    EVAL_PROGRESS,
    EVAL_PROMPTS,
    EVAL_ROLLOUTS,
    PROGRESS,
    PROMPTS,
    ROLLOUTS,
    SERVE_PROMPTS,
    SERVE_ROLLOUTS,
    WEIGHTS,
    WEIGHTS_APPLIED,
)
from rollstream.stage.loop import Route, Stage, run_stage
from rollstream.stage.starts import PoisonGuard
from rollstream.tools.build import tool_sets
from rollstream.tools.protocol import ToolSet

_LOG = logging.getLogger(__name__)

_BEAT_SECONDS = 2.0
_BEHIND = "weights"
_TOPICS = ((PROMPTS, ROLLOUTS), (EVAL_PROMPTS, EVAL_ROLLOUTS), (SERVE_PROMPTS, SERVE_ROLLOUTS))
"""Which topic prompts come from, and which topic their samples go to."""
_NEEDED = (
    *(topic for pair in _TOPICS for topic in pair), PROGRESS, EVAL_PROGRESS, WEIGHTS, WEIGHTS_APPLIED, DEAD_LETTERS,
)  # fmt: skip


async def run_generator(settings: GeneratorSettings, stop: Stop) -> None:
    """Run until `stop` is asked.

    Raises the error of a broken world: nothing can be handled until something outside is repaired.
    """
    settings.log_resolved()
    Agents(settings.agents)  # one that cannot be imported is refused before the engine starts, which may take minutes
    require_tracing(settings.tracing)
    # In a child, so that the clients' threads are never in this process. An engine takes long to load.
    try:
        run_in_child(lambda: _require_what_is_needed(settings))
    except BrokerError as error:
        if not settings.serve.enabled:
            raise
        _LOG.warning("%s; the engine starts all the same, and its first version waits for a broker", error)
    health = Health()
    health.serve(settings.health_host, settings.health_port)
    try:
        # Before the engine too, for the same reason as agents.
        async with tool_sets(settings.tools) as tools:
            await _run_with_engine(settings, tools, health, stop)
    finally:
        health.close()


async def _run_with_engine(
    settings: GeneratorSettings, tools: Mapping[str, ToolSet], health: Health, stop: Stop
) -> None:
    engine = build_engine(settings.engine, settings.reserve)
    with ending_within(stop):
        # A placeholder: the newest published version is loaded before the first prompt.
        await engine.start(weight_version=0)
    try:
        async with AsyncExitStack() as stack:
            with ending_within(stop):
                others = await stack.enter_async_context(other_engines(settings.engines))
            # Only now: exporting has a thread, and the engine may have forked.
            tracing = stack.enter_context(tracing_of(settings.tracing, stage="generator", run=settings.run))
            parts = GeneratorParts(engine=engine, settings=settings, tracing=tracing, tools=tools, others=others)
            await (run_beside_clients(parts, health, stop) if settings.serve.enabled else run_on(parts, health, stop))
    finally:
        await engine.close()


def _require_what_is_needed(settings: GeneratorSettings) -> None:
    # One that answers clients starts without a broker too.
    Run(settings).require_topics(*_NEEDED, can_wait=not settings.serve.enabled)
    open_weight_store(settings.weight_store, settings.storage).probe(writes=False)


async def run_beside_clients(parts: GeneratorParts, health: Health, stop: Stop) -> None:
    """Run the stage, and answer clients over HTTP from the same engine, also while the stage can't run."""
    # Imported here: a generator without an endpoint needs none of its libraries.
    from rollstream.generator.serve.endpoint import answer_clients
    from rollstream.generator.serve.outliving import outlived

    # Now, while nobody waits: a registry takes time to answer.
    parts.run.make_codecs(*(topic for topic in _NEEDED if topic.record is not None))
    async with asyncio.TaskGroup() as both:
        both.create_task(answer_clients(parts, health, stop))
        both.create_task(outlived(lambda lane: run_on(parts, lane, stop), health, stop))


async def run_on(parts: GeneratorParts, health: Health, stop: Stop) -> None:
    """Run the stage on an engine that was started already; see `run_generator`."""
    metrics.TRAINING_LANE_READY.set_function(lambda: float(health.is_well))
    async with parts.run.publisher(parts.identity.generator_id) as publisher:
        health.check("weights", False, "no version is loaded yet")
        # In a thread: it asks the broker, and clients are not to wait for that.
        watcher = await asyncio.to_thread(_watcher, parts, publisher)
        try:
            if parts.current.version is None:
                with ending_within(stop):
                    await first_to_end(watcher.load_first(), stop.asked())
            if not stop.is_asked:
                await _run_with(watcher, parts, publisher, health, stop)
        finally:
            await asyncio.to_thread(watcher.close)


def _watcher(parts: GeneratorParts, publisher: Publisher) -> WeightWatcher:
    settings = parts.settings
    return WeightWatcher(
        run=parts.run,
        publisher=publisher,
        store=open_weight_store(settings.weight_store, settings.storage),
        engine=parts.engine,
        current=parts.current,
        generator_id=parts.identity.generator_id,
        evaluation_hold_seconds=settings.evaluation_hold_seconds,
    )


async def _run_with(
    watcher: WeightWatcher, parts: GeneratorParts, publisher: Publisher, health: Health, stop: Stop
) -> None:
    settings, engine, standstill = parts.settings, parts.engine, Standstill()
    agents = Agents(settings.agents)
    in_hand = InHand(settings, engine.max_model_len, agents)
    consumer = _consumer(settings, parts.run, health, in_hand)
    bounds = SampleBounds(
        deadline_seconds=settings.sample_deadline_seconds,
        max_tries=settings.max_tries,
        piece_tokens=settings.progress_tokens,
    )
    handler = GeneratorHandler(
        engine,
        identity=parts.identity,
        bounds=bounds,
        current=parts.current,
        agents=agents,
        tools=parts.tools,
        others=parts.others,
    )
    stage = Stage(
        run=parts.run,
        consumer=consumer,
        publisher=publisher,
        routes=_routes(
            handler,
            in_hand,
            partial(headers_of_sample, parts.tracing, settings.model),
            _keepers(parts, publisher, standstill),
        ),
        poison=PoisonGuard(revealed(settings.redis_url), consumer.group_id),
        health=health,
        tracing=parts.tracing,
    )
    keeper = _LagKeeper(consumer, health, settings.max_policy_lag)
    fleet = Fleet(revealed(settings.redis_url), settings.run)
    await first_to_end(
        run_stage(stage, stop),
        watcher.follow(keeper.note),
        standstill.watch(),
        _beat(fleet, parts.identity.generator_id, engine, parts.current),
    )


class _LagKeeper:
    """Takes no prompts and is not ready while too many optimizer steps behind."""

    def __init__(self, consumer: GroupConsumer, health: Health, max_policy_lag: int) -> None:
        self._consumer = consumer
        self._health = health
        self._bound = max_policy_lag
        metrics.MAX_POLICY_LAG.set(max_policy_lag)

    def note(self, behind: int | None) -> None:
        """Note that the engine is `behind` optimizer steps behind; None: no path to the newest version is known."""
        is_near = behind is not None and behind <= self._bound
        metrics.POLICY_LAG.set(-1 if behind is None else behind)
        self._health.check("weights", is_near, f"{behind} optimizer steps behind, at most {self._bound}")
        if is_near:
            self._consumer.resume_for(_BEHIND)
        else:
            self._consumer.pause_for(_BEHIND)


def _keepers(parts: GeneratorParts, publisher: Publisher, standstill: Standstill) -> dict[str, ProgressKeeper]:
    """Who keeps how far samples have come, by the topic of their prompts."""
    return {
        source.name: ProgressKeeper(parts.run, topic, publisher, parts.identity.generator_id, standstill)
        for source, topic in ((PROMPTS, PROGRESS), (EVAL_PROMPTS, EVAL_PROGRESS))
    }


async def _samples(
    handler: GeneratorHandler, keeper: ProgressKeeper | None, prompt: PromptSubmitted, taken: InFlight
) -> AsyncGenerator[RolloutGenerated, None]:
    """The prompt's samples, each gone on with where the last owner of its partition left it."""
    progress = None if keeper is None else await keeper.begun(prompt, taken)
    samples = handler.handle(prompt) if progress is None else handler.handle(prompt, progress.journal)
    async with aclosing(samples):
        async for sample in samples:
            yield sample


def _given_up(
    handler: GeneratorHandler, keeper: ProgressKeeper | None, prompt: PromptSubmitted, error: Exception, taken: InFlight
) -> Iterator[RolloutGenerated]:
    """The samples without a try. What earlier owners of the partition left of them is ended once it is committed."""
    if keeper is not None and taken.ending is None:
        taken.ending = partial(keeper.end, prompt, taken, handler.close_left)
    return handler.give_up(prompt, error)


def _routes(
    handler: GeneratorHandler,
    in_hand: InHand,
    trace: Callable[[Span, RolloutGenerated], Headers],
    keepers: Mapping[str, ProgressKeeper],
) -> tuple[Route[PromptSubmitted, RolloutGenerated], ...]:
    return tuple(
        Route(
            source=source,
            handle=partial(_samples, handler, keepers.get(source.name)),
            output=output,
            on_failure=partial(_given_up, handler, keepers.get(source.name)),
            if_too_large=without_tokens,
            weight=in_hand.weight,
            freed=in_hand.freed,
            waits=handler.waits,
            operation="generate",
            trace=trace,
        )
        for source, output in _TOPICS
    )


def _consumer(settings: GeneratorSettings, run: Run, health: Health, in_hand: InHand) -> GroupConsumer:
    # A record ends when its last sample ends. If it is open for longer than any sample may take, something hangs.
    longest = settings.sample_deadline_seconds + 60.0
    return GroupConsumer(
        run.kafka,
        group_id=run.group("generators"),
        topics=[run.topic(source) for source, _ in _TOPICS],
        settings=ConsumerSettings(
            max_in_flight=in_hand.most_prompts, max_weight=in_hand.most, record_deadline_seconds=longest
        ),
        health=health,
    )


async def _beat(fleet: Fleet, generator_id: str, engine: Engine, current: CurrentVersion) -> None:
    before = metrics.num_tokens()
    while True:
        await asyncio.sleep(_BEAT_SECONDS)
        now = metrics.num_tokens()
        state = {
            "stage": "generator",
            "weight_version": current.version,
            "in_flight": engine.in_flight,
            "tokens_per_second": (now - before) / _BEAT_SECONDS,
        }
        # In a thread: a Redis that does not answer must not stop the event loop.
        await asyncio.to_thread(fleet.beat, generator_id, state)
        before = now
