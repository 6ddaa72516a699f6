"""The scorer as a process on the real broker: what it scores, which faults it survives, and that it loses nothing."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from rollstream.environments.pool.verdicts import REWARD_AT_TIMEOUT
from rollstream.local.ports import free_ports
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.rollout import RolloutGenerated, Status
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import EVAL_ROLLOUTS, EVAL_SCORED, ROLLOUTS, SCORED, SERVE_ROLLOUTS, SERVE_SCORED, Topic
from rollstream.stage.replay import list_dead_letters
from tests.harness.builders import a_failure, a_generated, a_prompt, a_served_answer, a_served_prompt
from tests.harness.forking import start_forked
from tests.harness.late import Late
from tests.harness.odd_headers import put_with_odd_header
from tests.harness.processes import StartedProcess
from tests.harness.running import Run, a_run, readiness
from tests.harness.scraping import scraped
from tests.harness.unruly_environment import NAME, TABLE
from tests.harness.waits import DEADLINE_SECONDS, wait_until

broken_scorer = Late("tests.harness.broken_scorer")

GARBAGE = {"garbage": b"\x07 no record", "unknown schema": b"\x00\x00\x0f\x42\x3f body", "null": None}


@pytest.fixture
def run(kafka: str, topic_prefix: str, tmp_path: Path, redis_url: str) -> Iterator[Run]:
    with a_run(kafka, topic_prefix, tmp_path, redis_url=redis_url) as made:
        made.tables |= TABLE
        yield made


def miss_killed_members_soon(run: Run) -> None:
    """The group waits for a killed member until its session ends: let that be soon."""
    run.tables["scorer"] = {
        "session_timeout_seconds": 2.0,
        "batch_deadline_seconds": 1.9,
        "load_deadline_seconds": 1.9,
        "sample_deadline_seconds": 1.9,
    }


def ordered(row: int, order: str = "") -> PromptSubmitted:
    return a_prompt(row, environment=NAME, metadata={"order": order}, group_size=8)


def put(run: Run, *rollouts: RolloutGenerated, topic: Topic[RolloutGenerated] = ROLLOUTS) -> None:
    codec = AvroCodec(topic)
    run.publish(topic.name, [(rollout.group_id, codec.encode(rollout)) for rollout in rollouts])


def scored_ids(run: Run) -> list[str]:
    return [record.rollout.rollout_id for record in run.records(SCORED)]


def by_index(records: list[RolloutScored]) -> dict[int, RolloutScored]:
    return {record.rollout.sample_index: record for record in records}


def lag_of(port: int, run: Run) -> float | None:
    """What a scorer says that it has not committed."""
    labels = {"group": f"{run.name}.scorers", "topic": f"{run.name}.rollouts"}
    return scraped(port, "rollstream_bus_consumer_lag_records", **labels)


def start_broken(run: Run, how: str) -> StartedProcess:
    return run.start_forked(partial(broken_scorer.main, run.config, how))


def allow_no_record_on(run: Run, topic: str) -> None:
    """From here on the broker refuses every record for `topic`."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, f"{run.name}.{topic}")
    resource.add_incremental_config(ConfigEntry("max.message.bytes", "10", incremental_operation=AlterConfigOpType.SET))
    client = AdminClient(run.kafka.client_config())
    for future in client.incremental_alter_configs([resource]).values():
        future.result(10)


def test_every_rollout_is_scored_or_says_why_not_and_what_is_no_rollout_becomes_a_dead_letter(run: Run) -> None:
    right, too_long = a_generated(0), a_failure("5000 tokens", FailureCode.PROMPT_TOO_LONG)
    evaluated = a_generated(0, prompt=a_prompt(18))
    put(
        run,
        right,
        a_generated(1, status=Status.FAILED, failure=too_long),
        a_generated(2, prompt=a_prompt(environment="")),
        a_generated(3, prompt=a_prompt(environment="os.abort")),
    )
    whole = AvroCodec(ROLLOUTS).encode(right)
    run.publish("rollouts", [*GARBAGE.items(), ("truncated", whole[:-20])])
    put_with_odd_header(run.kafka.bootstrap_servers, f"{run.name}.rollouts", whole)
    put(run, evaluated, topic=EVAL_ROLLOUTS)
    answered = a_served_answer(choice=1, prompt=a_served_prompt(group_size=2, reference_answer="01259"))
    put(run, answered, topic=SERVE_ROLLOUTS)
    [port] = free_ports(1)
    scorer = run.start("scorer", ROLLSTREAM_HEALTH_PORT=str(port))
    wait_until(lambda: len(run.records(SCORED)) == 5, "four scored rollouts, one of them twice")
    found = by_index(run.records(SCORED))
    assert (found[0].scoring.reward, found[0].scoring.components) == (1.0, {"exact_match": 1.0})
    assert found[0].rollout == right
    assert (found[1].scoring.status, found[1].scoring.failure) == (Status.FAILED, too_long)
    assert str(found[2].scoring.failure).startswith("no_environment: ")
    assert str(found[3].scoring.failure).startswith("unknown_environment: ")
    assert {found[index].scoring.status for index in (2, 3)} == {Status.FAILED}
    wait_until(lambda: run.records(EVAL_SCORED), "the evaluation's rollout")
    (given,) = wait_until(lambda: run.records(SERVE_SCORED), "the client's answer")
    assert (given.rollout, given.scoring.reward) == (answered, 1.0)
    wait_until(lambda: run.committed("scorers", "rollouts") == 9, "the partitions to move on")
    letters = list_dead_letters(run.on_bus)
    assert {letter.key for letter in letters} == {b"garbage", b"unknown schema", b"null", b"truncated"}
    assert {letter.value for letter in letters} == {*GARBAGE.values(), whole[:-20]}
    wait_until(lambda: readiness(port)["fetching"]["detail"] == "6 partitions are read", "all to be read")
    assert all(check["is_ok"] for check in readiness(port).values())
    wait_until(lambda: lag_of(port, run) == 0, "no lag")
    assert scraped(port, "rollstream_process_ready") == 1
    # Four rollouts, one of them twice, and four letters.
    assert scraped(port, "rollstream_bus_consumed_records_total", topic=f"{run.name}.rollouts") == 9
    assert scraped(port, "rollstream_bus_consumed_records_total", topic=f"{run.name}.eval-rollouts") == 1
    assert scorer.terminate() == 0


def test_a_users_environment_that_hangs_or_crashes_leaves_only_its_own_samples_unresolved(run: Run) -> None:
    run.tables["scorer"] = {"sample_deadline_seconds": 1.0, "load_deadline_seconds": 4.0, "batch_deadline_seconds": 4.0}
    orders = ["give 0.5", "sleep 3600", "exit", "raise", "sleep 3600", "give 0.25"]
    put(run, *(a_generated(index, prompt=ordered(index, order)) for index, order in enumerate(orders)))
    run.start("scorer")
    wait_until(lambda: len(run.records(SCORED)) == 6, "six scored rollouts")
    found = by_index(run.records(SCORED))
    assert (found[0].scoring.reward, found[5].scoring.reward) == (0.5, 0.25)
    assert [found[index].scoring.status for index in (1, 2, 3)] == [Status.UNRESOLVED] * 3
    assert str(found[1].scoring.failure).startswith("timeout: ")
    assert str(found[2].scoring.failure).startswith("crash: ")
    assert str(found[3].scoring.failure).startswith("bad_reward: ")
    assert "RuntimeError: as ordered" in str(found[3].scoring.failure)


def test_a_reward_of_the_settings_for_samples_that_hang_is_marked_and_counted(run: Run) -> None:
    run.tables["scorer"] = {"sample_deadline_seconds": 1.0, "reward_at_timeout": {NAME: -1.0}}
    put(run, *(a_generated(index, prompt=ordered(index, order)) for index, order in enumerate(["sleep 3600", "exit"])))
    [port] = free_ports(1)
    run.start("scorer", ROLLSTREAM_HEALTH_PORT=str(port))
    wait_until(lambda: len(run.records(SCORED)) == 2, "two scored rollouts")
    late, crashed = (by_index(run.records(SCORED))[index].scoring for index in (0, 1))
    assert (late.status, late.reward, late.components) == (Status.COMPLETED, -1.0, {REWARD_AT_TIMEOUT: 1.0})
    assert (crashed.status, crashed.reward) == (Status.UNRESOLVED, None)
    assert scraped(port, "rollstream_scorer_rewards_at_timeout_total") == 1


def test_a_reward_for_an_environment_that_the_settings_do_not_know_ends_the_scorer_at_its_start(run: Run) -> None:
    run.tables["scorer"] = {"reward_at_timeout": {"unrully": 0.0}}
    scorer = run.start("scorer")
    assert scorer.wait() != 0
    assert "'unrully'" in scorer.said()


@pytest.mark.parametrize("batch_size", [10, 500])
def test_a_scorer_that_is_to_stop_does_not_wait_for_all_that_hangs(run: Run, tmp_path: Path, batch_size: int) -> None:
    # Nobody is killed, so the session may be as long as a busy machine needs.
    deadlines = dict.fromkeys(("batch_deadline_seconds", "load_deadline_seconds", "sample_deadline_seconds"), 1.9)
    run.tables["scorer"] = {"batch_size": batch_size, **deadlines}
    first, second = tmp_path / "first", tmp_path / "second"
    put(run, a_generated(prompt=ordered(0, f"hang noted in {first}")))
    [port] = free_ports(1)
    scorer = run.start("scorer", ROLLSTREAM_HEALTH_PORT=str(port))
    wait_until(first.exists, "a batch of one that hangs")
    # They are read meanwhile, and are the next batch.
    put(run, *(a_generated(prompt=ordered(row, f"hang noted in {second}")) for row in range(1, 30)))
    wait_until(second.exists, "the next batch")
    wait_until(lambda: (lag_of(port, run) or 0) > 20, "what is not committed to be exported")
    assert scorer.terminate() == 0
    scored = run.records(SCORED)
    assert len(scored) == run.committed("scorers", "rollouts")
    late = "timeout: its turn did not come before its batch had to end; others hung"
    assert late in [str(record.scoring.failure) for record in scored]


def test_a_scorer_killed_in_mid_batch_or_before_its_commit_loses_nothing_and_leaves_no_directory(run: Run) -> None:
    miss_killed_members_soon(run)
    rollouts = [a_generated(prompt=ordered(row, "sleep 0.05")) for row in range(24)]
    expected = {rollout.rollout_id for rollout in rollouts}
    put(run, *rollouts)
    assert run.start("scorer", ROLLSTREAM_CRASH_AT="batch_scored").wait() == -9
    assert list(Path.cwd().glob(f"{run.name}*")) == []
    assert scored_ids(run)
    assert run.committed("scorers", "rollouts") == 0
    in_mid_batch = run.start("scorer")
    wait_until(lambda: '"message": "scoring"' in in_mid_batch.said(), "the stream to start")
    wait_until(lambda: _is_assigned(run), "its partitions")
    in_mid_batch.kill()
    assert run.committed("scorers", "rollouts") < len(rollouts)
    run.start("scorer")
    wait_until(lambda: run.committed("scorers", "rollouts") == len(rollouts), "all to be committed")
    assert set(scored_ids(run)) == expected


def test_a_scorer_that_is_asked_to_end_while_no_broker_answers_ends_at_once(tmp_path: Path) -> None:
    config = tmp_path / "rollstream.toml"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        config.write_text(f'run = "silent"\n[kafka]\nbootstrap_servers = "127.0.0.1:{port}"\n')
        scorer = start_forked(partial(broken_scorer.main, config, "raise"), log=tmp_path / "scorer.log")
        try:
            silent.settimeout(DEADLINE_SECONDS)
            with silent.accept()[0]:  # by now Faust starts
                assert scorer.terminate(5.0) == 0
        finally:
            scorer.kill()


def test_a_world_that_breaks_in_mid_batch_commits_nothing(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        broken = {}
        for how in ("raise", "exit", "cancel"):
            (tmp_path / how).mkdir()
            run = stack.enter_context(a_run(kafka, f"{topic_prefix}-{how}", tmp_path / how))
            put(run, *(a_generated(prompt=a_prompt(row)) for row in range(12)))
            broken[how] = (run, start_broken(run, how))
        for how, (run, process) in broken.items():
            assert (how, process.wait()) == (how, 70)
            assert (how, run.committed("scorers", "rollouts")) == (how, 0)


def test_a_broker_that_refuses_the_results_ends_the_scorer_and_commits_nothing(run: Run) -> None:
    put(run, *(a_generated(prompt=a_prompt(row)) for row in range(12)))
    allow_no_record_on(run, "scored")
    assert run.start("scorer").wait() == 70
    assert run.committed("scorers", "rollouts") == 0


def test_a_rollout_that_kills_the_scorer_each_time_is_given_up_and_the_others_pass(run: Run) -> None:
    miss_killed_members_soon(run)
    innocent = [a_generated(prompt=ordered(row)) for row in range(6)]
    culprit = a_generated(prompt=ordered(6, "kill scorer"))
    put(run, *innocent[:3], culprit, *innocent[3:])
    deaths = 0
    while not (letters := list_dead_letters(run.on_bus)):
        scorer = run.start("scorer")
        wait_until(lambda: scorer.has_ended or list_dead_letters(run.on_bus), "an end")  # noqa: B023
        deaths += scorer.has_ended
        assert deaths <= 5
    assert deaths == 5
    assert [letter.error_class for letter in letters] == ["PoisonError"]
    wait_until(lambda: run.committed("scorers", "rollouts") == 7, "the partition to move on")
    assert set(scored_ids(run)) == {rollout.rollout_id for rollout in innocent}


def _is_assigned(run: Run) -> Any:
    client = AdminClient(run.kafka.client_config())
    group = client.describe_consumer_groups([f"{run.name}.scorers"])[f"{run.name}.scorers"].result(10)
    return any(member.assignment.topic_partitions for member in group.members)
