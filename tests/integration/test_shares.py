"""The shares of the producers that live, reported in a real Redis, added up and held against the bound."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import redis

from rollstream.process.fleet import Fleet, shares_of
from rollstream.producers.settings import ProducerSettings
from rollstream.producers.shares import ShareReport
from tests.harness.running import a_run
from tests.harness.strange_redis import STRANGE_STATES, write_strange
from tests.harness.waits import wait_until


def a_report(redis_url: str, run: str, **fields: Any) -> ShareReport:
    """A producer of a run whose bound is (1 + 1) x 4 = 8 groups."""
    settings = ProducerSettings(
        run=run, environment="sort_digits", max_policy_lag=1, groups_per_step=4, redis_url=redis_url, **fields
    )
    return ShareReport(Fleet(redis_url, run), settings)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_each_producer_warns_once_of_a_sum_above_the_bound_and_again_when_it_changes(
    redis_url: str, topic_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = a_report(redis_url, topic_prefix, name="one"), a_report(redis_url, topic_prefix, name="two", share=3)
    one.beat()
    assert warnings(caplog) == []
    two.beat()
    two.beat()
    (first,) = warnings(caplog)
    assert "add up to 11 (producer one: 8, producer two: 3), the bound is" in first
    assert "= 8" in first
    a_report(redis_url, topic_prefix, name="three", share=1).beat()
    two.beat()
    assert "add up to 12" in warnings(caplog)[-1]
    assert len(warnings(caplog)) == 3


def test_a_producer_that_starts_again_and_one_that_does_not_train_add_nothing(
    redis_url: str, topic_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        a_report(redis_url, topic_prefix, name="one", share=8).beat()
    a_report(redis_url, topic_prefix, name="serving", purpose="serve", num_prompts=5, share=8).beat()
    shares = shares_of(Fleet(redis_url, topic_prefix).members())
    assert shares is not None
    assert (shares.total, shares.bound) == (8, 8)
    assert warnings(caplog) == []


def test_what_no_process_of_ours_says_of_itself_is_passed_over_and_shown_without_harm(
    redis_url: str, topic_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    for number, value in enumerate(STRANGE_STATES):
        run = f"{topic_prefix}-{number}"
        a_report(redis_url, run, name="one", share=8).beat()
        with redis.Redis.from_url(redis_url) as client:
            write_strange(client, f"{run}:fleet:stranger", value)
        a_report(redis_url, run, name="one", share=8).beat()
        members = Fleet(redis_url, run).members()
        shares = shares_of(members)
        assert shares is not None, value
        assert (shares.total, members["producer one"]["share"]) == (8, 8), value
        shown = [part for state in members.values() for part in state.values()]
        assert max(len(f"{part:.0f}" if isinstance(part, int | float) else str(part)) for part in shown) <= 1024, value
    assert [line for line in warnings(caplog) if "add up" in line] == []


def test_status_shows_every_producer_and_the_sum_against_the_bound(
    kafka: str, redis_url: str, topic_prefix: str, tmp_path: Path
) -> None:
    with a_run(kafka, topic_prefix, tmp_path, redis_url=redis_url) as run:
        run.shared |= {"groups_per_step": 4, "max_policy_lag": 1}
        run.tables["producer"] = {"environment": "sort_digits"}
        assert json.loads(run.command("status", "--json"))["shares"] is None
        one = run.start("producer", ROLLSTREAM_NAME="one")
        two = run.start("producer", ROLLSTREAM_NAME="two", ROLLSTREAM_SHARE="3", ROLLSTREAM_SEED="1")
        members = Fleet(redis_url, topic_prefix).members
        wait_until(lambda: len(members()) == 2, "both to be heard of")
        assert json.loads(run.command("status", "--json"))["shares"] == {"sum": 11, "bound": 8}
        shown = run.command("status", "--once")
        for expected in ("producer one", "producer two", "11 of at most 8, too many"):
            assert expected in shown, shown
        wait_until(lambda: "add up to 11" in one.said() + two.said(), "the warning")
        assert (one.terminate(), two.terminate()) == (0, 0)
