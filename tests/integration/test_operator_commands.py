"""What people run, on the real broker, with topics filled by hand."""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.clients import cluster_topics
from rollstream.bus.message import OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.bus.reader import TopicReader
from rollstream.bus.transaction import TransactionalPublisher
from rollstream.cli.main import cli
from rollstream.process.fleet import Fleet
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome
from rollstream.schemas.prompt import PromptSubmitted, Purpose
from rollstream.schemas.record import Record
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import (
    FEEDBACK,
    LEDGER,
    PRODUCERS,
    PROGRESS,
    PROMPTS,
    RECORDS,
    ROLLOUTS,
    SCORED,
    SERVE_PROMPTS,
    SERVE_SCORED,
    TOPICS,
    WEIGHTS,
    WEIGHTS_APPLIED,
    Topic,
    topic_named,
)
from tests.harness.builders import (
    a_feedback,
    a_progress,
    a_prompt,
    a_rollout,
    a_trained,
    a_turn,
    a_turn_progress,
    an_entry,
    applied,
    published,
)
from tests.harness.command_runs import CommandRun
from tests.harness.waits import wait_until

START = an_entry(EntryKind.RESTART, step=0, weight_version=0, parent_version=None)


@pytest.fixture
def run(kafka: str, redis_url: str, topic_prefix: str, tmp_path: Path) -> Iterator[CommandRun]:
    """A run with empty topics."""
    config = tmp_path / "rollstream.toml"
    config.write_text(f'run = "{topic_prefix}"\nredis_url = "{redis_url}"\n[kafka]\nbootstrap_servers = "{kafka}"\n')
    settings = KafkaSettings(bootstrap_servers=kafka)
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=2)
    publisher = Publisher(settings, client_id="test")
    yield CommandRun(name=topic_prefix, kafka=settings, config=config, publisher=publisher)
    publisher.close()


def test_tail_prints_one_line_a_record_and_unreadable_ones_too(run: CommandRun) -> None:
    rollout = a_rollout(0.5)
    run.put(SCORED, rollout, key="g")
    run.put_bytes(SCORED, b"garbage", key="g")
    lines = run.command("tail", "scored").splitlines()
    assert len(lines) == 2
    assert "reward 0.5" in lines[0]
    assert rollout.rollout.rollout_id in lines[0]
    assert "unreadable: scored: not in the wire format" in lines[1]


SHOWN: list[tuple[Topic[Any], Record, str]] = [
    (PROMPTS, a_prompt(), "train x4 sort_digits '52910=' reference '01259'"),
    (PRODUCERS, a_progress(), "producer-0 at '18' of train.jsonl@5891b5b522d5, next prompt 18, 1 groups open"),
    (ROLLOUTS, a_rollout().rollout, "completed 6 tokens v3 '01259'"),
    (WEIGHTS, published(2), "policy version 2 ← 1 step 2 full 2 files 4.2 MB"),
    (WEIGHTS_APPLIED, applied(2), "generator-1 version 2 applied stall 0.027 s"),
    (LEDGER, START, "restart 0 version 0 0 rollouts, 0 groups closed"),
    (FEEDBACK, a_feedback(0.5), "chatcmpl-5f0c thumbs 0.5 by web of acme"),
    (PROGRESS, a_turn_progress(2), "/2 turn 6 tokens attempt aaaa"),
]


def test_tail_has_a_line_for_each_kind_of_record() -> None:
    assert {type(record) for _, record, _ in SHOWN} | {RolloutScored} == set(RECORDS)


def test_tail_shows_what_is_in_each_kind_of_record(run: CommandRun) -> None:
    for topic, record, shown in SHOWN:
        run.put(topic, record, key="k")
        assert shown in run.command("tail", topic.name)


def test_tail_tells_a_deletion_from_what_can_t_be_read(run: CommandRun) -> None:
    run.put_bytes(PROGRESS, None, key="r/0")
    assert run.command("tail", "progress").strip().endswith("deleted: r/0")
    assert json.loads(run.command("tail", "progress", "--json"))["error"] == "deleted"
    run.put_bytes(PROMPTS, None, key="g")
    assert "unreadable: prompts: not in the wire format" in run.command("tail", "prompts")


def test_tail_shows_streams_of_groups(run: CommandRun) -> None:
    run.command("topics", "create", "--streams")
    stream = topic_named("rc_stats")
    run.put_bytes(stream, b'{"reward": 0.5}', key="0")
    assert """0 '{"reward": 0.5}'""" in run.command("tail", "rc_stats")
    assert json.loads(run.command("tail", "rc_stats", "--json"))["value"] == {"reward": 0.5}
    run.put_bytes(stream, b"[" * 100_000, key="0")
    lines = run.command("tail", "rc_stats").splitlines()
    assert len(lines[1]) < 300
    assert json.loads(run.command("tail", "rc_stats", "--json", "-n", "1"))["value"] is None


def test_tail_shows_the_newest_records_over_all_partitions(run: CommandRun) -> None:
    for row in range(12):
        run.put(PROMPTS, a_prompt(row), key=f"key-{row}")
    lines = run.command("tail", "prompts", "-n", "3").splitlines()
    assert [a_prompt(row).group_id in line for row, line in zip((9, 10, 11), lines, strict=True)] == [True] * 3


def test_tail_as_json_gives_token_ids_as_numbers(run: CommandRun) -> None:
    run.put(SCORED, a_rollout(0.5), key="g")
    row = json.loads(run.command("tail", "scored", "--json"))
    turn = row["value"]["rollout"]["turns"][0]
    assert turn["token_ids"] == [4, 5, 6, 9, 13, 1]
    assert turn["behavior_logprobs"][0] == -0.125
    assert row["value"]["scoring"]["reward"] == 0.5
    assert row["key"] == "g"
    assert row["offset"] == 0


def test_tail_follow_prints_what_comes_and_ends_cleanly_on_ctrl_c(run: CommandRun) -> None:
    run.put(PROMPTS, a_prompt(1), key="a")
    command = [sys.executable, "-m", "rollstream.cli.main", "tail", "prompts", "-f", "--config", str(run.config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert a_prompt(1).group_id in process.stdout.readline()
        run.put(PROMPTS, a_prompt(2), key="b")
        assert a_prompt(2).group_id in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(20) == 0
        finally:
            process.kill()
        assert "Traceback" not in process.stderr.read()


def test_topics_are_created_once_described_and_deleted_after_asking(
    kafka: str, topic_prefix: str, tmp_path: Path
) -> None:
    config = tmp_path / "rollstream.toml"
    config.write_text(f'run = "{topic_prefix}"\n[kafka]\nbootstrap_servers = "{kafka}"\n')
    settings = KafkaSettings(bootstrap_servers=kafka)
    admin = KafkaAdmin(settings)
    fresh = _invoke(config, "topics", "create", "--partitions", "3")
    assert len(fresh.splitlines()) == len(TOPICS)
    wait_until(lambda: len(admin.describe_topics(topic_prefix)) == len(TOPICS), "every topic", 15.0)
    assert "there already" in _invoke(config, "topics", "create", "--partitions", "3")
    described = {row["name"]: row for row in json.loads(_invoke(config, "topics", "describe", "--json"))}
    assert described[PROMPTS.of(topic_prefix)]["num_partitions"] == 3
    assert described[LEDGER.of(topic_prefix)]["num_partitions"] == 1

    asked = CliRunner().invoke(cli, ["topics", "delete", "--config", str(config)], input="another-run\n")
    assert asked.exit_code == 1
    assert "nothing was deleted" in asked.output
    assert len(admin.describe_topics(topic_prefix)) == len(TOPICS)
    assert len(_invoke(config, "topics", "delete", "--yes").splitlines()) == len(TOPICS)
    names = {topic.of(topic_prefix) for topic in TOPICS}
    wait_until(lambda: names.isdisjoint(cluster_topics(settings)), "every topic to be gone", 15.0)


def test_lineage_leads_from_a_rollout_to_its_version_from_the_topics_alone(run: CommandRun) -> None:
    rollout, entry = _a_trained_run(run)
    text = run.command("lineage", rollout.rollout.rollout_id)
    for station in (
        "prompt     sort_digits/17 train",
        "attempt    attempt-0 completed",
        "turn 0: 6 tokens, v0 [0, 6), stop",
        "reward 1 (exact_match 1)",
        "trained    step 1, attempt attempt-0, lag 0",
        "version    policy version 1 ← 0",
    ):
        assert station in text, text
    story = json.loads(run.command("lineage", rollout.rollout.rollout_id, "--json"))
    assert story["trained"]["offset"] == entry.trained[0].offset
    assert story["policy_lag"] == 0


def test_lineage_of_a_step_lists_the_rollouts_that_it_trained_on(run: CommandRun) -> None:
    rollout, _ = _a_trained_run(run)
    text = run.command("lineage", "1")
    assert text.startswith("step 1 version 1 ← 0")
    assert f"{rollout.rollout.rollout_id} completed 6 tokens" in text
    assert "lag 0" in text


def test_lineage_of_what_no_topic_knows_says_where_ids_are_found(run: CommandRun) -> None:
    assert "tail scored" in str(run.refusal("lineage", "0123-4"))
    assert "no surviving step 7" in str(run.refusal("lineage", "7"))


def test_status_shows_topics_lag_fleet_and_versions(run: CommandRun, redis_url: str) -> None:
    _a_trained_run(run)
    run.put(WEIGHTS_APPLIED, applied(0), key="generator-1")
    run.put(WEIGHTS_APPLIED, applied(1), key="generator-1")
    for sequence in (17, 18):
        run.put(PRODUCERS, a_progress(next_sequence=sequence), key="producer-0")
    Fleet(redis_url, run.name).beat("generator-1", {"stage": "generator", "in_flight": 3, "tokens_per_second": 42.0})
    status = json.loads(run.command("status", "--once", "--json"))
    assert {topic["name"] for topic in status["topics"]} == {topic.of(run.name) for topic in TOPICS}
    assert status["lag"][0] == {"group": "generators", "topic": "prompts", "num_records": None}
    assert status["newest_step"]["step"] == 1
    assert status["newest_version"]["weight_version"] == 1
    assert [record["weight_version"] for record in status["applied"]] == [1]
    assert [record["next_sequence"] for record in status["producers"]] == [18]
    assert status["fleet"]["generator-1"]["in_flight"] == 3
    shown = run.command("status", "--once")
    for expected in ("weights-applied", "never committed", "applied 1", "42", "producer-0", "reward_mean"):
        assert expected in shown, shown


def test_status_shows_the_newest_records_that_can_be_read_and_is_silent_about_others(
    run: CommandRun, caplog: pytest.LogCaptureFixture
) -> None:
    run.put(WEIGHTS, published(2), key="policy")
    run.put(PRODUCERS, a_progress(), key="producer-0")
    for topic in (WEIGHTS, PRODUCERS, WEIGHTS_APPLIED, LEDGER):
        run.put_bytes(topic, b"garbage", key="producer-0")
    status = json.loads(run.command("status", "--json"))
    assert status["newest_version"]["weight_version"] == 2
    assert [record["producer"] for record in status["producers"]] == ["producer-0"]
    assert "unreadable" not in caplog.text


def test_status_on_a_terminal_is_live_and_ends_with_0_on_ctrl_c(run: CommandRun) -> None:
    terminal, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "rollstream.cli.main", "status", "--config", str(run.config)]
    with subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, start_new_session=True) as process:
        try:
            shown = b""
            while b"records behind" not in shown:
                assert select.select([terminal], [], [], 60)[0], shown
                shown += os.read(terminal, 65536)
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
            while select.select([terminal], [], [], 0)[0]:
                shown += os.read(terminal, 65536)
        finally:
            process.kill()
            os.close(inside)
            os.close(terminal)
    assert b"Traceback" not in shown
    assert b"Aborted" not in shown


def test_status_counts_what_a_group_has_not_committed(run: CommandRun) -> None:
    import confluent_kafka

    deliveries = [run.put(PROMPTS, a_prompt(row), key="same") for row in range(5)]
    member = confluent_kafka.Consumer({**run.kafka.client_config(), "group.id": f"{run.name}.generators"})
    place = confluent_kafka.TopicPartition(deliveries[0].topic, deliveries[0].partition, 2)
    member.commit(offsets=[place], asynchronous=False)
    member.close()
    status = json.loads(run.command("status", "--json"))
    assert status["lag"][0] == {"group": "generators", "topic": "prompts", "num_records": 3}


def test_a_command_on_a_run_without_topics_says_how_to_make_them(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    config = tmp_path / "rollstream.toml"
    config.write_text(f'run = "{topic_prefix}"\n[kafka]\nbootstrap_servers = "{kafka}"\n')
    for words in (
        "status --once", "topics describe", "tail prompts", "weights list", "lineage 3", "ledger check",
        "ledger repair --all", "dead-letters list",
    ):  # fmt: skip
        error = CliRunner().invoke(cli, [*words.split(), "--config", str(config)]).exception
        assert isinstance(error, ConfigurationError), words
        assert "rollstream topics create" in str(error), words


def test_a_stage_without_topics_ends_before_torch_is_imported(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    for heavy in ("torch", "vllm", "transformers"):
        (tmp_path / f"{heavy}.py").write_text("raise SystemExit(99)")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "rollstream.toml").write_text(
        f'run = "{topic_prefix}"\n[kafka]\nbootstrap_servers = "{kafka}"\n'
        '[trainer]\nmodel_path = "."\n[generator.engine]\nmodel_path = "."\n'
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for stage in ("trainer", "generator"):
        command = [sys.executable, "-m", "rollstream.cli.main", stage]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=env, timeout=60)
        assert done.returncode == 78, done.stderr
        assert f"no topics {topic_prefix}." in done.stderr
        assert "make them with `rollstream topics create`" in done.stderr


def test_prompt_submits_and_prints_each_answer_with_its_versions(run: CommandRun) -> None:
    submitted: list[PromptSubmitted] = []
    answering = threading.Thread(target=_answer, args=(run, submitted), daemon=True)
    answering.start()
    text = run.command("prompt", "52910=", "--samples", "2", "--environment", "sort_digits", "--timeout", "30")
    answering.join(10)
    assert submitted[0].purpose is Purpose.SERVE
    assert submitted[0].messages[0].content == "52910="
    assert "0: reward 1  01259" in text
    assert "1: no reward (crash: verifier crashed)" in text
    assert "version 3" in text


def test_prompt_says_how_many_answers_are_missing_at_the_deadline(run: CommandRun) -> None:
    said = str(run.refusal("prompt", "x", "--samples", "2", "--timeout", "3"))
    assert "2 of 2 answers did not come within 3 s" in said


def _answer(run: CommandRun, submitted: list[PromptSubmitted]) -> None:
    """Play generator and scorer for one prompt: one sample with a reward, a duplicate of it, one without."""
    with TopicReader(run.kafka, [SERVE_PROMPTS.of(run.name)]) as reader:
        while not submitted:
            submitted.extend(AvroCodec(SERVE_PROMPTS).decode(message.value) for message in reader.poll())
    prompt = submitted[0]
    for answer in (
        a_rollout(1.0, 0, prompt=prompt),
        a_rollout(1.0, 0, prompt=prompt),
        a_rollout(None, 1, prompt=prompt),
    ):
        run.put(SERVE_SCORED, answer, key=prompt.group_id)


def _a_trained_run(run: CommandRun) -> tuple[RolloutScored, Any]:
    """A run in which one rollout was generated, scored and trained on in step 1."""
    prompt = a_prompt(run=run.name, group_size=1)
    rollout = a_rollout(1.0, prompt=prompt, turns=(a_turn(spans=((0, 0, 6),)),))
    key = prompt.group_id
    run.put(PROMPTS, prompt, key=key)
    run.put(ROLLOUTS, rollout.rollout, key=key)
    place = run.put(SCORED, rollout, key=key)
    entry = an_entry(
        trained=(a_trained(rollout, partition=place.partition, offset=place.offset),),
        closed=(ClosedGroup(group_id=key, outcome=GroupOutcome.TRAINED),),
    )
    trainer = TransactionalPublisher(run.kafka, f"{run.name}.trainer")
    trainer.init()
    for version, line in ((published(0), START), (published(1), entry)):
        trainer.commit([_out(run, WEIGHTS, version, "policy"), _out(run, LEDGER, line, run.name)])
    return rollout, entry


def _out(run: CommandRun, topic: Topic[Any], record: Record, key: str) -> OutRecord:
    return OutRecord(topic=topic.of(run.name), key=key.encode(), value=AvroCodec(topic).encode(record))


def _invoke(config: Path, *words: str) -> str:
    result = CliRunner().invoke(cli, [*words, "--config", str(config)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout
