"""The producer of feedback on a real broker: each answer trains at most once, with what was said before it settled."""

import logging
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollstream.schemas.feedback import FeedbackGiven
from rollstream.schemas.scored import RolloutScored
from tests.harness.builders import a_served, a_turn
from tests.harness.feedback_runs import FeedbackRun, a_feedback_run, a_rating, an_answer
from tests.harness.waits import wait_until

SETTLE_SECONDS = 1.0


@pytest.fixture
def run(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[FeedbackRun]:
    with a_feedback_run(kafka, topic_prefix, tmp_path, settle_seconds=SETTLE_SECONDS) as made:
        yield made


def told(run: FeedbackRun, num_answers: int, chance: random.Random) -> list[RolloutScored | FeedbackGiven]:
    """Answers and feedback in random order: a tenth twice, a tenth revised, many before their answer or of nobody."""
    events: list[tuple[float, RolloutScored | FeedbackGiven]] = []
    for number in range(num_answers):
        at = number + chance.random()
        kind = number % 20
        served = a_served(f"chatcmpl-{number}", may_train=kind != 3)
        turns = (a_turn(is_plain=kind != 7),)
        events.append((at, an_answer(run, number, served=served, turns=turns)))
        rating = a_rating(number, chance.choice((-1.0, 1.0)))
        if kind != 11:
            events.append((at + chance.uniform(-20, 60), rating))
        if kind in (5, 15):
            events.append((at + chance.uniform(-20, 200), rating))
        if kind in (8, 16):
            events.append((at + chance.uniform(0, 400), a_rating(number, 0.5, feedback_id=f"again-{number}")))
        if kind == 13:
            events.append((at, a_rating(number, 1.0, feedback_id=f"of-nobody-{number}", response_id=f"lost-{number}")))
    return [event for _, event in sorted(events, key=lambda event: event[0])]


def campaign(run: FeedbackRun, num_answers: int, *, num_kills: int, num_losses: int) -> dict[str, int]:
    """Tell all, kill the producer in between, and see that each answer is what the topics say."""
    chance = random.Random(num_answers)
    events = told(run, num_answers, chance)
    parts = num_kills + 1
    size = len(events) // parts + 1
    run.start()
    for part in range(parts):
        of_part = events[part * size : (part + 1) * size]
        seen = len(run.trainer.rewards)
        for start in range(0, len(of_part), 50):
            run.put(*of_part[start : start + 50])
        wait_until(lambda seen=seen: len(run.trainer.rewards) > seen, "it to publish", 120)  # type: ignore[misc]
        if part < num_kills:
            run.kill(loses_store=part % 3 == 1 and part // 3 < num_losses)
            run.start()
    expected = run.expected(SETTLE_SECONDS)
    wait_until(lambda: len(run.trainer.rewards) >= len(expected), "all answers to train", 240)
    wait_until(lambda: not run.trainer.num_open, "the last groups to close")
    assert set(run.trainer.rewards) == set(expected)
    wrong = {group: (got, expected[group]) for group, got in run.trainer.rewards.items() if got not in expected[group]}
    assert wrong == {}
    counts = run.stop_when_closed()
    assert sum(counts.values()) == num_answers
    assert counts["trained"] == len(expected)
    assert counts["no_consent"] == counts["not_plain"] == num_answers // 20
    assert counts["waiting"] == num_answers - sum(counts[name] for name in ("trained", "no_consent", "not_plain"))
    return counts


def test_answers_train_once_with_what_was_said_in_time_however_often_the_producer_is_killed(run: FeedbackRun) -> None:
    campaign(run, 200, num_kills=2, num_losses=1)


@pytest.mark.slow
def test_the_same_for_five_thousand_answers_ten_kills_and_three_lost_stores(run: FeedbackRun) -> None:
    counts = campaign(run, 5000, num_kills=10, num_losses=3)
    logging.getLogger(__name__).info("%s, %d duplicates on scored", counts, run.trainer.num_duplicates)
