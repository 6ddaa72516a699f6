"""A member of a consumer group: a thread that polls Kafka, and records for the event loop.

Generation takes minutes and ends out of order, but Kafka excludes a member that does not poll. So one thread only
polls, commits and answers rebalances. It waits for handlers only when partitions are revoked, and for a bounded time.
It puts records into a backlog, from which the event loop takes them while there is room. A full backlog pauses the
partitions; the thread goes on polling (`backlog.py`).

An exception in a callback, of the client or in the event loop, ends the thread, and `records` raises it: nothing is
committed any more, since nobody knows what the callback left undone. The same holds for a topic that was made anew
(`topic_watch.py`): its offsets are not those that were taken.

Only that thread calls the Kafka client. `_lock` guards the assignment, which both threads use, and the backlog, except
that the polling thread appends without it. A record is taken when it leaves the backlog: nothing in it is committed.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, TopicPartition

from rollstream.bus import metrics
from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.backlog import Backlog
from rollstream.bus.clients import made
from rollstream.bus.commits import as_commits, beginnings, confirmed
from rollstream.bus.group_config import ConsumerSettings, group_config, note_error
from rollstream.bus.in_flight import InFlight, Room
from rollstream.bus.message import KafkaMessage, Partition
from rollstream.bus.offsets import Assignment, Ending
from rollstream.bus.receiving import Receiver
from rollstream.bus.topic_watch import TopicWatch
from rollstream.process.health import Health
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.errors import StuckRecordError, TopicChangedError

_LOG = logging.getLogger(__name__)

_BATCH: Final = 64
_POLL_SECONDS: Final = 0.05
# Time for the event loop to end the process in order, with a log line of the reason.
_HARD_EXIT_SECONDS: Final = 8.0
_ENDINGS_SECONDS: Final = 5.0


class GroupConsumer:
    """A member of the group `group_id`. `start` joins it, `records` yields, `close` commits and leaves it."""

    def __init__(
        self,
        kafka: KafkaSettings,
        *,
        group_id: str,
        topics: Sequence[str],
        settings: ConsumerSettings,
        health: Health,
    ) -> None:
        self.group_id = group_id
        self.record_deadline_seconds = settings.record_deadline_seconds
        self._kafka = kafka
        self._topics = list(topics)
        self._consumed = {topic: metrics.CONSUMED.labels(topic) for topic in topics}
        metrics.PAUSED.labels(group_id).set(0)
        self._settings = settings
        self._health = health
        config = {
            **group_config(kafka, group_id, settings.max_poll_interval_seconds),
            "on_commit": self._on_commit,
            "error_cb": partial(note_error, group_id),
        }
        self._client = made(confluent_kafka.Consumer, config, kafka)
        self._receiver = Receiver(self._client)
        self._lock = threading.Lock()
        self._assignment = Assignment()
        self._backlog = Backlog()
        self._room = Room(self._assignment, self._lock, settings, self._start_records)
        self._is_committing = False
        self._ending: set[asyncio.Task[None]] = set()
        # What a callback raised; from then on nothing is committed.
        self._failure: BaseException | None = None
        self._closing = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"{group_id}-poll")
        self._has_news = asyncio.Event()
        self._hard_exit: threading.Timer | None = None
        health.check("assignment", False, "not a member yet")

    # From here on: called by the event loop.

    async def start(self, *, weigh: Callable[[KafkaMessage], int], on_dropped: Callable[[], None]) -> None:
        """Subscribe. `weigh` gives a record's share of max_weight, 1 where it raises. `on_dropped` is called after
        partitions were revoked or lost, to cancel records that are not current any more. Both are called in the event
        loop."""
        self._weigh = weigh
        self._on_dropped = on_dropped
        self._loop = asyncio.get_running_loop()
        self._polling = self._loop.run_in_executor(self._thread, self._run)
        self._polling.add_done_callback(lambda _: self._has_news.set())

    async def records(self) -> AsyncIterator[InFlight]:
        """Records as they arrive, until `close`. Raises what ended the polling thread."""
        while not self._polling.done():
            await self._has_news.wait()
            self._has_news.clear()
            while self._room.taken:
                taken = self._room.taken.popleft()
                if taken.is_current:
                    yield taken
            self._start_records()
        await self._polling

    def _guarded(self, callback: Callable[[], None]) -> None:
        """Call it. What it raises ends the polling thread: the event loop itself would only log it."""
        try:
            callback()
        except BaseException as error:  # noqa: BLE001 (raised again, by the polling thread)
            self._failure = error

    def pause_for(self, reason: str) -> None:
        """Take no records until `resume_for` is called with the same reason. Both are for the event loop."""
        self._room.reasons.add(reason)

    def resume_for(self, reason: str) -> None:
        """Remove this reason; records are taken again when none is left."""
        self._room.reasons.discard(reason)
        self._start_records()

    async def close(self) -> None:
        """Commit what is finished and leave the group. Raises the error that ended the polling thread, if any."""
        self._closing.set()
        try:
            await self._polling
        finally:
            if self._hard_exit is not None:
                self._hard_exit.cancel()
            self._thread.shutdown(wait=False)
            if self._ending:
                # Of the last commit. What they leave undone is only more than is needed.
                await asyncio.wait(self._ending, timeout=_ENDINGS_SECONDS)

    def _start_records(self) -> None:
        self._guarded(self._take_from_backlog)

    def _take_from_backlog(self) -> None:
        """Take records from the backlog as far as the bounds allow."""
        counts: dict[str, int] = {}
        with self._lock:
            self._room.resume_rested()
            while self._backlog and self._room.for_another():
                message = self._backlog.take()
                weight = self._weight_of(message)
                tracker = self._assignment.start(message.topic_partition, message.offset, weight=weight)
                if tracker is not None:
                    counts[message.topic] = counts.get(message.topic, 0) + 1
                    self._room.taken.append(InFlight(message, tracker, self._room))
        for topic, count in counts.items():
            self._consumed[topic].inc(count)
        if self._room.taken:
            self._has_news.set()
        self._backlog.say_if_low()

    def _weight_of(self, message: KafkaMessage) -> int:
        try:
            return self._weigh(message)
        except Exception:  # noqa: BLE001 (raised here, it would lose the record; its handling meets it again)
            return 1

    def _end(self, endings: Sequence[Ending]) -> None:
        """Begin what is to be done after a commit; an error of it ends the polling thread."""
        for ending in endings:
            task = asyncio.ensure_future(ending())
            self._ending.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._ending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error

    @property
    def num_in_flight(self) -> int:
        with self._lock:
            return self._assignment.num_unfinished

    # From here on: called by the polling thread.

    def _run(self) -> None:
        self._watch = TopicWatch(KafkaAdmin(self._kafka), self._topics)
        self._client.subscribe(
            self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        try:
            self._poll_until_closed()
        except StuckRecordError:
            # The event loop ends the process. If the loop itself hangs, this timer does.
            self._hard_exit = threading.Timer(_HARD_EXIT_SECONDS, os._exit, args=(StuckRecordError.exit_code,))
            self._hard_exit.daemon = True
            self._hard_exit.start()
            raise
        except BaseException as error:
            self._failure = error
            raise
        finally:
            try:
                self._commit_now(self._assignment.partitions)
            finally:
                self._client.close()

    def _poll_until_closed(self) -> None:
        next_tick = time.monotonic() + self._settings.commit_interval_seconds
        while not self._closing.is_set():
            self._health.heartbeat("poll", self._settings.max_poll_interval_seconds)
            self._pause_or_resume()
            self._fill_backlog()
            if self._failure is not None:
                raise self._failure
            if time.monotonic() >= next_tick:
                self._check_stuck()
                self._watch.added()
                self._commit_soon()
                self._measure()
                next_tick = time.monotonic() + self._settings.commit_interval_seconds

    def _fill_backlog(self) -> None:
        if not self._backlog.has_room(_POLL_SECONDS):
            return
        first = self._client.poll(_POLL_SECONDS)
        if first is None:
            return
        # Each poll releases the interpreter's lock, and a busy event loop then holds it for milliseconds. So one call
        # takes the rest. It does not wait: a partition may be lost in it, but cannot be assigned again so soon.
        for polled in [first, *self._client.consume(_BATCH, 0.0)]:
            message = self._receiver.message(polled)
            if message is None:
                note_error(self.group_id, polled.error())
            elif self._assignment.owns(message.topic_partition):
                self._backlog.put(message)
        self._loop.call_soon_threadsafe(self._start_records)

    def _pause_or_resume(self) -> None:
        must = self._backlog.must_pause(time.monotonic())
        if must == self._backlog.is_paused:
            return
        change = self._client.pause if must else self._client.resume
        change([TopicPartition(*partition) for partition in self._assignment.partitions])
        self._backlog.is_paused = must
        metrics.PAUSED.labels(self.group_id).set(must)

    def _check_stuck(self) -> None:
        with self._lock:
            oldest = self._assignment.oldest_begun()
        if oldest is not None and time.monotonic() - oldest > (bound := self.record_deadline_seconds):
            raise StuckRecordError(
                f"a record of {self.group_id} is unfinished for more than {bound} s: its handler hangs; "
                "raise record_deadline_seconds if handlers may take that long"
            )

    # Rebalances; the client calls these inside its poll.

    def _on_assign(self, client: Any, partitions: list[TopicPartition]) -> None:
        self._watch.look()
        with self._lock:
            self._assignment.add([(part.topic, part.partition) for part in partitions])
        client.incremental_assign(beginnings(client, partitions, self._watch))
        if self._backlog.is_paused:  # new partitions arrive unpaused
            client.pause(partitions)
        metrics.REBALANCES.labels(self.group_id, "assigned").inc(len(partitions))
        self._health.check("assignment", True, f"{len(self._assignment.partitions)} partitions")
        _LOG.info("%s: assigned %s", self.group_id, [(part.topic, part.partition) for part in partitions])

    def _on_revoke(self, _client: Any, partitions: list[TopicPartition]) -> None:
        going = [(part.topic, part.partition) for part in partitions]
        self._forget_backlog(going)
        deadline = time.monotonic() + self._settings.revoke_drain_seconds
        while self._num_unfinished(going) and time.monotonic() < deadline and not self._closing.is_set():
            self._health.heartbeat("poll", self._settings.max_poll_interval_seconds)
            time.sleep(0.01)
        # Before the callback returns, since the next owner reads on from this commit.
        self._commit_now(going)
        self._drop(going, "revoked")

    def _on_lost(self, _client: Any, partitions: list[TopicPartition]) -> None:
        # No commit: another member may own them already and have committed more.
        gone = [(part.topic, part.partition) for part in partitions]
        self._forget_backlog(gone)
        self._drop(gone, "lost")

    def _forget_backlog(self, partitions: list[Partition]) -> None:
        with self._lock:
            self._backlog.forget(partitions)

    def _drop(self, partitions: list[Partition], event: str) -> None:
        with self._lock:
            num_unfinished = self._assignment.num_unfinished_in(partitions)
            self._assignment.remove(partitions)
        metrics.REBALANCES.labels(self.group_id, event).inc(len(partitions))
        _LOG.info("%s: %s %s, %d records unfinished", self.group_id, event, partitions, num_unfinished)
        self._loop.call_soon_threadsafe(self._guarded, self._on_dropped)

    def _num_unfinished(self, partitions: list[Partition]) -> int:
        with self._lock:
            return self._assignment.num_unfinished_in(partitions)

    # Commits.

    def _to_commit(self, partitions: Sequence[Partition] | None = None) -> list[TopicPartition]:
        with self._lock:
            commits = self._assignment.to_commit(partitions) if self._failure is None else {}
        return as_commits(commits, self._watch) if commits else []

    def _commit_soon(self) -> None:
        # One commit at a time: the coordinator answers none during a rebalance, and they would accumulate.
        offsets = [] if self._is_committing else self._to_commit()
        if offsets:
            self._is_committing = True
            self._client.commit(offsets=offsets, asynchronous=True)

    def _commit_now(self, partitions: Sequence[Partition]) -> None:
        if not (offsets := self._to_commit(partitions)):
            return
        try:
            # Partitions of a topic that was made anew are revoked, and the commit would count for the new one.
            self._watch.look()
        except TopicChangedError as error:
            self._failure = error
            raise
        try:
            self._note_commit(None, self._client.commit(offsets=offsets, asynchronous=False))
        except confluent_kafka.KafkaException as error:
            self._note_commit(error.args[0], offsets)

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        self._is_committing = False
        self._note_commit(error, partitions)

    def _note_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        problems = {problem.code(): problem for part in partitions if (problem := error or part.error)}
        metrics.COMMITS.labels(self.group_id, "failed" if problems else "committed").inc()
        endings: list[Ending] = []
        with self._lock:
            for partition, commit in confirmed(partitions, error).items():
                endings += self._assignment.committed(partition, commit)
        if endings:
            self._loop.call_soon_threadsafe(self._end, endings)
        # Usually the partitions are not owned any more. For those that are, the next commit repeats this one.
        for problem in problems.values():
            note_error(self.group_id, problem)

    def _measure(self) -> None:
        with self._lock:
            records, weight = self._assignment.num_unfinished, self._assignment.weight
            oldest = self._assignment.oldest_begun()
            next_offsets = {one: self._assignment.committable(one) for one in self._assignment.partitions}
        metrics.IN_FLIGHT.labels(self.group_id).set(records)
        metrics.IN_FLIGHT_WEIGHT.labels(self.group_id).set(weight)
        since = 0 if oldest is None else time.time() - (time.monotonic() - oldest)
        metrics.OLDEST_UNFINISHED.labels(self.group_id).set(since)
        for topic in self._topics:
            offsets = {one: offset for one, offset in next_offsets.items() if one[0] == topic and offset is not None}
            metrics.LAG.labels(self.group_id, topic).set(sum(self._lag(*pair) for pair in offsets.items()))

    def _lag(self, partition: Partition, next_offset: int) -> int:
        # cached: a question to the broker would stop this thread from polling.
        _, end = self._client.get_watermark_offsets(TopicPartition(*partition), cached=True)
        return max(0, int(end) - next_offset)
