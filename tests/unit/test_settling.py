"""What becomes of an answer by the feedback on it: when it settles, with which reward, or why it never does."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rollstream.producers.feedback.settings import FeedbackSettings
from rollstream.producers.feedback.settling import AnswerTimes, Given, LeftOut, judged

SECOND = 1000
DAY = 86_400 * SECOND
ANSWER = AnswerTimes(appended_ms=0, ends_ms=6 * DAY, components={"exact_match": 0.5})


def rules(**fields: object) -> FeedbackSettings:
    return FeedbackSettings.model_validate({"settle_seconds": 60, **fields})


def thumb(at: int, number: float = 1.0, *, metric: str = "thumbs", client: str = "web") -> Given:
    return Given(at, metric, client, number)


def test_the_newest_value_before_the_end_of_settling_counts_and_later_ones_change_nothing() -> None:
    said = [thumb(10 * SECOND, 1.0), thumb(70 * SECOND, -1.0), thumb(71 * SECOND, 0.5)]
    result = judged(ANSWER, said, rules())
    assert (result.at_ms, result.reward, result.values) == (70 * SECOND, -1.0, {"thumbs": -1.0})
    assert judged(ANSWER, said[:2], rules()) == result


def test_feedback_before_its_answer_settles_by_the_answers_time() -> None:
    assert judged(ANSWER, [thumb(-5 * SECOND)], rules()).at_ms == 60 * SECOND


def test_several_clients_count_with_their_mean_and_metrics_with_their_weights() -> None:
    said = [thumb(1), thumb(2, 0.0, client="app"), thumb(3, 4.0, metric="stars")]
    result = judged(ANSWER, said, rules(weights={"thumbs": 2.0, "stars": 0.25}, component_weights={"exact_match": 4}))
    assert result.reward == 2.0 * 0.5 + 0.25 * 4.0 + 4 * 0.5


def test_all_that_is_required_must_be_there_and_the_last_of_it_begins_the_settling() -> None:
    needs = rules(weights={"thumbs": 1, "solved": 1}, required=["thumbs", "solved"])
    assert judged(ANSWER, [thumb(1)], needs).left_out is LeftOut.INCOMPLETE
    both = judged(ANSWER, [thumb(1), thumb(9 * SECOND, metric="solved")], needs)
    assert (both.at_ms, both.reward) == (69 * SECOND, 2.0)


def test_an_answer_without_a_component_that_is_required_is_left_out_at_once() -> None:
    needs = rules(component_weights={"tests": 1}, required=["tests"])
    result = judged(ANSWER, [thumb(1)], needs)
    assert (result.at_ms, result.left_out, result.reward) == (0, LeftOut.NO_COMPONENT, None)


def test_silence_never_trains_unless_it_counts_as_said() -> None:
    silent = judged(ANSWER, [], rules())
    assert (silent.at_ms, silent.left_out) == (6 * DAY, LeftOut.NO_FEEDBACK)
    counted = rules(absent=-0.25, absent_seconds=3600, component_weights={"exact_match": 1})
    result = judged(ANSWER, [], counted)
    assert (result.at_ms, result.reward, result.values) == (3600 * SECOND, 0.25, {})
    assert judged(ANSWER, [thumb(3601 * SECOND)], counted) == result
    assert judged(ANSWER, [thumb(3600 * SECOND)], counted).reward == 1.5


def test_feedback_that_would_settle_after_the_window_is_too_late() -> None:
    result = judged(ANSWER, [thumb(6 * DAY - 59 * SECOND)], rules())
    assert (result.at_ms, result.left_out) == (6 * DAY, LeftOut.INCOMPLETE)


def test_a_reward_that_no_record_holds_is_none() -> None:
    huge = AnswerTimes(appended_ms=0, ends_ms=DAY, components={"exact_match": 1e9})
    assert judged(huge, [thumb(1)], rules(component_weights={"exact_match": 2})).left_out is LeftOut.OUT_OF_RANGE


@given(
    st.lists(st.tuples(st.integers(0, 300), st.sampled_from(("a", "b")), st.sampled_from(("thumbs", "solved")))),
    st.sampled_from((None, 0.5)),
    st.sampled_from(((), ("solved",), ("thumbs", "solved"))),
)
def test_what_is_said_after_an_answer_settled_never_changes_what_it_settled_with(
    said: list[tuple[int, str, str]], absent: float | None, required: tuple[str, ...]
) -> None:
    needs = rules(
        weights={"thumbs": 1, "solved": 1}, required=required, absent=absent, absent_seconds=100, settle_seconds=50
    )
    ratings = [
        thumb(at * SECOND, float(number), metric=metric, client=client)
        for number, (at, client, metric) in enumerate(sorted(said))
    ]
    final = judged(ANSWER, ratings, needs)
    known = [rating for rating in ratings if rating.given_ms <= final.at_ms]
    random.Random(0).shuffle(ratings)
    assert judged(ANSWER, known, needs) == final


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValidationError, match="which has no weight"):
        rules(required=["stars"])
    with pytest.raises(ValidationError, match="give one of them another name"):
        rules(component_weights={"thumbs": 1})
    with pytest.raises(ValidationError, match="nothing would ever train"):
        rules(window_days=0.0001)
