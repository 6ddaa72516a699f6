"""The consume → handle → produce → commit loop for stages whose records end out of order, like the generators'.

The scorer does the same with Faust (`scorer/app.py`, `scorer/batch.py`). The trainer commits with its ledger instead.

Consumes   records of the topics in `Stage.routes`, as a member of one consumer group.
Produces   what each record's handler yields, as soon as it yields it, on the route's output topic; dead letters.
Waits for  the broker's confirmation of everything that a record caused; only then may its offset be committed.
Unblocked  by records that arrive, by room below the consumer's bounds, by `Stop`.

What happens when …
  … this process is killed: records without a committed offset are delivered again, to the next owner of the
    partition. Nothing is lost; what was published before is published twice, under the same ids.
  … a record comes twice: it is handled twice. Ids are deterministic, so the ledger counts each sample once.
  … a message can't be read: it becomes a dead letter, and after the broker's confirmation its offset may be committed.
  … a handler raises: `Route.on_failure` says what to publish instead; without it the message becomes a dead letter.
    More than 20 failures a minute are a broken world: nothing can be handled until something outside is repaired, so
    the process exits. It also exits after a single `RollstreamError` that is not a `BadMessageError`.
  … a result can't be written: `Route.if_too_large` makes a smaller one, else the handler has failed. If what is
    published instead can't be written either, the message becomes a dead letter.
  … a poison record kills the process each time: Redis counts its starts; it runs alone, then it is given up
    (`starts.py`). If that kills it too, the message becomes a dead letter, unread. One that kills it while it is
    weighed is never given up: that comes before the count.
  … partitions are revoked, or the process is asked to stop: handlers may finish for a bounded time, then they are
    cancelled. When partitions are lost, they are cancelled at once. A cancelled handler publishes nothing more.
  … a topic is made anew, or a callback raises: the process exits with nothing more committed (`bus/consumer.py`).
  … a record is handled for longer than its bound: the process exits with an error. What a record waits before, because
    it or another one runs alone, does not count.
  … a handler blocks the event loop for 120 s: the process exits with the stacks of its threads (`process/beat.py`).
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Generic, TypeVar

from structlog.contextvars import bind_contextvars

from rollstream.bus import metrics
from rollstream.bus.consumer import GroupConsumer
from rollstream.bus.deliveries import Deliveries
from rollstream.bus.in_flight import InFlight
from rollstream.bus.message import Headers, KafkaMessage
from rollstream.bus.publisher import Publisher
from rollstream.bus.run import Run
from rollstream.bus.tracing import processing
from rollstream.process.beat import beat
from rollstream.process.begun import listening
from rollstream.process.crash_points import crash_point
from rollstream.process.health import Health
from rollstream.process.stop import Stop, first_to_end
from rollstream.process.tracing.spans import OFF, Span, Tracing
from rollstream.schemas.errors import (
    BadMessageError,
    BrokenWorldError,
    DecodeError,
    EncodeError,
    PoisonError,
    RecordTooLargeError,
    RollstreamError,
    TooManyFailuresError,
)
from rollstream.schemas.record import Record
from rollstream.schemas.topics import DEAD_LETTERS, Topic
from rollstream.stage.dead_letters import dead_letter
from rollstream.stage.starts import PoisonGuard, Start

_LOG = logging.getLogger(__name__)

T = TypeVar("T", bound=Record)
R = TypeVar("R", bound=Record)

MAX_FAILURES_A_MINUTE: Final = 20
# Cancelled handlers may need a moment to end their model calls; one that ignores the cancellation is left behind.
_CANCEL_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(Generic[T, R]):
    """How the records of the topic `source` are handled.

    `handle` yields each result as soon as it is complete. `on_failure` gives the results to publish if `handle` raised
    or the record was given up; without it the message becomes a dead letter. Both are told where the record lies, and
    may give it an `ending`. `if_too_large` makes a smaller result of one over the size limit. `weight` is the
    record's share of `ConsumerSettings.max_weight`, and `freed` the part of that which ends with one of its results.

    `waits` gives what a record must wait for before it is handled, None if for nothing: while it waits it has no share.
    False: it has not come, and the record needs no share to say so.

    `operation` names the work in the record's span. `trace` gives the headers of a result, whose span may be one of its
    own below that; else they are those of the record's span.
    """

    source: Topic[T]
    handle: Callable[[T, InFlight], AsyncGenerator[R, None]]
    output: Topic[R]
    on_failure: Callable[[T, Exception, InFlight], Iterable[R]] | None = None
    if_too_large: Callable[[R, RecordTooLargeError], R] | None = None
    weight: Callable[[T], int] | None = None
    freed: Callable[[R], int] | None = None
    waits: Callable[[T], Awaitable[bool] | None] | None = None
    operation: str = "process"
    trace: Callable[[Span, R], Headers] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The parts of one stage; `consumer` reads the sources of the routes."""

    run: Run
    consumer: GroupConsumer
    publisher: Publisher
    routes: Sequence[Route[Any, Any]]
    poison: PoisonGuard
    health: Health
    drain_seconds: float = 20.0
    tracing: Tracing = OFF


async def run_stage(stage: Stage, stop: Stop) -> None:
    """Run until `stop` is asked, then let handlers finish, commit and leave the group. Raises what ended it before."""
    work = _Work(stage)
    await stage.consumer.start(weigh=work.weigh, on_dropped=work.cancel_dropped)
    beating = asyncio.create_task(beat(stage.health, lambda: stage.poison.redis_state))
    try:
        await work.run_until(stop)
        stage.health.draining()
        await work.drain()
    finally:
        beating.cancel()
        await work.cancel_all()
        try:
            await stage.consumer.close()
        finally:
            await stage.poison.close()


class _Work:
    """The records in flight, each with a task."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._run = stage.run
        for route in stage.routes:
            stage.run.make_codecs(route.source, route.output)
        self._routes = {stage.run.topic(route.source): route for route in stage.routes}
        for topic in self._routes:
            # From the start on: Prometheus sees no increase where a series begins.
            metrics.HANDLER_FAILURES.labels(topic)
        self._tasks: dict[InFlight, asyncio.Task[None]] = {}
        self._spans: dict[InFlight, Span] = {}
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Times of the latest failures: one more than the bound, so that the first and last tell the rate.
        self._failures: deque[float] = deque(maxlen=MAX_FAILURES_A_MINUTE + 1)
        self._is_ending = False

    async def run_until(self, stop: Stop) -> None:
        """Take records until `stop` is asked; raises the first error that must end the process."""
        await first_to_end(self._take_records(), stop.asked(), asyncio.shield(self._broken))

    async def drain(self) -> None:
        """Take no more records and let handlers finish within the bound. Raises what must end the process meanwhile."""
        self._stage.consumer.pause_for("draining")
        deadline = time.monotonic() + self._stage.drain_seconds
        while self._tasks and not self._broken.done() and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait(self._tasks.values(), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if self._broken.done():
            self._broken.result()

    async def cancel_all(self) -> None:
        """Cancel the handlers that still run; their offsets stay uncommitted."""
        self._is_ending = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            _LOG.info("%d records are left to their next owner", len(tasks))
            await asyncio.wait(tasks, timeout=_CANCEL_SECONDS)
        if self._broken.done():
            self._broken.exception()  # read it, or asyncio logs it as never retrieved

    def cancel_dropped(self) -> None:
        """Cancel the handlers of records whose partitions were revoked or lost."""
        for taken, task in self._tasks.items():
            if not taken.is_current:
                task.cancel()

    def weigh(self, message: KafkaMessage) -> int:
        """The message's share of the consumer's `max_weight`; raises what decoding raises."""
        route = self._routes[message.topic]
        if route.weight is None:
            return 1
        return route.weight(self._run.codec(route.source).decode(message.checked_value()))

    async def _take_records(self) -> None:
        async for taken in self._stage.consumer.records():
            task = asyncio.create_task(self._work_on(taken))
            self._tasks[taken] = task
            task.add_done_callback(partial(self._ended, taken))
        raise BrokenWorldError("the consumer ended although nobody closed it")

    def _ended(self, taken: InFlight, task: asyncio.Task[None]) -> None:
        del self._tasks[taken]
        self._spans.pop(taken, None)  # a task that was cancelled before it began has none
        error: BaseException | None
        if not task.cancelled():
            error = task.exception()
        elif self._cancelled_itself(taken):
            error = BrokenWorldError("a handler cancelled itself, its record would never finish")
        else:
            error = None
        if error is not None and not self._broken.done():
            self._broken.set_exception(error)

    def _cancelled_itself(self, taken: InFlight) -> bool:
        """Whether the handler, and not this loop, cancelled the record's task, which is cancelled."""
        return taken.is_current and not self._is_ending

    # One record, from its start to the confirmation of all its effects.

    async def _work_on(self, taken: InFlight) -> None:
        span = self._spans[taken] = processing(
            self._stage.tracing,
            taken.message,
            operation=self._routes[taken.message.topic].operation,
            group=self._stage.consumer.group_id,
        )
        # In this task and those of the handler, every log line says which message it is about.
        bind_contextvars(**taken.message.place(), **span.log_keys)
        try:
            await self._finish(taken)
        except BaseException as error:
            span.fail(type(error).__name__)
            raise
        finally:
            span.end()

    async def _finish(self, taken: InFlight) -> None:
        async with self._stage.poison.start(taken.message) as start:
            # It may have waited for others, or they for one that runs alone: that does not count against its bound.
            taken.begin()
            try:
                with listening(taken.mark):
                    await self._decode_and_handle(taken, start)
            except asyncio.CancelledError:
                if self._cancelled_itself(taken) or self._is_late(taken):
                    self._stage.poison.blame(taken.message)
                raise
        crash_point("effects_confirmed")
        taken.done()

    def _is_late(self, taken: InFlight) -> bool:
        return time.monotonic() > taken.begun_at + self._stage.consumer.record_deadline_seconds

    async def _decode_and_handle(self, taken: InFlight, start: Start) -> None:
        route = self._routes[taken.message.topic]
        if start.is_hopeless:
            await self._dead_letter(taken, start, _died_too_often(start), reason="poison")
            return
        try:
            record = self._run.codec(route.source).decode(taken.message.checked_value())
        except DecodeError as error:
            await self._dead_letter(taken, start, error, reason="unreadable")
            return
        try:
            if start.is_given_up:
                raise _died_too_often(start)
            await self._wait(taken, route, record)
            async with aclosing(route.handle(record, taken)) as results:
                await self._publish(taken, route, results)
        except BadMessageError as error:
            await self._fail(taken, start, record, error)
        except RollstreamError:
            raise
        except Exception as error:  # noqa: BLE001 (a handler may raise anything)
            self._count_failure(taken, error)
            await self._fail(taken, start, record, error)

    async def _wait(self, taken: InFlight, route: Route[Any, Any], record: Record) -> None:
        waiting = None if route.waits is None else route.waits(record)
        if waiting is not None:
            await taken.rest(waiting)

    async def _publish(self, taken: InFlight, route: Route[Any, Any], results: AsyncIterable[Record]) -> None:
        """Send each result as it comes and wait until all are confirmed, even if the handler raises."""
        deliveries = Deliveries()
        try:
            async for result in results:
                await self._send(taken, route, result, deliveries)
                if route.freed is not None:
                    taken.free(route.freed(result))
        except Exception:
            await self._confirmed(route, deliveries)
            raise
        await self._confirmed(route, deliveries)

    async def _send(self, taken: InFlight, route: Route[Any, Any], result: Record, deliveries: Deliveries) -> None:
        if not taken.is_current:
            # The partition was revoked or lost; `cancel_dropped` is about to cancel this task.
            raise asyncio.CancelledError
        span = self._spans[taken]
        headers = span.headers if route.trace is None else route.trace(span, result)
        try:
            sent = self._run.out_record(route.output, result, headers)
        except RecordTooLargeError as error:
            if route.if_too_large is None:
                raise
            sent = self._run.out_record(route.output, route.if_too_large(result, error), headers)
        await self._stage.publisher.send(sent, deliveries)

    async def _confirmed(self, route: Route[Any, Any], deliveries: Deliveries) -> None:
        await deliveries.confirmed()
        metrics.PUBLISHED.labels(self._run.topic(route.output)).inc(deliveries.num_sent)

    async def _fail(self, taken: InFlight, start: Start, record: Record, error: Exception) -> None:
        self._spans[taken].fail(type(error).__name__)
        route = self._routes[taken.message.topic]
        if route.on_failure is None:
            reason = "poison" if isinstance(error, PoisonError) else "failed"
            await self._dead_letter(taken, start, error, reason=reason)
            return
        deliveries = Deliveries()
        try:
            for result in route.on_failure(record, error, taken):
                await self._send(taken, route, result, deliveries)
        except EncodeError as unwritable:
            await self._dead_letter(taken, start, unwritable, reason="unwritable")
        await self._confirmed(route, deliveries)

    async def _dead_letter(self, taken: InFlight, start: Start, error: Exception, *, reason: str) -> None:
        if not taken.is_current:
            raise asyncio.CancelledError
        self._spans[taken].fail(reason)
        stage, message = self._stage, taken.message
        letter = dead_letter(
            message,
            topic=self._run.topic(DEAD_LETTERS),
            group=stage.consumer.group_id,
            error=error,
            attempts=start.number,
            failed_at=datetime.now(UTC),
        )
        await stage.publisher.publish(letter)
        metrics.DEAD_LETTERS.labels(message.topic, reason).inc()
        _LOG.warning("dead letter (%s): %s", reason, error)

    def _count_failure(self, taken: InFlight, error: Exception) -> None:
        metrics.HANDLER_FAILURES.labels(taken.message.topic).inc()
        _LOG.error("a handler failed", exc_info=error)
        now = time.monotonic()
        self._failures.append(now)
        if len(self._failures) > MAX_FAILURES_A_MINUTE and now - self._failures[0] < 60:
            raise TooManyFailuresError(
                f"{len(self._failures)} handler failures within a minute, the bound is {MAX_FAILURES_A_MINUTE}; "
                f"the last: {type(error).__name__}: {error}"
            ) from error


def _died_too_often(start: Start) -> PoisonError:
    return PoisonError(f"the process died on this record {start.number - 1} times")
