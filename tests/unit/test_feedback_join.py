"""Feedback and answers in any order over a real store: what they join to, and what the store keeps of them."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rollstream.bus.message import KafkaMessage
from rollstream.producers.feedback.join import Join
from rollstream.producers.feedback.served_answers import group_of_one
from rollstream.producers.feedback.settings import FeedbackSettings
from rollstream.producers.feedback.store import FeedbackStore, opened
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ids import group_id
from rollstream.schemas.prompt import Purpose
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import FEEDBACK, SERVE_SCORED
from tests.harness.builders import RUN, a_feedback, a_served, a_served_prompt, a_served_rollout, a_turn

SECOND = 1000
# Noon of the builders, at which their answers end.
NOON_MS = 1_772_366_400_000
IDENTITY = {"cluster": "one", "feedback": "first"}


class Story:
    """A store that is told what the topics hold, each record with the time at which the broker appended it."""

    def __init__(self, store: FeedbackStore, settings: FeedbackSettings) -> None:
        self.store = store
        self.join = Join(store, settings, RUN)
        self._offset = 0

    def answer(self, scored: RolloutScored | None = None, at: float = 10) -> None:
        scored = scored or a_served_rollout()
        self.join.add_answer(scored, self._message(AvroCodec(SERVE_SCORED).encode(scored), at))

    def feedback(self, at: float = 20, **fields: Any) -> None:
        record = a_feedback(**{"feedback_id": f"feedback-{self._offset}", **fields})
        self.join.add_feedback(record, self._message(AvroCodec(FEEDBACK).encode(record), at))

    def settle(self, at: float) -> None:
        while self.join.settle(moment(at)):
            pass

    @property
    def counts(self) -> dict[str, int]:
        return self.store.answers.counts()

    @property
    def rewards_by_group(self) -> dict[str, float]:
        settled = self.store.answers.newest_settled(1000)
        return {one.group_id: self.store.answers.joined(one.id)[1].reward for one in settled}

    @property
    def rewards(self) -> list[float]:
        return list(self.rewards_by_group.values())

    def _message(self, value: bytes, at: float) -> KafkaMessage:
        self._offset += 1
        return KafkaMessage("demo.any", 0, self._offset, b"key", value, timestamp_ms=moment(at))


def moment(seconds: float) -> int:
    return NOON_MS + round(seconds * SECOND)


@contextmanager
def a_story(path: Path, most_bytes: int = 2**30, **settings: Any) -> Iterator[Story]:
    with opened(path / "store.sqlite", IDENTITY, most_bytes) as store:
        yield Story(store, FeedbackSettings(settle_seconds=60, **settings))


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    with a_story(tmp_path) as made:
        yield made


def in_session(response_id: str, ended: float, session: str = "chat", **served: Any) -> RolloutScored:
    return a_served_rollout(
        response_id=response_id,
        served=a_served(response_id, session=session, **served),
        finished_at=datetime.fromtimestamp(moment(ended) / SECOND, UTC),
    )


def test_feedback_finds_its_answer_whichever_comes_first(story: Story) -> None:
    story.feedback(at=5, number=-1.0)
    story.answer(at=10)
    story.answer(a_served_rollout(response_id="chatcmpl-2"), at=11)
    story.feedback(at=12, response_id="chatcmpl-2")
    story.settle(at=69.9)
    assert story.rewards == []
    story.settle(at=72)
    assert sorted(story.rewards) == [-1.0, 1.0]


def test_each_choice_has_its_own_feedback_and_no_choice_means_the_first(story: Story) -> None:
    prompt = a_served_prompt(group_size=2)
    for choice in (0, 1):
        story.answer(a_served_rollout(choice=choice, prompt=prompt))
    story.feedback(number=0.25)
    story.feedback(number=0.5, choice=1)
    story.settle(at=100)
    assert sorted(story.rewards) == [0.25, 0.5]


def test_feedback_by_rollout_counts_too_and_the_newest_of_a_client_wins_however_it_names_the_answer(
    story: Story,
) -> None:
    scored = a_served_rollout()
    story.answer(scored)
    story.feedback(at=20, number=1.0)
    story.feedback(at=21, number=-1.0, response_id=None, rollout_id=scored.rollout.rollout_id)
    story.settle(at=100)
    assert story.rewards == [-1.0]


def test_feedback_of_another_tenant_never_counts_and_is_told_from_what_has_no_answer(story: Story) -> None:
    story.answer()
    story.feedback(tenant="rival", number=-1.0)
    story.feedback(response_id="chatcmpl-of-nobody")
    story.settle(at=100)
    assert story.counts == {"waiting": 1}
    given_up = story.join.given_up(moment(7 * 86_400), "demo.feedback")
    assert [one.is_of_other_tenant for one in given_up] == [True, False]
    assert AvroCodec(FEEDBACK).decode(given_up[1].message.value).response_id == "chatcmpl-of-nobody"


def test_the_same_feedback_that_comes_again_does_not_replace_what_came_between(story: Story) -> None:
    story.answer()
    story.feedback(at=20, feedback_id="up", number=1.0)
    story.feedback(at=21, feedback_id="down", number=-1.0)
    story.feedback(at=22, feedback_id="up", number=1.0)
    story.settle(at=100)
    assert story.rewards == [-1.0]


def test_an_answer_that_comes_again_counts_once(story: Story) -> None:
    story.answer(at=10)
    story.feedback()
    story.answer(a_served_rollout(0.0), at=30)
    story.settle(at=100)
    assert story.counts == {"settled": 1}


def test_what_changes_no_reward_is_passed_over(story: Story) -> None:
    story.answer()
    story.feedback(metric="shoe_size")
    story.feedback(number=None, text="nice")
    story.feedback(number=1e8)
    story.feedback(response_id=None)
    story.settle(at=1000)
    assert story.counts == {"waiting": 1}
    assert story.store.ratings.num_bytes == 0


def test_answers_that_may_not_train_are_counted_by_their_reason_and_feedback_still_finds_them(tmp_path: Path) -> None:
    with a_story(tmp_path, tokenizer_sha256="ab" * 32) as story:
        turns = {
            "not_plain": (a_turn(is_plain=False),),
            "no_tokens": (a_turn((), prompt_token_ids=[], reported_completion_tokens=3),),
        }
        for reason, of_answer in turns.items():
            story.answer(a_served_rollout(response_id=reason, turns=of_answer))
        story.answer(a_served_rollout(served=a_served("mine", may_train=False), response_id="mine"))
        story.feedback(response_id="mine")
        assert story.counts == {"not_plain": 1, "no_tokens": 1, "no_consent": 1}
        assert story.join.given_up(moment(7 * 86_400), "demo.feedback") == []


def test_a_sessions_feedback_goes_to_the_last_answer_that_had_ended(story: Story) -> None:
    for number in range(3):
        story.answer(in_session(f"chatcmpl-{number}", ended=10 * number), at=10 * number + 1)
    story.feedback(at=15, response_id=None, session="chat", number=-1.0)
    # The scorers were slow: the answer came after the feedback on it.
    story.answer(in_session("slow", ended=30, session="other"), at=45)
    story.answer(in_session("early", ended=10, session="other"), at=11)
    story.feedback(at=40, response_id=None, session="other", number=0.5)
    story.settle(at=200)
    settled = {
        one.group_id: story.store.answers.joined(one.id)[1].reward for one in story.store.answers.newest_settled(9)
    }
    assert settled == {
        group_id(RUN, "serve/chatcmpl-1", 0): -1.0,
        group_id(RUN, "serve/slow", 0): 0.5,
    }


def test_a_sessions_feedback_may_go_to_each_of_its_answers_and_to_no_other_tenants(tmp_path: Path) -> None:
    with a_story(tmp_path, session_feedback="each") as story:
        for number in range(3):
            story.answer(in_session(f"chatcmpl-{number}", ended=10 * number), at=10 * number + 1)
        story.answer(in_session("theirs", ended=5, tenant="rival"), at=6)
        story.feedback(at=15, response_id=None, session="chat", number=-1.0)
        story.settle(at=200)
        assert story.rewards == [-1.0, -1.0]
        assert story.counts == {"settled": 2, "waiting": 2}


def test_a_sessions_feedback_before_any_answer_had_ended_goes_to_its_first(story: Story) -> None:
    story.feedback(at=1, response_id=None, session="chat", number=-1.0)
    story.answer(in_session("second", ended=9), at=10)
    story.answer(in_session("first", ended=3), at=4)
    story.settle(at=200)
    assert story.rewards == [-1.0]
    assert story.store.answers.newest_settled(1)[0].group_id == group_id(RUN, "serve/first", 0)


def test_whatever_the_order_of_reading_the_same_log_gives_the_same_rewards(tmp_path: Path) -> None:
    answers = [(in_session(f"chatcmpl-{n}", ended=n * 7, session=f"chat-{n % 4}"), n * 7 + n % 5) for n in range(30)]
    ratings = [
        {"at": n * 3.5, "feedback_id": f"f-{n}", "number": n / 60, "client": f"client-{n % 3}"}
        | ({"response_id": None, "session": f"chat-{n % 4}"} if n % 3 else {"response_id": f"chatcmpl-{n % 30}"})
        for n in range(60)
    ]
    found = []
    for seed in range(3):
        with a_story(tmp_path / str(seed)) as story:
            told: list[Any] = [*answers, *ratings]
            random.Random(seed).shuffle(told)
            for one in told:
                if isinstance(one, dict):
                    story.feedback(**one)
                else:
                    story.answer(*one)
            for at in (1000.0,) if seed else (400.0, 1000.0):
                story.settle(at)
            settled = story.store.answers.newest_settled(100)
            found.append({one.group_id: story.store.answers.joined(one.id)[1] for one in settled})
    assert found[0] == found[1] == found[2]
    assert len(found[0]) > 10


def test_a_group_of_one_has_the_same_tokens_and_the_feedback_as_its_reward(story: Story) -> None:
    scored = a_served_rollout(0.75)
    story.answer(scored, at=10)
    story.feedback(at=20, number=-1.0)
    story.settle(at=100)
    (settled,) = story.store.answers.newest_settled(10)
    body, joined = story.store.answers.joined(settled.id)
    group = group_of_one(AvroCodec(SERVE_SCORED).decode(body), joined, run=RUN, producer="feedback")
    assert group.rollout.turns == scored.rollout.turns
    assert group.rollout.served == scored.rollout.served
    assert group.rollout.group_id == group.rollout.prompt.group_id == scored.rollout.group_id
    assert (group.rollout.prompt.purpose, group.rollout.group_size) == (Purpose.TRAIN, 1)
    assert group.rollout.prompt.submitted_at == datetime.fromtimestamp(moment(80) / SECOND, UTC)
    assert group.scoring.reward == -1.0
    assert group.scoring.components == {"exact_match": 0.75, "feedback/thumbs": -1.0}


def test_a_full_store_leaves_the_oldest_answers_out_and_takes_new_ones(tmp_path: Path) -> None:
    large = a_turn(tuple(range(1, 4000)))
    with a_story(tmp_path, most_bytes=2**20) as story:
        for number in range(60):
            with story.store.transaction():
                story.answer(a_served_rollout(response_id=f"chatcmpl-{number}", turns=(large,)), at=number)
            while story.store.is_full():
                with story.store.transaction():
                    assert story.join.make_room()
        story.feedback(at=70, response_id="chatcmpl-59")
        story.feedback(at=71, response_id="chatcmpl-0")
        story.settle(at=200)
        assert story.counts["settled"] == 1
        assert story.counts["overflow"] > 10
        assert sum(story.counts.values()) == 60


def test_an_answer_whose_window_ended_before_the_share_had_room_is_left_out_and_forgotten(story: Story) -> None:
    story.answer()
    story.feedback()
    story.settle(at=100)
    story.settle(at=7 * 86_400)
    assert story.counts == {"window": 1}
    story.join.forget(moment(6.9 * 86_400))
    assert story.counts == {"window": 1}
    story.join.forget(moment(7.1 * 86_400))
    assert story.counts == {}
    assert story.store.ratings.num_bytes == 0


def test_a_copy_that_comes_after_the_window_has_no_window_of_its_own(story: Story) -> None:
    story.answer(at=7 * 86_400)
    story.settle(at=7 * 86_400 + 1)
    assert story.counts == {"no_feedback": 1}


def test_a_store_that_is_damaged_or_of_other_topics_is_begun_anew_and_one_in_use_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with a_story(tmp_path) as story:
        story.answer()
        with pytest.raises(ConfigurationError, match="another process writes"), a_story(tmp_path):
            pass
    with a_story(tmp_path) as story:
        assert story.counts == {"waiting": 1}
    with opened(path, {**IDENTITY, "feedback": "second"}, 2**30) as store:
        assert store.answers.counts() == {}
    path.write_bytes(b"garbage, as after a broken disk" * 1000)
    with a_story(tmp_path) as story:
        assert story.counts == {}


def test_outcomes_of_a_group_are_noted_once(story: Story) -> None:
    story.answer()
    group = group_id(RUN, "serve/chatcmpl-5f0c", 0)
    outcomes = Counter(story.store.answers.close_group(group, outcome) for outcome in ("trained", "trained", "lost"))
    assert outcomes == {True: 2, False: 1}
    assert story.counts == {"lost": 1}
    assert not story.store.answers.close_group("a group of prompts", "trained")
