"""Handles one batch of the scorer: decode, score, publish, and wait until the broker has confirmed everything.

Every message ends as a scored rollout or as a dead letter. Whatever is raised here ends the process,
because the batch must not be committed.

Samples that hang use up the time of a batch. Then what is scored is published, and the rest gets the same time again,
as often as needed: no good sample is given up because others hang. Only if Kafka moves partitions, or the process is to
stop, the rest ends as unresolved: both wait for the batch.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rollstream.bus import metrics as bus_metrics
from rollstream.bus.deliveries import Deliveries
from rollstream.bus.message import KafkaMessage, OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.bus.run import Run
from rollstream.bus.tracing import processing
from rollstream.environments.pool.pool import ScoringPool
from rollstream.environments.pool.verdicts import REWARD_AT_TIMEOUT, ScoringSample, Verdict, unresolved
from rollstream.process.crash_points import crash_point
from rollstream.process.tracing.spans import OFF, ROLLOUT_ID, Span, Tracing
from rollstream.schemas.errors import DecodeError, PoisonError, RecordTooLargeError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.record import utc_now
from rollstream.schemas.rollout import RolloutGenerated
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import DEAD_LETTERS, Topic
from rollstream.scorer import metrics
from rollstream.scorer.handler import ScorerIdentity, annotated, sample_of, without_tokens
from rollstream.stage.dead_letters import dead_letter
from rollstream.stage.starts import ALONE_AFTER, GIVEN_UP_AFTER, StartCounter

_LOG = logging.getLogger(__name__)

CRASH_POINT: Final = "batch_scored"


_MUST_END: Final = unresolved(FailureCode.TIMEOUT, "its turn did not come before its batch had to end; others hung")

ScoringRoute = tuple[Topic[RolloutGenerated], Topic[RolloutScored]]
"""Which topic is read, and where its rollouts go once they are scored."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """A rollout, the topic that it came from, and the span of its scoring."""

    topic: str
    rollout: RolloutGenerated
    span: Span


@dataclass(eq=False, kw_only=True)
class BatchScorer:
    """Scores batches of messages."""

    run: Run
    routes: Sequence[ScoringRoute]
    group: str
    pool: ScoringPool
    publisher: Publisher
    starts: StartCounter
    scorer: ScorerIdentity
    tracing: Tracing = OFF

    def __post_init__(self) -> None:
        for source, output in self.routes:
            self.run.make_codecs(source, output)
        self._by_topic = {self.run.topic(source): (source, output) for source, output in self.routes}

    async def score(self, messages: Sequence[KafkaMessage], must_end: Callable[[], bool]) -> None:
        """Handle a batch; returns when the broker has confirmed everything that it causes.

        `must_end` says whether somebody waits for the end of the batch.
        """
        began = time.monotonic()
        # A record that was started several times and never ended may be what kills the process: it is handled alone,
        # so that the other records of its batch get their results.
        previous = await self.starts.previous(messages)
        if together := [message for message, starts in zip(messages, previous, strict=True) if starts < ALONE_AFTER]:
            await self._settle(together, must_end)
        for message, starts in zip(messages, previous, strict=True):
            if starts >= GIVEN_UP_AFTER:
                await self._give_up(message, starts)
            elif starts >= ALONE_AFTER:
                await self._settle([message], must_end, attempts=starts + 1)
        crash_point(CRASH_POINT)
        metrics.BATCH.observe(time.monotonic() - began)
        metrics.BATCH_SIZE.observe(len(messages))

    async def _settle(self, messages: Sequence[KafkaMessage], must_end: Callable[[], bool], attempts: int = 1) -> None:
        async with self.starts.counted(messages):
            letters, rollouts = self._decoded(messages, attempts)
            await self._publish(letters)
            while rollouts:
                rollouts = await self._score_some(rollouts, must_end)

    async def _score_some(self, rollouts: list[_Taken], must_end: Callable[[], bool]) -> list[_Taken]:
        """Score as many as the time of a batch allows, and publish them. Returns the others."""
        verdicts = await self._verdicts([taken.rollout for taken in rollouts])
        is_last = must_end()
        results, scored, left = [], [], []
        for taken, given in zip(rollouts, verdicts, strict=True):
            verdict = given or (_MUST_END if is_last else None)
            if verdict is None:
                left.append(taken)
            else:
                results.append(self._result(taken, verdict))
                scored.append(taken)
        await self._publish(results)
        for taken in scored:
            taken.span.end()
        return left

    def _decoded(self, messages: Sequence[KafkaMessage], attempts: int) -> tuple[list[OutRecord], list[_Taken]]:
        """Dead letters of the messages that can't be read, and the rollouts of the others."""
        letters: list[OutRecord] = []
        rollouts: list[_Taken] = []
        for message in messages:
            bus_metrics.CONSUMED.labels(message.topic).inc()
            source, _ = self._by_topic[message.topic]
            span = self._span(message)
            try:
                rollouts.append(_Taken(message.topic, self.run.codec(source).decode(message.value), span))
            except DecodeError as error:
                letters.append(self._letter(message, error, span, attempts=attempts, reason="unreadable"))
        return letters, rollouts

    async def _verdicts(self, rollouts: Sequence[RolloutGenerated]) -> list[Verdict | None]:
        asked = [sample_of(rollout) for rollout in rollouts]
        given = iter(await self.pool.score([sample for sample in asked if isinstance(sample, ScoringSample)]))
        return [next(given) if isinstance(sample, ScoringSample) else sample for sample in asked]

    def _result(self, taken: _Taken, verdict: Verdict) -> OutRecord:
        topic, rollout, span = taken.topic, taken.rollout, taken.span
        _, output = self._by_topic[topic]
        scored = annotated(rollout, verdict, self.scorer, utc_now())
        try:
            result = self.run.out_record(output, scored, span.headers)
        except RecordTooLargeError as error:
            scored = without_tokens(scored, error)
            result = self.run.out_record(output, scored, span.headers)
        metrics.ROLLOUTS.labels(topic.rpartition(".")[2], scored.scoring.status.value).inc()
        if REWARD_AT_TIMEOUT in scored.scoring.components:
            metrics.REWARDS_AT_TIMEOUT.inc()
        if scored.scoring.failure is not None:
            metrics.FAILURES.labels(scored.scoring.failure.code.value).inc()
            span.fail(scored.scoring.failure.code.value)
        if verdict.failure is not None and rollout.failure is None:
            _LOG.warning("no reward: %s", verdict.failure, extra={"rollout_id": rollout.rollout_id, **span.log_keys})
        span.set({ROLLOUT_ID: rollout.rollout_id})
        return result

    async def _give_up(self, message: KafkaMessage, starts: int) -> None:
        error = PoisonError(f"the process died on this record {starts} times")
        await self._publish([self._letter(message, error, self._span(message), attempts=starts, reason="poison")])

    def _span(self, message: KafkaMessage) -> Span:
        return processing(self.tracing, message, operation="score", group=self.group)

    def _letter(self, message: KafkaMessage, error: Exception, span: Span, *, attempts: int, reason: str) -> OutRecord:
        bus_metrics.DEAD_LETTERS.labels(message.topic, reason).inc()
        _LOG.warning("dead letter (%s): %s", reason, error, extra={**message.place(), **span.log_keys})
        span.fail(reason)
        span.end()
        topic = self.run.topic(DEAD_LETTERS)
        return dead_letter(message, topic=topic, group=self.group, error=error, attempts=attempts, failed_at=utc_now())

    async def _publish(self, records: Sequence[OutRecord]) -> None:
        deliveries = Deliveries()
        for record in records:
            await self.publisher.send(record, deliveries)
        await deliveries.confirmed()
        for record in records:
            bus_metrics.PUBLISHED.labels(record.topic).inc()
