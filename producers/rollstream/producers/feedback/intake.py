"""Takes the records of `feedback` and `serve-scored` into the store, and gives up feedback that finds no answer.

A record becomes a dead letter before the store forgets it, or goes on behind it: so a killed process loses none.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from rollstream.bus.message import KafkaMessage, OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.bus.run import Run
from rollstream.producers.feedback import metrics
from rollstream.producers.feedback.join import Join
from rollstream.producers.feedback.ratings import Unmatched
from rollstream.producers.feedback.store import FeedbackStore
from rollstream.producers.standing import published
from rollstream.schemas.errors import BadMessageError, DecodeError
from rollstream.schemas.topics import DEAD_LETTERS, FEEDBACK, SERVE_SCORED
from rollstream.stage.dead_letters import dead_letter

GROUP: Final = "feedback"
"""The name of its letters; no consumer group has it, since this producer reads without one."""


class FeedbackIntake:
    """Takes in messages, and makes room for them."""

    def __init__(self, run: Run, store: FeedbackStore, join: Join, publisher: Publisher) -> None:
        self._run = run
        self._store = store
        self._join = join
        self._publisher = publisher

    def take_in(self, messages: Sequence[KafkaMessage]) -> None:
        """Take in messages of both topics, and note that they are read. Raises `BrokerError`."""
        letters: list[OutRecord] = []
        with self._store.transaction():
            for message in messages:
                try:
                    self._add(message)
                except DecodeError as error:
                    metrics.IGNORED.labels("unreadable").inc()
                    letters.append(self._letter(message, error))
            self._store.note_offsets({message.topic_partition: message.offset + 1 for message in messages})
            if letters:
                published(self._publisher, letters)

    def give_up(self, now_ms: int) -> None:
        """Give up feedback whose window has ended, by the broker's time."""
        while unmatched := self._join.given_up(now_ms, self._run.topic(FEEDBACK)):
            self._drop(unmatched, reason=None)

    def make_room(self) -> None:
        """Leave out the oldest, until the store takes no more than it may."""
        while self._store.is_full():
            if self._store.is_full_of_ratings and (oldest := self._join.given_up(2**62, self._run.topic(FEEDBACK))):
                self._drop(oldest, reason="overflow")
                continue
            with self._store.transaction():
                if not self._join.make_room():
                    return

    def _add(self, message: KafkaMessage) -> None:
        value = message.checked_value()
        if message.topic == self._run.topic(FEEDBACK):
            self._join.add_feedback(self._run.codec(FEEDBACK).decode(value), message)
        else:
            self._join.add_answer(self._run.codec(SERVE_SCORED).decode(value), message)

    def _drop(self, unmatched: Sequence[Unmatched], reason: str | None) -> None:
        reasons = [reason or ("other_tenant" if one.is_of_other_tenant else "no_answer") for one in unmatched]
        published(
            self._publisher,
            [
                self._letter(one.message, BadMessageError(_WHY[why]))
                for one, why in zip(unmatched, reasons, strict=True)
            ],
        )
        with self._store.transaction():
            self._store.ratings.forget([one.message for one in unmatched])
        for why in reasons:
            metrics.UNMATCHED.labels(why).inc()

    def _letter(self, message: KafkaMessage, error: Exception) -> OutRecord:
        return dead_letter(
            message, topic=self._run.topic(DEAD_LETTERS), group=self._run.group(GROUP), error=error,
            failed_at=datetime.now(UTC),
        )  # fmt: skip


_WHY: Final = {
    "no_answer": "no answer of this id came within window_days: send the id that the client got with the answer",
    "other_tenant": "the answer of this id is another tenant's: send feedback with a key of the answer's tenant",
    "overflow": "too much feedback waits for answers that have not come: raise store_bytes, or replay it later",
}
