"""Evaluation through the topics: what is answered is averaged, what is not is counted, the two are never mixed."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.message import OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.bus.reader import TopicReader
from rollstream.bus.run import Run
from rollstream.cli.main import cli
from rollstream.client.evaluate import evaluate, newest_version
from rollstream.client.evaluation import EvaluationReport, EvaluationRequest
from rollstream.process.settings.base import KafkaSettings
from rollstream.producers.settings import ProducerSettings
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import BrokenWorldError, ConfigurationError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.prompt import AgentChoice, PromptSubmitted
from rollstream.schemas.rollout import Status
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import EVAL_PROMPTS, EVAL_SCORED, PROMPTS, WEIGHTS
from rollstream.schemas.weights import WeightsPublished
from tests.harness.builders import a_failure, a_prompt, a_rollout, a_turn, published

VERSION = 3
DEADLINE_SECONDS = 20.0


@pytest.fixture
def settings(kafka: str, topic_prefix: str) -> ProducerSettings:
    kafka_settings = KafkaSettings(bootstrap_servers=kafka)
    KafkaAdmin(kafka_settings).create_topics(topic_prefix, partitions=2)
    return ProducerSettings(run=topic_prefix, kafka=kafka_settings, environment="sort_digits")


def answers_to(prompt: PromptSubmitted) -> list[RolloutScored]:
    """Row 0 fails, 1 is sampled by a wrong version, 2 gets no answer, 3 is retried, the others are right."""
    if prompt.source.row == 0:
        return [a_rollout(prompt=prompt, status=Status.FAILED, failure=a_failure("gone", FailureCode.VERSION_GONE))]
    if prompt.source.row == 1:
        return [a_rollout(1.0, prompt=prompt, turns=(a_turn(spans=[(VERSION, 0, 2), (VERSION + 1, 2, 6)]),))]
    if prompt.source.row == 2:
        return []
    if prompt.source.row == 3:
        return [a_rollout(None, prompt=prompt), a_rollout(0.0, prompt=prompt)]
    return [a_rollout(1.0, prompt=prompt)]


@contextmanager
def answering(settings: ProducerSettings) -> Iterator[list[PromptSubmitted]]:
    """The stages in between: answer what comes on eval-prompts, after two answers to somebody else's prompts."""
    ending, asked = threading.Event(), []
    publisher = Publisher(settings.kafka, client_id="test")

    def put(scored: RolloutScored) -> None:
        value = AvroCodec(EVAL_SCORED).encode(scored)
        publisher.publish_soon(OutRecord(topic=EVAL_SCORED.of(settings.run), value=value)).result(DEADLINE_SECONDS)

    def answer() -> None:
        with TopicReader(settings.kafka, [EVAL_PROMPTS.of(settings.run)]) as reader:
            while not ending.is_set():
                for message in reader.poll(timeout_seconds=0.1):
                    prompt = AvroCodec(EVAL_PROMPTS).decode(message.value)
                    asked.append(prompt)
                    for scored in answers_to(prompt):
                        put(scored)

    put(a_rollout(0.5, prompt=a_prompt(1)))
    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield asked
    finally:
        ending.set()
        thread.join(DEADLINE_SECONDS)
        publisher.close()


def publish_weights(settings: ProducerSettings, *versions: WeightsPublished) -> None:
    publisher = Publisher(settings.kafka, client_id="test")
    for weights in versions:
        value = AvroCodec(WEIGHTS).encode(weights)
        publisher.publish_soon(OutRecord(topic=WEIGHTS.of(settings.run), value=value)).result(DEADLINE_SECONDS)
    publisher.close()


def evaluated(settings: ProducerSettings, *, deadline_seconds: float) -> EvaluationReport:
    request = EvaluationRequest(
        environment="sort_digits",
        weight_version=VERSION,
        agent=AgentChoice(name="tools", options={"tools": "box"}),
        num_prompts=8,
        deadline_seconds=deadline_seconds,
    )
    publish_weights(settings, published(VERSION))
    return evaluate(Run(settings), request)


def test_the_report_averages_what_was_scored_and_counts_the_rest(settings: ProducerSettings) -> None:
    with answering(settings) as asked:
        first = evaluated(settings, deadline_seconds=2.5)
        second = evaluated(settings, deadline_seconds=2.5)
    assert (first.num_completed, first.num_failed, first.num_unresolved) == (5, 1, 2)
    # Four right answers, and one wrong one that a retry gave after a first attempt was not resolved.
    assert first.mean_reward == pytest.approx(4 / 5)
    assert {(failure.code, failure.count, failure.example) for failure in first.failures} == {
        (FailureCode.VERSION_GONE, 2, "gone"),
        (FailureCode.DEADLINE, 1, "no answer within 2.5 s"),
    }
    assert [str(prompt.samples[0].failure) for prompt in first.prompts[:3]] == [
        "version_gone: gone",
        "version_gone: sampled by version [3, 4], wanted 3",
        "deadline: no answer within 2.5 s",
    ]
    assert first.mean_reward == second.mean_reward
    assert len({prompt.group_id for prompt in asked}) == 16
    assert {(p.purpose, p.weight_version, p.sampling.temperature, p.group_size) for p in asked} == {
        ("evaluate", VERSION, 0.0, 1)
    }
    assert {prompt.agent.name for prompt in asked} == {"tools"}
    with TopicReader(settings.kafka, [PROMPTS.of(settings.run)]) as reader:
        assert list(reader.to_end()) == []


def test_an_evaluation_without_stages_ends_at_its_deadline(settings: ProducerSettings) -> None:
    started = time.monotonic()
    report = evaluated(settings, deadline_seconds=1)
    assert (report.mean_reward, report.num_unresolved) == (None, 8)
    assert time.monotonic() - started < DEADLINE_SECONDS


def test_the_newest_version_of_the_model_is_found(settings: ProducerSettings) -> None:
    with pytest.raises(ConfigurationError, match="has no weight version"):
        newest_version(Run(settings))
    publish_weights(settings, published(1), published(2), published(9, model="another"))
    assert newest_version(Run(settings)) == 2


def command(settings: ProducerSettings, directory: Path, *words: str) -> Result:
    """`rollstream evaluate`, on a file that declares an environment whose loading raises."""
    config = directory / "rollstream.toml"
    config.write_text(
        f'run = "{settings.run}"\n[kafka]\nbootstrap_servers = "{settings.kafka.bootstrap_servers}"\n'
        '[producer]\nenvironment = "sort_digits"\n'
        '[environments.broken]\npath = "tests.harness.unruly_environment.raising_to_load"\n'
    )
    return CliRunner().invoke(cli, ["evaluate", "--config", str(config), *words])


@pytest.mark.parametrize(
    ("environment", "why"), [("os.abort", "is not one of the environments of this run"), ("broken", "no data set")]
)
def test_an_environment_that_cannot_be_loaded_is_for_a_person_to_mend(
    settings: ProducerSettings, environment: str, why: str, tmp_path: Path
) -> None:
    publish_weights(settings, published(1))
    result = command(settings, tmp_path, "--environment", environment)
    assert isinstance(result.exception, ConfigurationError), result.output
    assert why in str(result.exception)


def test_a_version_that_does_not_exist_is_refused_before_anything_is_submitted(
    settings: ProducerSettings, tmp_path: Path
) -> None:
    publish_weights(settings, published(1), published(2))
    result = command(settings, tmp_path, "--version", "7")
    assert isinstance(result.exception, ConfigurationError), result.output
    assert "has no weight version 7 of 'policy'; the newest is 2" in str(result.exception)
    with TopicReader(settings.kafka, [EVAL_PROMPTS.of(settings.run)]) as reader:
        assert list(reader.to_end()) == []


def test_an_evaluation_that_scores_nothing_is_a_failure(settings: ProducerSettings, tmp_path: Path) -> None:
    publish_weights(settings, published(1))
    result = command(settings, tmp_path, "--num-prompts", "2", "--deadline", "1", "--json")
    assert isinstance(result.exception, BrokenWorldError), result.output
    assert "none of 2 prompts was scored" in str(result.exception)
    assert json.loads(result.stdout)["num_unresolved"] == 2
