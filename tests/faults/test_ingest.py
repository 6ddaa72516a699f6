"""The ingest server as a process, on a real broker: what it answers with 202 is on its topic, once per key."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from rollstream.bus.admin import KafkaAdmin
from rollstream.local.kafka import KafkaCluster
from rollstream.local.kafka_properties import plan_cluster
from rollstream.local.ports import free_ports
from rollstream.local.redis import RedisServer
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.topics import FEEDBACK, INGEST_PROMPTS, SERVE_PROMPTS
from tests.harness import producer_runs
from tests.harness.ingest_runs import KEYS, Answered, IngestServer, an_ingest_server
from tests.harness.running import Run, a_run
from tests.harness.scraping import scraped
from tests.harness.waits import wait_until

THUMBS = {"response_id": "chatcmpl-5f0c", "metric": "thumbs", "number": 1}
TO_TRAIN = {"messages": "52910=", "reference_answer": "01259", "purpose": "train"}
NUM_KEYS = 1000
NUM_CLIENTS = 24


@pytest.fixture(scope="module")
def server(kafka: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngestServer]:
    """One server for the tests that leave it alive."""
    directory = tmp_path_factory.mktemp("ingest")
    with a_run(kafka, f"ingest-{uuid4().hex[:8]}", directory, redis_url=redis_url) as run:
        made = an_ingest_server(run)
        made.start()
        made.wait_until_ready()
        yield made


def counted(server: IngestServer) -> tuple[float, float]:
    """Feedback that was taken, and requests that were no feedback."""
    taken = scraped(server.health_port, "rollstream_ingest_accepted_total", kind="feedback")
    refused = scraped(server.health_port, "rollstream_ingest_refused_total", reason="invalid")
    assert taken is not None
    assert refused is not None
    return taken, refused


def test_feedback_is_on_its_topic_when_it_is_answered(server: IngestServer) -> None:
    answer = server.post("/v1/feedback", [THUMBS, {"session": "s-1", "metric": "words", "text": "good"}])
    assert answer.status == 202
    ids = [one["feedback_id"] for one in answer.body["accepted"]]
    found = {record.feedback_id: record for record in server.run.records(FEEDBACK)}
    assert [found[one].target for one in ids] == [("response_id", "chatcmpl-5f0c"), ("session", "s-1")]
    assert {(found[one].client, found[one].tenant) for one in ids} == {("web", "acme")}


def test_prompts_lie_on_the_topic_of_their_purpose(server: IngestServer) -> None:
    answer = server.post("/v1/prompts", [TO_TRAIN, {"messages": [{"role": "user", "content": "hello"}]}])
    assert answer.status == 202
    [train, serve] = [one["group_id"] for one in answer.body["accepted"]]
    assert train in {prompt.group_id for prompt in server.run.records(INGEST_PROMPTS)}
    assert serve in {prompt.group_id for prompt in server.run.records(SERVE_PROMPTS)}


def test_what_comes_again_with_its_key_has_the_same_id_and_is_written_once(server: IngestServer) -> None:
    first, again = (server.post("/v1/feedback", THUMBS, idempotency_key="a key of one") for _ in range(2))
    assert (first.status, first.body) == (202, again.body)
    other = server.post("/v1/feedback", THUMBS, idempotency_key="a key of one", client="app")
    ids = [record.feedback_id for record in server.run.records(FEEDBACK)]
    assert ids.count(first.body["accepted"][0]["feedback_id"]) == 1
    assert other.body != first.body


def test_a_key_that_comes_again_with_another_body_is_refused(server: IngestServer) -> None:
    assert server.post("/v1/feedback", THUMBS, idempotency_key="a key of two").status == 202
    answer = server.post("/v1/feedback", {**THUMBS, "number": -1}, idempotency_key="a key of two")
    assert (answer.status, answer.body["error"]["code"]) == (422, "other_body")


def test_entries_may_have_keys_of_their_own(server: IngestServer) -> None:
    keyed = [{**TO_TRAIN, "idempotency_key": f"own {number}"} for number in range(3)]
    first, again = server.post("/v1/prompts", keyed[:2]), server.post("/v1/prompts", keyed[1:])
    assert first.body["accepted"][1] == again.body["accepted"][0]
    twice = server.post("/v1/prompts", [keyed[0], keyed[0]])
    assert (twice.status, twice.body["error"]["code"]) == (422, "invalid")


def test_a_request_with_one_bad_entry_writes_none(server: IngestServer) -> None:
    before = len(server.run.records(FEEDBACK))
    answer = server.post("/v1/feedback", [THUMBS, {**THUMBS, "number": "high"}])
    assert answer.status == 422
    assert "entry 1: number" in answer.body["error"]["message"]
    assert len(server.run.records(FEEDBACK)) == before


@pytest.mark.parametrize(
    ("path", "body", "client", "status"),
    [
        ("/v1/prompts", TO_TRAIN, "app", 403),
        ("/v1/prompts", {**TO_TRAIN, "sampling": {"seed": 10**400}}, "web", 422),
        ("/v1/nothing", THUMBS, "web", 404),
        ("/v1/feedback", b"{", "web", 400),
        ("/v1/feedback", b"", "web", 422),
        ("/v1/feedback", [THUMBS] * 1001, "web", 413),
        ("/v1/feedback", b"[" * 100_000, "web", 400),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_refused_is_said_in_one_shape(
    server: IngestServer, path: str, body: Any, client: str, status: int
) -> None:
    answer = server.post(path, body, client=client)
    assert answer.status == status
    assert set(answer.body["error"]) == {"message", "type", "code"}


def test_only_who_holds_a_key_is_answered_and_no_key_is_logged(server: IngestServer) -> None:
    content = json.dumps(THUMBS).encode()
    assert server.ask("POST", "/v1/feedback", content, {}).status == 401
    assert server.ask("POST", "/v1/feedback", content, {"x-api-key": str(KEYS["web"]["key"])}).status == 202
    assert server.ask("GET", "/v1/feedback", None, {"x-api-key": str(KEYS["web"]["key"])}).status == 405
    assert not [name for name, key in KEYS.items() if str(key["key"]) in server.run.said()]


def test_what_was_taken_and_what_not_is_counted(server: IngestServer) -> None:
    taken, refused = counted(server)
    server.post("/v1/feedback", [THUMBS] * 3)
    server.post("/v1/feedback", {})
    assert counted(server) == (taken + 3, refused + 1)


def test_each_key_is_one_group_although_server_and_redis_were_killed_and_all_was_sent_again(
    kafka: str, topic_prefix: str, tmp_path: Path
) -> None:
    redis = RedisServer(tmp_path / "redis", free_ports(1)[0])
    redis.start()
    keys = [f"key {number}" for number in range(NUM_KEYS)]
    with a_run(kafka, topic_prefix, tmp_path, redis_url=redis.url) as run, ThreadPoolExecutor(NUM_CLIENTS) as clients:
        server = an_ingest_server(run)
        process = server.start()
        server.wait_until_ready()

        def post(key: str) -> Answered:
            return server.post("/v1/prompts", TO_TRAIN, idempotency_key=key)

        first = [clients.submit(post, key) for key in keys]
        wait_until(lambda: sum(one.done() for one in first) > NUM_KEYS // 3, "some to be answered")
        process.kill()
        redis.stop()
        server.start()
        answered = {key: one.result() for key, one in zip(keys, first, strict=True) if one.result().status == 202}
        server.wait_until_ready()
        again = dict(zip(keys, clients.map(post, keys), strict=True))
        assert {answer.status for answer in again.values()} == {202}
        assert all(again[key].body == answer.body for key, answer in answered.items())
        groups = {answer.body["accepted"][0]["group_id"] for answer in again.values()}
        assert NUM_KEYS // 3 < len(answered) < NUM_KEYS
        assert len(groups) == NUM_KEYS
        assert len(run.records(INGEST_PROMPTS)) > NUM_KEYS
        assert posed_groups(run, tmp_path) == sorted(groups)


def posed_groups(run: Run, directory: Path) -> list[str]:
    """The groups of what a producer poses of it, one for each prompt."""
    posing = producer_runs.Run(run.kafka.bootstrap_servers, run.name, directory)
    settings = posing.settings(source="ingest", path=None, groups_per_step=NUM_KEYS)
    try:
        with producer_runs.producing(settings):
            posing.wait_for(NUM_KEYS)
    finally:
        posing.publisher.close()
        posing.reader.close()
    return sorted(prompt.group_id for prompt in posing.prompts)


def test_without_a_broker_it_answers_503_and_every_202_is_on_its_topic(topic_prefix: str, tmp_path: Path) -> None:
    cluster = KafkaCluster(tmp_path / "kafka", plan_cluster(1))
    kafka = KafkaSettings(bootstrap_servers=cluster.bootstrap_servers)
    run = Run(kafka=kafka, name=topic_prefix, directory=tmp_path)
    server = an_ingest_server(run, confirm_seconds=1.0)
    confirmed: list[str] = []

    def post() -> int:
        answer = server.post("/v1/feedback", THUMBS)
        if answer.body is not None:
            confirmed.extend(one["feedback_id"] for one in answer.body.get("accepted", []))
        return answer.status

    process = server.start()
    try:
        wait_until(lambda: post() == 503, "an answer without a broker")
        assert server.post("/v1/feedback", THUMBS).headers["retry-after"] == "1"
        assert not server.is_ready("broker")
        cluster.start()
        KafkaAdmin(kafka).create_topics(topic_prefix, partitions=2)
        wait_until(lambda: post() == 202, "the broker to confirm")
        server.wait_until_ready()
        with ThreadPoolExecutor(NUM_CLIENTS) as clients:
            asked = [clients.submit(post) for _ in range(NUM_KEYS)]
            wait_until(lambda: len(confirmed) > NUM_KEYS // 4, "some to be confirmed")
            next(iter(cluster.processes.values())).kill()
            wait_until(lambda: any(one.done() and one.result() == 503 for one in asked), "one that is not confirmed")
            cluster.start()
        wait_until(lambda: post() == 202, "the broker to confirm again")
        assert {one.result() for one in asked} == {202, 503}
        assert set(confirmed) <= {record.feedback_id for record in run.records(FEEDBACK)}
        next(iter(cluster.processes.values())).kill()
        assert process.terminate() == 0
        assert "Traceback" not in process.said()
    finally:
        process.kill()
        cluster.stop()
