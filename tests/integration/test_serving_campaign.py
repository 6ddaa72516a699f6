"""What `test_serving.py` shows once, at length: many kills, and broker, Redis and trainer away for two minutes each."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Event, Thread

import pytest

from rollstream.local.kafka import KafkaCluster
from rollstream.local.kafka_properties import plan_cluster
from rollstream.local.ports import free_ports
from rollstream.local.redis import RedisServer
from rollstream.local.tiny_model import write_tiny_model
from rollstream.schemas.topics import ROLLOUTS
from tests.harness.builders import a_prompt
from tests.harness.running import Run, a_run
from tests.harness.scraping import scraped
from tests.harness.serving_runs import ServingGenerator, a_serving_generator, calling, each_is_recorded_once
from tests.harness.trainer_runs import a_trainer_run, scored_groups, survivors, trainers, write_model
from tests.harness.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forks")]

AWAY_SECONDS = 120.0
"""As long as a delivery is tried."""


@contextmanager
def prompted(run: Run) -> Iterator[None]:
    """Training prompts, one after another, as long as there is a broker."""
    ended = Event()

    def submit() -> None:
        for row in count():
            if ended.wait(0.5):
                return
            run.submit(a_prompt(row, run=run.name))

    thread = Thread(target=submit, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(30)


def killed_under_traffic(generator: ServingGenerator, num_kills: int) -> None:
    generator.start()
    generator.until_ready(120)
    with calling(generator, 8) as callers:
        for _ in range(num_kills):
            callers.until_more(40)
            generator.kill_and_start()
        callers.until_more(40)
    each_is_recorded_once(callers)
    print(f"{num_kills} kills: {dict(callers.outcomes)}")  # noqa: T201 (the figures of a campaign)


def test_twenty_kills_lose_no_answer_that_reached_its_client(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    with a_run(kafka, topic_prefix, tmp_path) as run:
        run.publish_weights(1)
        killed_under_traffic(a_serving_generator(run, token_seconds=0.002), 20)


def test_kills_of_vllm_lose_no_answer_that_reached_its_client(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    write_tiny_model(model, seed=1)
    engine = {
        "kind": "vllm",
        "model_path": model,
        "enforce_eager": True,
        "max_num_seqs": 16,
        "max_model_len": 32,
        "kv_cache_bytes": 2**26,
    }
    with a_run(kafka, topic_prefix, tmp_path) as run:
        run.publish_weights(1, (model / "model.safetensors").read_bytes())
        killed_under_traffic(a_serving_generator(run, engine=engine), 5)


def test_a_broker_that_is_away_for_two_minutes_fails_no_call(tmp_path: Path, topic_prefix: str) -> None:
    broker = KafkaCluster(tmp_path / "kafka", plan_cluster(1))
    try:
        broker.start()
        with a_run(broker.bootstrap_servers, topic_prefix, tmp_path) as run:
            generator = a_serving_generator(run, token_seconds=0.02)
            run.publish_weights(1)
            generator.start()
            generator.until_ready()
            with prompted(run):
                wait_until(lambda: len(run.records(ROLLOUTS)) > 8, "samples of prompts")
            run.submit(*(a_prompt(row, run=run.name) for row in range(1000, 1200)))
            with calling(generator, 4) as callers:
                callers.until_more(20)
                broker.stop()
                callers.call_for(AWAY_SECONDS + 10)
                broker.start()
                callers.until_more(20)
                wait_until(
                    lambda: scraped(generator.health_port, "rollstream_generator_training_lane_ready"), "its lane"
                )
            each_is_recorded_once(callers)
            samples = {(one.prompt.source.row, one.sample_index) for one in run.records(ROLLOUTS)}
            wait_until(lambda: len({one.group_id for one in run.records(ROLLOUTS)}) >= 200, "the prompts to be sampled")
            restarts = scraped(generator.health_port, "rollstream_serve_training_lane_restarts_total")
            print(f"{dict(callers.outcomes)}, {restarts} lanes more, {len(samples)} samples")  # noqa: T201
            assert set(callers.outcomes) == {"whole"}
            assert generator.process
            assert generator.process.terminate() == 0
    finally:
        broker.stop()


def test_a_redis_that_is_away_for_two_minutes_fails_no_call(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    redis = RedisServer(tmp_path, free_ports(1)[0])
    redis.start()
    with a_run(kafka, topic_prefix, tmp_path, redis_url=redis.url) as run:
        generator = a_serving_generator(run, token_seconds=0.02)
        run.publish_weights(1)
        generator.start()
        generator.until_ready()
        with prompted(run), calling(generator, 4) as callers:
            callers.until_more(20)
            redis.stop()
            callers.call_for(AWAY_SECONDS)
            redis.start()
            callers.until_more(20)
        each_is_recorded_once(callers)
        print(f"{dict(callers.outcomes)}")  # noqa: T201
        assert set(callers.outcomes) == {"whole"}
    redis.stop()


def test_a_trainer_that_is_away_for_two_minutes_fails_no_call(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    with a_trainer_run(kafka, topic_prefix, tmp_path / "run", model) as run, trainers(run) as start:
        trainer = start()
        scored_groups(run, 4)
        wait_until(lambda: survivors(run).step == 2, "two steps")
        generator = a_serving_generator(run, token_seconds=0.02)
        generator.start()
        generator.until_ready()
        with calling(generator, 4) as callers:
            callers.until_more(20)
            trainer.kill()
            callers.call_for(AWAY_SECONDS)
            start()
            scored_groups(run, 4, first=4)
            wait_until(lambda: survivors(run).step == 4, "two steps more")
            newest = survivors(run).current_version
            wait_until(lambda: scraped(generator.health_port, "rollstream_generator_weight_version") == newest, "it")
            callers.until_more(20)
        each_is_recorded_once(callers)
        print(f"{dict(callers.outcomes)}")  # noqa: T201
        assert set(callers.outcomes) == {"whole"}
