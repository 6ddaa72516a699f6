"""Generators are killed and suspended in the middle of samples of many turns: others go on, nothing happens twice."""

import sys
from pathlib import Path

import pytest

from tests.harness.running import a_run
from tests.hostile.agents_account import Account
from tests.hostile.agents_campaign import Fault, Pace, a_campaign

SHORT = Pace(num_faults=4, between_seconds=5.0)
# Ten minutes with the default pieces.
LONG = Pace(num_faults=20, between_seconds=30.0, progress_tokens=0, done_seconds=300.0)


def account(kafka: str, name: str, directory: Path, pace: Pace, fault: Fault) -> Account:
    with a_run(kafka, name, directory, partitions=4) as run, a_campaign(run, pace) as campaign:
        last = campaign.faults(fault)
        found = campaign.end()
        sys.stdout.write(f"{found}\n")
        assert campaign.open_after(last) == set()
        assert fault == "suspend" or not found.num_late
        return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", ["kill", "suspend"])
def test_samples_of_many_turns_outlive_their_generators(
    kafka: str, topic_prefix: str, tmp_path: Path, fault: Fault
) -> None:
    found = account(kafka, topic_prefix, tmp_path, SHORT, fault)
    assert found.problems == ()
    assert found.tools["taken over"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", ["kill", "suspend"])
def test_the_same_for_ten_minutes(kafka: str, topic_prefix: str, tmp_path: Path, fault: Fault) -> None:
    found = account(kafka, topic_prefix, tmp_path, LONG, fault)
    assert found.problems == ()
