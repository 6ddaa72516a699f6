"""Joins feedback with the answers that it is about, and says when each is to be judged. It knows no bus.

Feedback names a response and its choice, a rollout, or a session, and counts for answers to its own tenant alone. It
may come before its answer. A session's feedback goes to the last answer that had ended by then, or to each. It counts
`settle_seconds` later than other feedback: so long an answer of that session has to get through the stages. Where no
answer had ended by then, clocks differ, and the session's first one is meant.
"""

from datetime import datetime
from typing import Final

from rollstream.bus.message import KafkaMessage
from rollstream.producers.feedback import metrics
from rollstream.producers.feedback.answers import Answer
from rollstream.producers.feedback.ratings import Rating, Unmatched
from rollstream.producers.feedback.served_answers import own_group, why_left_out
from rollstream.producers.feedback.settings import DAY_SECONDS, FeedbackSettings
from rollstream.producers.feedback.settling import AnswerTimes, Given, Judgement, LeftOut, judged
from rollstream.producers.feedback.store import FeedbackStore
from rollstream.schemas.feedback import FeedbackGiven
from rollstream.schemas.rollout import RolloutGenerated, Served
from rollstream.schemas.scored import RolloutScored

_AT_ONCE: Final = 500
_LEFT_OUT_AT_ONCE: Final = 20


class Join:
    """Takes in answers and feedback in any order; the caller commits what it changes in the store."""

    def __init__(self, store: FeedbackStore, settings: FeedbackSettings, run: str) -> None:
        self._store = store
        self._settings = settings
        self._run = run
        self._settle_ms = round(settings.settle_seconds * 1000)
        self._window_ms = round(settings.window_seconds * 1000)

    def add_answer(self, scored: RolloutScored, message: KafkaMessage) -> None:
        """Take in a record of `serve-scored`; what answered no HTTP call, or came before, is passed over."""
        rollout, served = scored.rollout, scored.rollout.served
        if served is None:
            return
        answer = self._answer(scored, rollout, served, message)
        reason = why_left_out(rollout, served, self._settings)
        if reason is not None:
            if self._store.answers.add_closed(answer, reason):
                metrics.ANSWERS.labels(reason).inc()
            self._match(answer)
            return
        version = min(rollout.weight_versions, default=0)
        added = self._store.answers.add(answer, version, message.value or b"")
        if added is not None:
            self._match(added)
            self._judge_later(added)

    def add_feedback(self, feedback: FeedbackGiven, message: KafkaMessage) -> None:
        """Take in a record of `feedback`."""
        metrics.READ.inc()
        ignored = self._why_ignored(feedback)
        if ignored is None and not self._store.ratings.add(feedback, message):
            ignored = "repeated"
        if ignored is not None:
            metrics.IGNORED.labels(ignored).inc()
            return
        answers = self._named(feedback)
        for answer in answers:
            self._match(answer)
        own = [answer for answer in answers if answer.tenant == feedback.tenant]
        waiting = [answer for answer in own if self._store.answers.is_waiting(answer)]
        for answer in waiting:
            self._judge_later(answer)
        if own and not waiting:
            metrics.IGNORED.labels("late").inc()

    def settle(self, now_ms: int) -> bool:
        """Settle, or leave out, a part of what is due. All that was appended up to `now_ms` must be here.

        Whether there may be more.
        """
        due = self._store.answers.due(now_ms, _AT_ONCE)
        for answer in due:
            judgement = self._judged(answer)
            if judgement.at_ms > now_ms:
                self._store.answers.note_due(answer, judgement.at_ms)
            elif judgement.left_out is not None:
                self._leave_out([answer.id], judgement.left_out)
            else:
                self._store.answers.settle(answer, judgement)
        self._leave_out(self._store.answers.settled_before(now_ms), LeftOut.WINDOW)
        return len(due) == _AT_ONCE

    def next_due_ms(self) -> int | None:
        """When `settle` or `given_up` will have something to do next."""
        oldest = self._store.ratings.oldest_unmatched_ms()
        moments = (self._store.answers.next_due_ms(), None if oldest is None else oldest + self._window_ms + 1)
        return min((moment for moment in moments if moment is not None), default=None)

    def given_up(self, now_ms: int, topic: str) -> list[Unmatched]:
        """Feedback that found no answer within the window, a part of it; `topic`: where it lies."""
        return self._store.ratings.unmatched(now_ms - self._window_ms, _AT_ONCE, topic)

    def forget(self, now_ms: int) -> None:
        """Forget a part of what no feedback can change any more.

        Answers that are done with stay as long as their topic has them, so that a copy is known again.
        """
        self._store.answers.forget_closed(now_ms - DAY_SECONDS * 1000, _AT_ONCE)
        self._store.ratings.forget_matched(now_ms - self._window_ms, _AT_ONCE)

    def make_room(self) -> int:
        """Leave out the oldest answers, or forget those that are done with; how many rows that concerns."""
        oldest = self._store.answers.oldest(_LEFT_OUT_AT_ONCE)
        self._leave_out(oldest, LeftOut.OVERFLOW)
        end_of_time = 2**62
        return (
            len(oldest)
            or self._store.answers.forget_closed(end_of_time, _AT_ONCE)
            or self._store.ratings.forget_matched(end_of_time, _AT_ONCE)
        )

    def _leave_out(self, ids: list[int], reason: LeftOut) -> None:
        metrics.ANSWERS.labels(reason).inc(self._store.answers.close(ids, reason))

    def _why_ignored(self, feedback: FeedbackGiven) -> str | None:
        if feedback.target is None:
            return "no_target"
        if feedback.metric not in self._settings.weights:
            return "other_metric"
        if feedback.number is None:
            return "no_number"
        return "out_of_range" if abs(feedback.number) > self._settings.largest else None

    def _named(self, feedback: FeedbackGiven) -> list[Answer]:
        """The answers that it names, those to other tenants too."""
        assert feedback.target is not None
        kind, target = feedback.target
        choice = feedback.choice or 0
        match kind:
            case "response_id":
                return self._store.answers.of_response(target, choice)
            case "rollout_id":
                return self._store.answers.of_rollout(target)
            case "session":
                return self._store.answers.of_session(target, choice, _AT_ONCE)

    def _match(self, answer: Answer) -> None:
        for appended_ms in self._store.ratings.match(answer):
            metrics.MATCHED.inc()
            metrics.DELAY.observe(max(0, appended_ms - answer.appended_ms) / 1000)

    def _judge_later(self, answer: Answer) -> None:
        self._store.answers.note_due(answer, self._judged(answer).at_ms)

    def _judged(self, answer: Answer) -> Judgement:
        given = [one for rating in self._store.ratings.of(answer) if (one := self._given(answer, rating)) is not None]
        return judged(answer.times, sorted(given, key=lambda one: one.given_ms), self._settings)

    def _given(self, answer: Answer, rating: Rating) -> Given | None:
        """A rating as it counts for the answer; None if it does not."""
        is_of_session = rating.kind == "session"
        given_ms = rating.appended_ms + (self._settle_ms if is_of_session else 0)
        if rating.metric not in self._settings.weights or (is_of_session and not self._is_meant(answer, rating)):
            return None
        return Given(given_ms, rating.metric, rating.client, rating.number)

    def _is_meant(self, answer: Answer, rating: Rating) -> bool:
        """Whether feedback on its session goes to this answer."""
        # What comes later than that must not matter: else another process would settle otherwise.
        known_ms = max(answer.appended_ms, rating.appended_ms + self._settle_ms)
        if answer.finished_ms > rating.appended_ms:
            first, last = 0, answer.finished_ms - 1
        elif self._settings.session_feedback == "each":
            return True
        else:
            first, last = answer.finished_ms + 1, rating.appended_ms
        return not self._store.answers.has_other_of_session(answer, from_ms=first, to_ms=last, known_ms=known_ms)

    def _answer(
        self, scored: RolloutScored, rollout: RolloutGenerated, served: Served, message: KafkaMessage
    ) -> Answer:
        finished_ms = _milliseconds(rollout.finished_at)
        components = scored.scoring.components
        times = AnswerTimes(
            appended_ms=message.timestamp_ms,
            # From its end on, if that is earlier: a copy that comes days later has no window of its own.
            ends_ms=min(finished_ms, message.timestamp_ms) + self._window_ms,
            components={name: components[name] for name in self._settings.component_weights if name in components},
        )
        return Answer(
            group_id=own_group(rollout, self._run), rollout_id=rollout.rollout_id, response_id=served.response_id,
            choice=served.choice, session=served.session, tenant=served.tenant, finished_ms=finished_ms, times=times,
        )  # fmt: skip


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
