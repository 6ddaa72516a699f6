"""The generator stage: prompts in, samples out, always on the newest weight version it can load.

Consumes   `prompts` and `eval-prompts`, one consumer group for all generators; `weights`, each by itself.
Produces   `rollouts` and `eval-rollouts`, one record a sample, as it ends; `weights-applied`.
Waits for  the engine; room below `max_tokens_in_flight`; a weight version, and one at most max_policy_lag behind.
Unblocked  by samples that end, and by the trainer's next version.

Order at start: engine (it may fork, so before Kafka's threads exist) → clients → newest version loaded → subscribe.

What happens when … (the loop itself is `stage/loop.py`)
  … this process is killed: prompts without a committed offset go to another generator, all their samples are drawn
    again, under the same rollout ids and new attempt ids.
  … a prompt comes twice: its samples are drawn twice; the trainer takes one attempt of each.
  … a prompt can't be read: it goes to dead-letters. One that can be read never does: its samples end as failed (it
    can't be posed) or unresolved (deadline, engine, a prompt that kills the process each time), and say why.
  … an agent's own code raises: the prompt's samples all come as unresolved, those that had ended a second time; more
    than 20 a minute end the process.
  … the engine dies: unfinished samples are not published, see “killed”.
  … the process is told to stop: running prompts have 20 s to end; of the rest see “killed”.
  … a new version is published: it is loaded under the running samples, whose spans say which tokens are whose
    (`engines/vllm_engine.py`); evaluation samples hold it back for a bounded time (`current_version.py`).
  … a version can't be loaded: the old one goes on, the load is retried with backoff (`weights.py`). If its record
    can't be read, the next version replaces it.
  … this generator is more than max_policy_lag steps behind: it takes no prompts and is not ready (`_LagKeeper`).
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

from rollstream.bus.consumer import ConsumerSettings, GroupConsumer
from rollstream.bus.publisher import Publisher
from rollstream.bus.reader import TopicReader
from rollstream.engines.build import build_engine
from rollstream.engines.protocol import Engine
from rollstream.generator import metrics
from rollstream.generator.current_version import CurrentVersion
from rollstream.generator.handler import GeneratorHandler, SampleBounds, weight_in_tokens, without_tokens
from rollstream.generator.settings import GeneratorSettings
from rollstream.generator.weights import WatcherParts, WeightWatcher
from rollstream.history.weight_store import open_weight_store
from rollstream.process.fleet import Fleet
from rollstream.process.health import Health
from rollstream.process.stop import Stop
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.rollout import GeneratorIdentity, RolloutGenerated
from rollstream.schemas.topics import (
    DEAD_LETTERS,
    EVAL_PROMPTS,
    EVAL_ROLLOUTS,
    PROMPTS,
    ROLLOUTS,
    WEIGHTS,
    WEIGHTS_APPLIED,
    Topic,
)  # fmt: skip
from rollstream.stage.loop import Route, Stage, run_stage
from rollstream.stage.starts import PoisonGuard

_BEAT_SECONDS = 2.0
_BEHIND = "weights"


async def run_generator(settings: GeneratorSettings, stop: Stop) -> None:
    """Run until `stop` is asked; raises what broke the world."""
    settings.log_resolved()
    health = Health()
    health.serve(settings.health_port)
    engine = build_engine(settings.engine)
    # Nothing is generated under this label: the newest published version is loaded before the first prompt.
    await engine.start(weight_version=0)
    try:
        await run_on(engine, settings, health, stop)
    finally:
        await engine.close()
        health.close()


async def run_on(engine: Engine, settings: GeneratorSettings, health: Health, stop: Stop) -> None:
    """Run the stage on an engine that is live already; see `run_generator`."""
    identity = _identity(engine, settings)
    current = CurrentVersion()
    async with _publisher(settings, identity.generator_id) as publisher:
        watcher = _watcher(engine, settings, current, publisher, identity.generator_id)
        health.check("weights", False, "no version is loaded yet")
        await _first_to_end(watcher.load_first(), stop.asked())
        if stop.is_asked:
            return
        consumer = _consumer(settings, health)
        handler = GeneratorHandler(engine, identity=identity, bounds=_bounds(settings), current=current)
        stage = Stage(
            consumer=consumer,
            publisher=publisher,
            routes=_routes(settings, handler),
            dead_letters=DEAD_LETTERS.of(settings.run),
            poison=PoisonGuard(settings.redis_url, consumer.group_id),
            health=health,
        )
        keeper = _LagKeeper(consumer, health, settings.max_policy_lag)
        fleet = Fleet(settings.redis_url, settings.run)
        await _first_to_end(
            run_stage(stage, stop),
            watcher.follow(keeper.note),
            _beat(fleet, identity.generator_id, engine, current),
        )


class _LagKeeper:
    """Takes no prompts and is not ready while too many optimizer steps behind."""

    def __init__(self, consumer: GroupConsumer, health: Health, max_policy_lag: int) -> None:
        self._consumer = consumer
        self._health = health
        self._bound = max_policy_lag

    def note(self, behind: int | None) -> None:
        """`behind` steps, or no known path to the newest version."""
        is_near = behind is not None and behind <= self._bound
        metrics.POLICY_LAG.set(-1 if behind is None else behind)
        self._health.check("weights", is_near, f"{behind} optimizer steps behind, at most {self._bound}")
        if is_near:
            self._consumer.resume_for(_BEHIND)
        else:
            self._consumer.pause_for(_BEHIND)


def _routes(
    settings: GeneratorSettings, handler: GeneratorHandler
) -> dict[str, Route[PromptSubmitted, RolloutGenerated]]:
    def route(read: Topic[PromptSubmitted], write: Topic[RolloutGenerated]) -> Route[PromptSubmitted, RolloutGenerated]:
        return Route(
            read=AvroCodec(read, settings.registry()),
            handle=handler.handle,
            write=AvroCodec(write, settings.registry()),
            output=write.of(settings.run),
            key=lambda sample: sample.group_id,
            on_failure=handler.give_up,
            if_too_large=without_tokens,
            weight=weight_in_tokens,
        )

    return {
        PROMPTS.of(settings.run): route(PROMPTS, ROLLOUTS),
        EVAL_PROMPTS.of(settings.run): route(EVAL_PROMPTS, EVAL_ROLLOUTS),
    }


def _consumer(settings: GeneratorSettings, health: Health) -> GroupConsumer:
    # A record ends when its last sample does; one that outlives every sample's deadline hangs.
    longest = settings.sample_deadline_seconds + settings.evaluation_hold_seconds + 60.0
    return GroupConsumer(
        settings.kafka,
        group_id=f"{settings.run}.generators",
        topics=[PROMPTS.of(settings.run), EVAL_PROMPTS.of(settings.run)],
        settings=ConsumerSettings(
            max_in_flight=4096, max_weight=settings.max_tokens_in_flight, record_deadline_seconds=longest
        ),
        health=health,
    )


def _watcher(
    engine: Engine, settings: GeneratorSettings, current: CurrentVersion, publisher: Publisher, generator_id: str
) -> WeightWatcher:
    return WeightWatcher(
        WatcherParts(
            reader=TopicReader(settings.kafka, [WEIGHTS.of(settings.run)]),
            published=AvroCodec(WEIGHTS, settings.registry()),
            applied=AvroCodec(WEIGHTS_APPLIED, settings.registry()),
            applied_topic=WEIGHTS_APPLIED.of(settings.run),
            publisher=publisher,
            store=open_weight_store(settings.weight_store),
            engine=engine,
            current=current,
            generator_id=generator_id,
            evaluation_hold_seconds=settings.evaluation_hold_seconds,
        )
    )


def _identity(engine: Engine, settings: GeneratorSettings) -> GeneratorIdentity:
    host = socket.gethostname()
    return GeneratorIdentity(
        generator_id=settings.generator_id or f"{host}-{os.getpid()}",
        engine=engine.name,
        engine_version=engine.version,
        host=host,
        tokenizer_sha256=engine.tokenizer_sha256,
        chat_template_sha256=engine.chat_template_sha256,
    )


def _bounds(settings: GeneratorSettings) -> SampleBounds:
    return SampleBounds(deadline_seconds=settings.sample_deadline_seconds, max_tries=settings.max_tries)


@asynccontextmanager
async def _publisher(settings: GeneratorSettings, client_id: str) -> AsyncIterator[Publisher]:
    publisher = Publisher(settings.kafka, client_id=client_id)
    try:
        yield publisher
    finally:
        await asyncio.to_thread(publisher.close)


async def _first_to_end(*side_by_side: Coroutine[None, None, None]) -> None:
    """Run all until one ends, then cancel the others; raises what it raised."""
    tasks = [asyncio.create_task(one) for one in side_by_side]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


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
        await asyncio.to_thread(fleet.beat, generator_id, state)
        before = now
