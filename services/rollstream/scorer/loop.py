"""The scorer stage: reads rollouts and writes the same rollouts with their rewards.

Consumes   `rollouts`, `eval-rollouts` and `serve-rollouts`, in one consumer group for all scorers.
Produces   `scored`, `eval-scored` and `serve-scored`, one record for each rollout; `dead-letters` for messages
           that can't be read.
Waits for  the processes that run reward functions, and the broker's confirmation of every record of a batch.
Unblocked  when they answer, or when the time of a sample (its process is killed) or of a delivery is over.

A broken world means: nothing can be handled until something outside, for example the broker, is repaired.

What happens when …
  … this process is killed, or the world is broken: the batch is not committed, and another scorer scores it again.
  … a rollout comes twice: it is scored twice. The trainer takes one attempt of each rollout.
  … a reward function raises, hangs or kills its process: its sample is unresolved and says why. The others go on, also
    beyond the time of a batch, unless Kafka moves partitions or the process is to stop (`batch.py`).
  … a message can't be read: it goes to dead-letters, confirmed, and the batch goes on.
  … a record kills this process each time: it is handled alone, and after more deaths it goes to dead-letters
    (`stage/starts.py`). Its group closes as `lost`. (A generator publishes unresolved samples then: it decodes the
    prompt. Here the record is not decoded any more.)
  … the process is asked to stop: the batch that is being scored ends, is confirmed and is committed. After 60 s the
    process ends without that; while it starts, at once.
  … a broker is lost: the process goes on with the partitions' new leaders. While one is not read, it is not ready.
  … a topic that it reads is deleted or made anew: the process ends and is started again.
  … weights are late: nothing happens, because scoring does not depend on weight versions.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Any, Final

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.metrics import LAG
from rollstream.bus.run import Run
from rollstream.bus.topic_watch import TopicWatch
from rollstream.environments.load import refuse_unknown_environment
from rollstream.environments.pool.pool import ScoringPool
from rollstream.process.beat import beat
from rollstream.process.ending import end_process
from rollstream.process.health import Health
from rollstream.process.heap import hide_loaded_objects
from rollstream.process.settings.address import revealed
from rollstream.process.stop import Stop, first_to_end
from rollstream.process.tracing.begin import require_tracing, tracing_of
from rollstream.schemas.errors import BrokenWorldError
from rollstream.schemas.topics import (
    DEAD_LETTERS,
    EVAL_ROLLOUTS,
    EVAL_SCORED,
    ROLLOUTS,
    SCORED,
    SERVE_ROLLOUTS,
    SERVE_SCORED,
)
from rollstream.scorer.app import Handle, StreamSettings, build_app, fetched, leave_at_once
from rollstream.scorer.batch import BatchScorer, ScoringRoute
from rollstream.scorer.fetching import FetchWatch
from rollstream.scorer.handler import ScorerIdentity
from rollstream.scorer.settings import ScorerSettings
from rollstream.stage.starts import StartCounter

_LOG = logging.getLogger(__name__)

_STOP_SECONDS: Final = 60.0
# The broker answers a fetch within 1.5 s, and a new leader is known 5 s after it has been chosen.
_READ_WITHIN_SECONDS: Final = 10.0
_ROUTES: Final[tuple[ScoringRoute, ...]] = (
    (ROLLOUTS, SCORED),
    (EVAL_ROLLOUTS, EVAL_SCORED),
    (SERVE_ROLLOUTS, SERVE_SCORED),
)


async def run_scorer(settings: ScorerSettings, stop: Stop) -> None:
    """Run until `stop` is asked. A broken world ends the process, see `end_process`."""
    settings.log_resolved()
    for name in (*settings.environments, *settings.reward_at_timeout):
        refuse_unknown_environment(name, settings.environments)
    require_tracing(settings.tracing)
    run = Run(settings)
    # Faust would wait for missing topics for ever and log nothing.
    await asyncio.to_thread(run.require_topics, *(topic for route in _ROUTES for topic in route), DEAD_LETTERS)
    async with AsyncExitStack() as stack:
        tracing = stack.enter_context(tracing_of(settings.tracing, stage="scorer", run=settings.run))
        pool = await stack.enter_async_context(ScoringPool(settings.pool_bounds(), settings.environments))
        publisher = await stack.enter_async_context(run.publisher(_scorer_id(settings)))
        starts = StartCounter(revealed(settings.redis_url), _group(settings))
        stack.push_async_callback(starts.close)
        scorer = BatchScorer(
            run=run,
            routes=_ROUTES,
            group=_group(settings),
            pool=pool,
            publisher=publisher,
            starts=starts,
            scorer=ScorerIdentity(scorer_id=_scorer_id(settings), version=version("rollstream")),
            tracing=tracing,
        )
        await serve_stream(settings, scorer.score, stop, lambda: starts.redis_state)


async def serve_stream(
    settings: ScorerSettings, handle: Handle, stop: Stop, redis_state: Callable[[], str] = lambda: ""
) -> None:
    """Call `handle` with each batch of the run until `stop` is asked.

    An error that `handle` raises ends the process, and its batch is not committed.
    """
    # Their INFO lines are about their own inner work, not about the run.
    for library in ("faust", "mode", "aiokafka"):
        logging.getLogger(library).setLevel(logging.WARNING)
    health = Health()
    health.serve(settings.health_host, settings.health_port)
    beating = asyncio.create_task(beat(health, redis_state))
    try:
        await _run_app(settings, handle, health, stop)
    finally:
        beating.cancel()
        health.close()


async def _run_app(settings: ScorerSettings, handle: Handle, health: Health, stop: Stop) -> None:
    def note_assigned(count: int) -> None:
        health.check("partitions", count > 0, f"{count} partitions are assigned")

    note_assigned(0)
    topics = [read.of(settings.run) for read, _ in _ROUTES]
    stream = StreamSettings(
        group=_group(settings),
        topics=topics,
        watch=asyncio.create_task(asyncio.to_thread(lambda: TopicWatch(KafkaAdmin(settings.kafka), topics))),
        batch_size=settings.batch_size,
        session_timeout_seconds=settings.session_timeout_seconds,
    )
    app = build_app(settings.kafka, stream, handle, note_assigned)
    try:
        await _start(app, stop)
        hide_loaded_objects()
        _LOG.info("scoring")
        await first_to_end(_until_stopped(app, stop), _watch_fetching(app, stream, health), _watch_topics(stream))
        health.draining()
        # Faust waits for the running batch here, commits it and leaves the group.
        await asyncio.wait_for(app.stop(), _STOP_SECONDS)
    except Exception as error:  # noqa: BLE001 (any error of Faust is a broken world)
        end_process(error, "nothing of the batch is committed")


async def _start(app: Any, stop: Stop) -> None:
    """Start Faust; if `stop` is asked before it has started, the process ends at once."""
    starting = asyncio.ensure_future(app.start())
    while not starting.done() and not stop.is_asked:
        await asyncio.wait({starting}, timeout=0.1)
    if stop.is_asked and not (starting.done() and starting.exception() is None):
        # Faust waits for a broker that is away without any bound, and can't be cancelled meanwhile.
        leave_at_once()
    starting.result()


async def _until_stopped(app: Any, stop: Stop) -> None:
    while not stop.is_asked:
        if app.should_stop:
            raise BrokenWorldError(f"the stream ended by itself: {app.crash_reason!r}")
        await asyncio.sleep(0.1)


async def _watch_fetching(app: Any, stream: StreamSettings, health: Health) -> None:
    watch = FetchWatch(_READ_WITHIN_SECONDS)
    while True:
        assigned = fetched(app)
        silent = watch.look(assigned, time.monotonic())
        health.check("fetching", not silent, silent or f"{len(assigned)} partitions are read")
        for topic in stream.topics:
            lag = sum(state.lag for partition, state in assigned.items() if partition[0] == topic)
            LAG.labels(stream.group, topic).set(lag)
        await asyncio.sleep(0.5)


async def _watch_topics(stream: StreamSettings) -> None:
    """Raise `TopicChangedError` once a topic was deleted or made anew: Faust would go on at offsets of the old one."""
    watch = await stream.watch
    while True:
        watch.added()
        await asyncio.sleep(0.5)


def _group(settings: ScorerSettings) -> str:
    return f"{settings.run}.scorers"


def _scorer_id(settings: ScorerSettings) -> str:
    return settings.scorer_id or f"{socket.gethostname()}-{os.getpid()}"
