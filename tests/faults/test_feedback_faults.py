"""The producer of feedback among strangers, deaths and full shares, on a real broker."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from rollstream.producers.feedback.settings import FeedbackSettings
from rollstream.producers.feedback.topics import refuse_short_topics
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ids import group_id
from rollstream.schemas.ledger import GroupOutcome
from rollstream.schemas.record import utc_now
from rollstream.schemas.topics import PRODUCERS, SCORED
from tests.harness.builders import a_generator, a_progress, a_turn
from tests.harness.feedback_runs import NAME, FeedbackRun, a_feedback_run, a_rating, an_answer
from tests.harness.scraping import is_ready, scraped
from tests.harness.trainer_runs import model_tokenizer, start_trainer, survivors, write_model
from tests.harness.waits import wait_until

DAY_SECONDS = 86_400


@pytest.fixture
def run(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[FeedbackRun]:
    with a_feedback_run(kafka, topic_prefix, tmp_path, settle_seconds=0.1) as made:
        yield made


def put_rated(run: FeedbackRun, numbers: range, **fields: Any) -> None:
    """Answers, each with a thumb up."""
    run.put(*(an_answer(run, number, **fields) for number in numbers), *(a_rating(number, 1.0) for number in numbers))


def trained_numbers(run: FeedbackRun) -> set[int]:
    known = {group_id(run.run.name, f"serve/chatcmpl-{number}", 0): number for number in range(100)}
    return {known[group] for group in run.trainer.rewards}


def test_the_newest_answers_come_first_and_no_more_are_open_than_the_share(run: FeedbackRun) -> None:
    run.run.shared |= {"groups_per_step": 1, "max_policy_lag": 1, "ones_per_group": 3}
    run.trainer.is_away = True
    for number in range(10):
        # One after the other, so that the broker gives each a later time.
        put_rated(run, range(number, number + 1))
    settled_at = utc_now() + timedelta(seconds=1.5)
    wait_until(lambda: utc_now() > settled_at, "all of them to have settled by the broker's time")
    run.start()
    wait_until(lambda: run.open_groups == 6, "the share to be used")
    assert run.trainer.num_open == 6
    run.trainer.step()
    assert trained_numbers(run) == {4, 5, 6, 7, 8, 9}
    run.trainer.is_away = False
    wait_until(lambda: len(run.trainer.rewards) == 10, "the others to train")
    assert run.stop_when_closed() == {"trained": 10}


def test_what_the_share_leaves_no_room_for_within_the_window_is_left_out(run: FeedbackRun) -> None:
    run.settings["window_days"] = 4 / DAY_SECONDS
    run.run.shared |= {"groups_per_step": 1, "max_policy_lag": 0, "ones_per_group": 1}
    run.trainer.is_away = True
    put_rated(run, range(3))
    run.start()
    wait_until(lambda: run.trainer.num_open == 1, "the share to be used")
    run.put(a_rating(9, 1.0, response_id="chatcmpl-of-nobody"))
    wait_until(
        lambda: scraped(run.port, "rollstream_feedback_answers_total", outcome="window") == 2, "its window's end"
    )
    run.trainer.is_away = False
    wait_until(lambda: run.trainer.rewards, "the one to train")
    assert run.stop_when_closed() == {"trained": 1, "window": 2}


@pytest.mark.parametrize("place", ["feedback_published", "feedback_noted"])
def test_a_death_between_publishing_and_noting_trains_nothing_twice(run: FeedbackRun, place: str) -> None:
    run.trainer.is_away = True
    put_rated(run, range(5))
    dying = run.start(ROLLSTREAM_CRASH_AT=place)
    assert dying.wait() < 0
    run.start()
    num_again = 5 if place == "feedback_published" else 0
    wait_until(lambda: is_ready(run.port) and run.trainer.num_duplicates == num_again, "it to go on")
    run.trainer.is_away = False
    wait_until(lambda: len(run.trainer.rewards) == 5, "all to train")
    assert run.stop_when_closed() == {"trained": 5}
    assert run.trainer.num_duplicates == num_again


def test_what_finds_no_answer_or_cant_be_read_becomes_a_dead_letter(run: FeedbackRun) -> None:
    run.settings["window_days"] = 4 / DAY_SECONDS
    run.run.publish("feedback", [("k", b"garbage")])
    run.run.publish("serve-scored", [("k", b"garbage")])
    run.put(
        an_answer(run, 1), an_answer(run, 2), a_rating(1, 1.0),
        a_rating(2, -1.0, tenant="rival"), a_rating(3, 1.0, response_id="chatcmpl-of-nobody"),
    )  # fmt: skip
    run.start()
    wait_until(lambda: sum(run.letters().values()) == 4, "the letters")
    wait_until(lambda: run.trainer.rewards, "the rated answer to train")
    found = sorted(text.split(":")[0] for text in run.letters())
    assert found == [
        "feedback", "no answer of this id came within window_days", "serve-scored",
        "the answer of this id is another tenant's",
    ]  # fmt: skip
    assert run.stop_when_closed() == {"trained": 1, "no_feedback": 1}


def test_answers_of_weights_that_are_too_far_behind_are_left_out(run: FeedbackRun) -> None:
    run.run.shared |= {"max_served_lag": 2}
    for _ in range(4):
        run.trainer.step()
    put_rated(run, range(2), turns=(a_turn(spans=[(1, 0, 2), (4, 2, 6)]),))
    put_rated(run, range(2, 4), turns=(a_turn(spans=[(2, 0, 6)]),))
    run.start()
    wait_until(lambda: trained_numbers(run) == {2, 3}, "the newer ones to train")
    assert run.stop_when_closed() == {"trained": 2, "too_old": 2}


def test_a_later_process_takes_over_and_a_forged_record_uses_no_credit(run: FeedbackRun) -> None:
    ghosts = tuple(f"{number:032x}" for number in range(400))
    forged = a_progress(producer=NAME, source="feedback", mark="", next_sequence=0, open_groups=ghosts, ledger_offset=0)
    run.run.publish("producers", [(NAME, AvroCodec(PRODUCERS).encode(forged))])
    first = run.start()
    put_rated(run, range(3))
    wait_until(lambda: len(run.trainer.rewards) == 3, "its answers to train")
    # It has another store and port, so that the claim decides.
    run.settings["store"] = run.store.with_name("second.sqlite")
    run.port = 0
    run.start()
    assert first.wait() == 75, first.said()


def test_groups_that_a_restart_opened_again_use_credit_until_they_close_again(run: FeedbackRun) -> None:
    put_rated(run, range(4))
    run.start()
    wait_until(lambda: len(run.trainer.rewards) == 4, "all to train")
    for _ in range(3):
        run.trainer.step()
    run.kill()
    run.start()
    wait_until(lambda: is_ready(run.port) and run.open_groups == 0, "the ledger to be read")
    run.trainer.go_back(0)
    wait_until(lambda: run.open_groups == 4, "the groups to be open again")
    assert run.stop() == {"trained": 4}
    assert run.trainer.num_duplicates == 0


def test_the_trainer_takes_what_it_publishes(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        run = stack.enter_context(a_feedback_run(kafka, topic_prefix, tmp_path, has_trainer=True, settle_seconds=0.1))
        run.run.shared |= {"groups_per_step": 2, "ones_per_group": 4}
        run.run.tables["trainer"] = {
            "model_path": write_model(tmp_path / "model"),
            "checkpoints": tmp_path / "checkpoints",
            "learning": {"learning_rate": 0.01, "threads": 1},
        }
        trainer = start_trainer(run.run)
        stack.callback(trainer.kill)
        generator = a_generator(tokenizer_sha256=model_tokenizer(), chat_template_sha256="")
        turns = (a_turn(spans=[(0, 0, 6)]),)
        run.put(
            *(an_answer(run, number, turns=turns, generator=generator) for number in range(16)),
            *(a_rating(number, (-1.0) ** number) for number in range(16)),
        )
        run.start()
        wait_until(lambda: len(survivors(run.run).closed) == 16, trainer.said)
        closed = survivors(run.run).closed
        assert {group.outcome for group in closed.values()} == {GroupOutcome.TRAINED}
        assert {group.reward_mean for group in closed.values()} == {-1.0, 1.0}
        assert {one.rollout.prompt.producer for one in run.run.records(SCORED)} == {NAME}
        assert run.stop_when_closed() == {"trained": 16}


def test_topics_that_keep_too_little_for_the_window_are_refused_with_the_remedy(run: FeedbackRun) -> None:
    bus, settings = run.run.on_bus, FeedbackSettings()
    client = AdminClient(run.run.kafka.client_config())
    refuse_short_topics(bus, settings)

    def alter(topic: str, name: str, value: str | int) -> None:
        entry = ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, f"{run.run.name}.{topic}", incremental_configs=[entry])
        for future in client.incremental_alter_configs([resource]).values():
            future.result(30)

    def is_refused_with(said: str | None) -> bool:
        # A broker shows a new setting a moment after it has confirmed it.
        try:
            refuse_short_topics(bus, settings)
        except ConfigurationError as error:
            return said is not None and said in str(error)
        return said is None

    day_ms = DAY_SECONDS * 1000
    for topic, name, value, usual, said in (
        ("feedback", "retention.ms", 5 * day_ms, 7 * day_ms, "window_days to 4, or set its retention.ms to 604800000"),
        ("serve-scored", "retention.bytes", 1_000_000, -1, "set it to -1"),
        ("feedback", "message.timestamp.type", "CreateTime", "LogAppendTime", "times are anybody's word"),
        ("scored", "retention.ms", 6 * day_ms, 7 * day_ms, "train on some again"),
    ):
        alter(topic, name, value)
        wait_until(partial(is_refused_with, said), f"the broker to show {name} of {topic}")
        alter(topic, name, usual)
        wait_until(partial(is_refused_with, None), f"the broker to show the usual {name} of {topic}")
