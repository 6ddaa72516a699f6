"""A generator that answers clients, as a process: its answers are recorded, and it outlives what is around it."""

import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import httpx
import pytest

from rollstream.generator.serve.spool import Spool
from rollstream.local.kafka import KafkaCluster
from rollstream.local.kafka_properties import plan_cluster
from rollstream.schemas.prompt import Purpose
from rollstream.schemas.topics import ROLLOUTS, SERVE_ROLLOUTS
from tests.harness.builders import a_prompt
from tests.harness.running import Run, a_run, readiness
from tests.harness.scraping import scraped
from tests.harness.serving_runs import (
    a_serving_generator,
    calling,
    each_is_recorded_once,
    served_answers,
    until_recorded,
)
from tests.harness.waits import wait_until

pytestmark = pytest.mark.usefixtures("forks")

MIB = 2**20


@pytest.fixture
def run(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[Run]:
    with a_run(kafka, topic_prefix, tmp_path) as run:
        yield run


@pytest.fixture(scope="module")
def broker_of_this_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(tmp_path_factory.mktemp("kafka"), plan_cluster(1))
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def own_broker(broker_of_this_file: KafkaCluster) -> KafkaCluster:
    """A broker that runs, and that a test may take away."""
    broker_of_this_file.start()
    return broker_of_this_file


def test_an_answer_is_recorded_under_the_id_that_its_client_saw_and_prompts_are_sampled_beside(run: Run) -> None:
    generator = a_serving_generator(run)
    run.publish_weights(3)
    generator.start()
    generator.until_ready()
    answer = generator.ask(n=2, metadata={"session_id": "chat-7"}).json()
    recorded = until_recorded(run, lambda: [answer["id"]])[answer["id"]]
    assert sorted(one.served.choice for one in recorded if one.served) == [0, 1]
    texts = {choice["index"]: choice["message"]["content"] for choice in answer["choices"]}
    for rollout in recorded:
        assert rollout.served
        assert rollout.served.session == "chat-7"
        assert rollout.prompt.purpose is Purpose.SERVE
        assert rollout.weight_versions == (3,)
        assert rollout.turns[0].text == texts[rollout.served.choice]
    run.submit(a_prompt(1, run=run.name))
    wait_until(lambda: len(run.records(ROLLOUTS)) == 4, "the samples of a prompt")
    assert scraped(generator.health_port, "rollstream_generator_training_lane_ready") == 1
    assert generator.process
    assert generator.process.terminate() == 0


def test_before_a_version_is_loaded_calls_are_refused_and_it_is_not_ready(run: Run) -> None:
    generator = a_serving_generator(run)
    generator.start()
    wait_until(lambda: "serving" in readiness(generator.health_port), "the endpoint to answer")
    answer = generator.ask()
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert "no weights are loaded yet" in answer.json()["error"]["message"]
    assert not readiness(generator.health_port)["serving"]["is_ok"]
    run.publish_weights(1)
    generator.until_ready()
    assert generator.ask().status_code == 200


def test_every_answer_that_reached_its_client_is_recorded_once_although_the_generator_is_killed(run: Run) -> None:
    generator = a_serving_generator(run, token_seconds=0.002)
    run.publish_weights(1)
    generator.start()
    generator.until_ready()
    with calling(generator) as callers:
        for _ in range(3):
            callers.until_more(30)
            generator.kill_and_start()
        callers.until_more(30)
    each_is_recorded_once(callers)


def test_at_sigterm_it_is_not_ready_and_answers_that_run_come_to_their_end(run: Run) -> None:
    generator = a_serving_generator(run, token_seconds=0.5)
    run.publish_weights(1)
    process = generator.start()
    generator.until_ready()
    answers: list[httpx.Response] = []
    caller = Thread(target=lambda: answers.append(generator.ask(max_tokens=6)))
    caller.start()
    wait_until(lambda: scraped(generator.health_port, "rollstream_serve_running_calls") == 1, "the call to be in work")
    process.signal(signal.SIGTERM)
    wait_until(lambda: "draining" in readiness(generator.health_port), "it to be not ready")
    assert generator.ask().status_code == 503
    caller.join(30)
    assert [answer.status_code for answer in answers] == [200]
    assert process.wait() == 0
    assert answers[0].json()["id"] in served_answers(run)


def test_without_a_broker_clients_are_answered_on_and_with_it_all_is_recorded(
    own_broker: KafkaCluster, tmp_path: Path, topic_prefix: str
) -> None:
    with a_run(own_broker.bootstrap_servers, topic_prefix, tmp_path) as run:
        generator = a_serving_generator(run, token_seconds=0.002)
        run.publish_weights(1)
        generator.start()
        generator.until_ready()
        with calling(generator) as callers:
            callers.until_more(20)
            own_broker.stop()
            callers.until_more(100)
            # A kill loses nothing of it either, and the process that comes then waits for the broker.
            assert generator.process
            generator.process.kill()
            generator.start()
            wait_until(lambda: "serving" in readiness(generator.health_port), "the endpoint to answer")
            assert generator.ask().status_code == 503
            own_broker.start()
            generator.until_ready()
            callers.until_more(20)
        each_is_recorded_once(callers)
        assert set(callers.outcomes) <= {"whole", "cut", "503"}
        assert generator.process
        assert generator.process.terminate() == 0
        spool = Spool(run.directory / "spool", run.name, MIB)
        assert spool.num_records == 0
        spool.close()


def test_a_full_spool_answers_503_until_the_broker_takes_some_of_it(
    own_broker: KafkaCluster, tmp_path: Path, topic_prefix: str
) -> None:
    with a_run(own_broker.bootstrap_servers, topic_prefix, tmp_path) as run:
        generator = a_serving_generator(run, spool_bytes=MIB)
        run.publish_weights(1)
        generator.start()
        generator.until_ready()
        own_broker.stop()
        whole: list[str] = []
        while (answer := generator.ask("1" * 3000 + "=", n=4, max_tokens=200)).status_code == 200:
            whole.append(answer.json()["id"])
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert "can't be recorded" in answer.json()["error"]["message"]
        assert 4 < len(whole) < 40
        wait_until(lambda: not readiness(generator.health_port)["serving"]["is_ok"], "it to be not ready")
        assert 0 < (scraped(generator.health_port, "rollstream_serve_spool_bytes") or 0) <= MIB
        own_broker.start()
        generator.until_ready()
        recorded = until_recorded(run, lambda: whole)
        assert all(len(recorded[response_id]) == 4 for response_id in whole)
        assert generator.ask().status_code == 200


def test_two_generators_can_not_share_a_spool(run: Run) -> None:
    generator = a_serving_generator(run)
    run.publish_weights(1)
    generator.start()
    generator.until_ready()
    second = a_serving_generator(run, spool=run.directory / "spool")
    process = second.start()
    assert process.wait() == 78
    assert "another process writes" in process.said()
    assert generator.ask().status_code == 200
    assert len(run.records(SERVE_ROLLOUTS)) <= 1
