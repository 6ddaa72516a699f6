"""Puts answers that have settled on `scored`, each as a group of one, the newest first."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rollstream.bus.message import OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.bus.run import Run
from rollstream.bus.tracing import sending
from rollstream.process.crash_points import crash_point
from rollstream.process.tracing.spans import Tracing
from rollstream.producers.feedback import metrics
from rollstream.producers.feedback.answers import SettledAnswer
from rollstream.producers.feedback.served_answers import group_of_one
from rollstream.producers.feedback.settling import LeftOut
from rollstream.producers.feedback.store import FeedbackStore
from rollstream.producers.settings import ProducerSettings
from rollstream.producers.standing import published
from rollstream.schemas.errors import EncodeError
from rollstream.schemas.topics import SCORED, SERVE_SCORED

_LOG = logging.getLogger(__name__)
_MOST_AT_ONCE: Final = 500
_MOST_BYTES_AT_ONCE: Final = 2**25

Lag = Callable[[int], int | None]
"""Weight version → steps behind the newest; None: not known here."""


class GroupPublisher:
    """Publishes settled answers, and notes in the store that they are."""

    def __init__(
        self, run: Run, store: FeedbackStore, settings: ProducerSettings, publisher: Publisher, tracing: Tracing
    ) -> None:
        self._run = run
        self._store = store
        self._settings = settings
        self._publisher = publisher
        self._tracing = tracing

    def publish(self, room: int, lag: Lag, now_ms: int) -> list[str]:
        """Publish at most `room` answers, and leave out what is too old or too large. Returns their groups.

        `now_ms`: the broker's time.
        """
        settled = self._store.answers.newest_settled(min(room, _MOST_AT_ONCE))
        chosen = list(_within_bytes([answer for answer in settled if not self._is_too_old(answer, lag, now_ms)]))
        records = [(answer, record) for answer in chosen if (record := self._record(answer)) is not None]
        if not records:
            return []
        with sending(self._tracing, [record for _, record in records], operation="submit") as sent:
            published(self._publisher, sent)
        crash_point("feedback_published")
        with self._store.transaction():
            self._store.answers.published([answer.id for answer, _ in records])
        crash_point("feedback_noted")
        metrics.PUBLISHED.inc(len(records))
        return [answer.group_id for answer, _ in records]

    def _is_too_old(self, answer: SettledAnswer, lag: Lag, now_ms: int) -> bool:
        """Leave it out if its window has ended, or its weights are too far behind; whether it is."""
        steps = lag(answer.version)
        if answer.ends_ms < now_ms:
            self._leave_out(answer, LeftOut.WINDOW)
        elif steps is not None and steps > self._settings.max_served_lag:
            self._leave_out(answer, LeftOut.TOO_OLD)
        else:
            return False
        return True

    def _record(self, answer: SettledAnswer) -> OutRecord | None:
        body, joined = self._store.answers.joined(answer.id)
        scored = self._run.codec(SERVE_SCORED).decode(body)
        group = group_of_one(scored, joined, run=self._run.name, producer=self._settings.name)
        try:
            return self._run.out_record(SCORED, group)
        except EncodeError as error:
            _LOG.warning("an answer can't train: %s", error, extra={"rollout_id": scored.rollout.rollout_id})
            self._leave_out(answer, LeftOut.TOO_LARGE)
            return None

    def _leave_out(self, answer: SettledAnswer, reason: LeftOut) -> None:
        metrics.ANSWERS.labels(reason).inc(self._store.answers.close([answer.id], reason))


def _within_bytes(answers: Sequence[SettledAnswer]) -> Iterator[SettledAnswer]:
    """The first of them, as far as they fit into memory; one at least."""
    num_bytes = 0
    for answer in answers:
        num_bytes += answer.num_bytes
        if num_bytes > _MOST_BYTES_AT_ONCE and num_bytes > answer.num_bytes:
            return
        yield answer
