"""The Faust application of the scorer: it gives out batches of raw messages, and does nothing else.

What Faust 0.15.3 does, and what is done about it:
- With a concurrency above 1 it commits past unfinished messages. So there is one agent, with concurrency 1.
- When the body of a `take` loop ends, even by an error, it acknowledges the batch. So `noack_take` is used, and each
  batch is acknowledged here, after everything that it caused is confirmed.
- When an exception leaves an agent, Faust restarts the agent and goes on with the next batch. So an error ends the
  process at once, with `os._exit`.
- It acknowledges messages that it can't decode. So it reads raw bytes, and our codec decodes them.
- Its producer is idempotent only in its exactly-once mode. So our own producer publishes the results.
- It makes directories for tables, which the scorer does not have. A killed process would leave them behind, so it makes
  none.
- It asks every five minutes who leads which partition. aiokafka asks earlier after most errors, but not when it looks
  for the first offset of a partition: it asks the old leader ten times a second. So it asks every few seconds.
- After a rebalance it drops what it has polled, and seeks to the committed offset. aiokafka does not seek a partition
  of which nothing is committed: what was polled and dropped would never be read. It also goes on at what was committed
  of a topic that was deleted since, and made anew. So commits say of which topic they are, and partitions without one
  that counts are read again from their start.
- It bounds the buffer before the stream by the number of records alone. Small records need some thousands there, and a
  record may have 7 MiB. So the buffer is bounded by bytes too.
- While a broker is away, aiokafka's fetches wait for their next try. If it is closed then, it raises their cancellation
  into whoever closes it, which is Faust's consumer thread. So that is passed over.
- At the end and before a rebalance it commits nothing if a commit is under way. So that one is waited for first.
- It says nowhere whether records are fetched. `fetched` looks into its consumer.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import faust
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from faust.transport.drivers.aiokafka import Consumer as AiokafkaConsumer
from mode.utils.queues import ThrowableQueue

from rollstream.bus.commit_notes import ended, is_of_topic, metadata_of
from rollstream.bus.commits import warn_of_foreign_commit
from rollstream.bus.message import KafkaMessage, Partition
from rollstream.bus.publisher import MAX_MESSAGE_BYTES
from rollstream.bus.topic_watch import TopicWatch
from rollstream.process.ending import end_process, leave
from rollstream.process.settings.base import KafkaSettings
from rollstream.scorer.fetching import Fetched
from rollstream.scorer.header_names import accept_any_header_name
from rollstream.scorer.security import faust_credentials

_LOG = logging.getLogger(__name__)

Handle = Callable[[Sequence[KafkaMessage], Callable[[], bool]], Awaitable[None]]
"""Handles one batch. It returns when the broker has confirmed every record that the batch caused.

The function that it gets says whether somebody waits for the end of the batch: a rebalance, or the end of the process.
Whatever it raises ends the process, and the batch is not committed.
"""

_TAKE_WITHIN_SECONDS: Final = 0.02
_POLLED: Final = 1024
"""Records of one poll. A poll crosses two threads and takes 0.1 s, however few records it brings: with 128 records a
poll, small records came at a third of the speed. Records read ahead are read again after a rebalance."""
MAX_BUFFER_BYTES: Final = 64 * 2**20
"""Beyond it lie one record, one batch that is scored, and what one poll has brought: some megabytes a partition."""
_COMMIT_SECONDS: Final = 1.0
_METADATA_SECONDS: Final = 5.0
"""How long a partition that has a new leader may stand still. One request, of a few kilobytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """What the stream reads and how. `topics` are full names. `watch` looks at them: nothing is read before it has."""

    group: str
    topics: Sequence[str]
    watch: "asyncio.Future[TopicWatch]"
    batch_size: int
    session_timeout_seconds: float


class _ConsumerThread(AIOKafkaConsumerThread):  # type: ignore[misc]  # the library is not typed here
    def _create_consumer(self, loop: asyncio.AbstractEventLoop) -> Any:
        consumer = super()._create_consumer(loop)
        commit = consumer.commit

        async def commit_noted(offsets: Mapping[Any, Any]) -> None:
            await commit(_noted(offsets, self.app.topic_watch.result()))

        consumer.commit = commit_noted
        return consumer

    async def seek_to_committed(self) -> Mapping[Any, int | None]:
        """Also seek partitions of which nothing is committed that counts, see the module."""
        watch = await asyncio.shield(self.app.topic_watch)
        return await self.call_thread(self._seek_to_committed, watch)  # type: ignore[no-any-return]

    async def _seek_to_committed(self, watch: TopicWatch) -> Mapping[Any, int | None]:
        consumer = self._ensure_consumer()
        # aiokafka's public way gives no metadata.
        asked = consumer.assignment()
        offsets = _counted(await consumer._coordinator.fetch_committed_offsets(list(asked)), watch)
        assigned = asked & consumer.assignment()  # some may be gone meanwhile
        # Where the log begins later than at 0, aiokafka goes to its start.
        await self._seek_wait(consumer, {partition: offsets.get(partition, 0) for partition in assigned})
        return {partition: offsets.get(partition) for partition in assigned}

    async def on_thread_stop(self) -> None:
        # Otherwise the thread ends here, and the end of the process waits for it until its deadline.
        with contextlib.suppress(asyncio.CancelledError):
            await super().on_thread_stop()


class _Consumer(AiokafkaConsumer):  # type: ignore[misc]  # the library is not typed here
    def _new_consumer_thread(self) -> AIOKafkaConsumerThread:
        return _ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def commit_and_end_transactions(self) -> None:
        """Commit what is done. Faust does nothing while another commit, maybe of less, is under way."""
        while await self.maybe_wait_for_commit_to_finish():
            pass
        await super().commit_and_end_transactions()


class BoundedBuffer(ThrowableQueue):  # type: ignore[misc]  # the library is not typed here
    """A queue of Faust's events, between its consumer and its stream, that `MAX_BUFFER_BYTES` of values fill too.

    Faust stops and resumes fetching by `qsize`. So a large record counts as several.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._num_bytes = 0
        super().__init__(*args, **kwargs)

    def qsize(self) -> int:
        """The number of records, or more if they are large: at `MAX_BUFFER_BYTES` the queue's bound."""
        num_large = math.ceil(self._num_bytes / MAX_BUFFER_BYTES * int(self.maxsize))
        return max(len(self._queue), num_large)

    def clear(self) -> None:
        """Forget everything: Faust does so at a rebalance."""
        super().clear()
        self._num_bytes = 0

    def _put(self, item: Any) -> None:
        super()._put(item)
        self._num_bytes += _size(item)

    def _get(self) -> Any:
        item = super()._get()
        self._num_bytes -= _size(item)
        return item


class _App(faust.App):  # type: ignore[misc]  # the library is not typed here
    topic_watch: "asyncio.Future[TopicWatch]"

    def FlowControlQueue(  # noqa: N802 (the library's name)
        self, maxsize: int | None = None, *, clear_on_resume: bool = False
    ) -> BoundedBuffer:
        """Faust calls this to make the buffer of a stream."""
        return BoundedBuffer(maxsize=maxsize, flow_control=self.flow_control, clear_on_resume=clear_on_resume)

    def _new_consumer(self) -> Any:
        self.transport.Consumer = _Consumer
        return super()._new_consumer()

    def _create_directories(self) -> None:
        """None, see the module."""


def build_app(kafka: KafkaSettings, stream: StreamSettings, handle: Handle, on_assigned: Callable[[int], None]) -> Any:
    """The application, not started. `on_assigned` is called with the number of partitions that this process reads."""
    accept_any_header_name()
    session = stream.session_timeout_seconds
    app = _App(
        stream.group,
        broker=[f"aiokafka://{server.strip()}" for server in kafka.bootstrap_servers.split(",")],
        broker_credentials=faust_credentials(kafka.security),
        broker_session_timeout=session,
        # A rebalance waits for the running batch, which `ScorerSettings` keeps shorter than a session.
        broker_rebalance_timeout=session,
        broker_heartbeat_interval=min(3.0, session / 3),
        broker_commit_interval=_COMMIT_SECONDS,
        broker_max_poll_records=_POLLED,
        consumer_auto_offset_reset="earliest",
        consumer_max_fetch_size=MAX_MESSAGE_BYTES,
        consumer_metadata_max_age_ms=int(_METADATA_SECONDS * 1000),
        producer_max_request_size=MAX_MESSAGE_BYTES,
        stream_buffer_maxsize=2 * _POLLED,
        # Faust's exactly-once mode has open bugs that crash it and repeat records.
        processing_guarantee="at_least_once",
        table_standby_replicas=0,
        # `rollstream topics create` makes topics, with their settings: Faust must make none.
        topic_allow_declare=False,
        topic_disable_leader=True,
        web_enabled=False,
        autodiscover=False,
    )
    app.topic_watch = stream.watch
    _add_agent(app, stream, handle)
    _follow_assignment(app, on_assigned)
    return app


def fetched(app: Any) -> Mapping[Partition, Fetched]:
    """What is known of each partition that this process reads; empty while partitions are handed out."""
    # Faust and aiokafka have no public way. These names are checked by a test on a broker.
    consumer, committed = app.consumer._thread._consumer, app.consumer._committed_offset
    if consumer is None:
        return {}
    try:
        return {
            (tp.topic, tp.partition): Fetched(
                answer=consumer.last_poll_timestamp(tp),
                has_records=tp in consumer._fetcher._records,
                lag=max(0, (consumer.highwater(tp) or 0) - (committed.get(tp) or 0)),
            )
            for tp in consumer.assignment()
        }
    except AssertionError:  # aiokafka's, for a partition that is handed on meanwhile: this thread is not the consumer's
        return {}


def leave_at_once() -> NoReturn:
    """End the process in order, with nothing handled. Logs are flushed."""
    _LOG.info("ended before it had started")
    leave(0)


def _noted(commits: Mapping[Any, Any], watch: TopicWatch) -> dict[Any, Any]:
    """Commits with the ids of their topics, as those of the generators have them (`bus/commits.py`)."""
    return {
        partition: commit._replace(metadata=ended(metadata_of(watch.topic_id(partition.topic), "")))
        for partition, commit in commits.items()
    }


def _counted(commits: Mapping[Any, Any], watch: TopicWatch) -> dict[Any, int]:
    """The offsets of those commits that are of the topics that are read, and not of deleted ones."""
    offsets = {}
    for partition, commit in commits.items():
        if is_of_topic(commit.metadata, watch.topic_id(partition.topic)):
            offsets[partition] = commit.offset
        else:
            warn_of_foreign_commit((partition.topic, partition.partition))
    return offsets


def _add_agent(app: Any, stream: StreamSettings, handle: Handle) -> None:
    def must_end() -> bool:
        return bool(app.rebalancing or app.should_stop)

    source = app.topic(*stream.topics, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")

    @app.agent(source, concurrency=1, name="score")  # type: ignore[untyped-decorator]
    async def _score(arriving: Any) -> None:
        async for events in arriving.noack_take(stream.batch_size, within=_TAKE_WITHIN_SECONDS):
            try:
                await handle([_message(event.message) for event in events], must_end)
            except BaseException as error:  # noqa: BLE001 (Faust would go on with the next batch)
                end_process(error, "nothing of the batch is committed")
            # Only now: an acknowledged message may be committed at any time.
            for event in events:
                await arriving.ack(event)


def _follow_assignment(app: Any, on_assigned: Callable[[int], None]) -> None:
    @app.on_partitions_assigned.connect(weak=False)  # type: ignore[untyped-decorator]
    async def _assigned(sender: Any, assigned: set[Any], **_: Any) -> None:
        on_assigned(len(assigned))

    @app.on_partitions_revoked.connect(weak=False)  # type: ignore[untyped-decorator]
    async def _revoked(sender: Any, revoked: set[Any], **_: Any) -> None:
        on_assigned(0)


def _message(message: Any) -> KafkaMessage:
    headers = message.headers or ()
    pairs = headers.items() if hasattr(headers, "items") else headers
    return KafkaMessage(
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        key=message.key,
        value=message.value,
        headers=tuple(pairs),
        timestamp_ms=round((message.timestamp or 0) * 1000),
    )


def _size(event: Any) -> int:
    return len(event.message.value or b"")
