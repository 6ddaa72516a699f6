"""The local stack with real brokers: data over restarts, faults, and nothing left behind."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import redis
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pydantic import SecretStr

from rollstream.local.kafka_properties import plan_cluster
from rollstream.local.ports import HOST, free_ports
from rollstream.local.redis import RedisServer
from rollstream.local.stack import STATE_FILE, LocalStack, StackState
from rollstream.schemas.errors import LocalStackError, PortTakenError
from tests.harness.processes import runs
from tests.harness.waits import wait_until

TOPIC = "kept"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stack")


@pytest.fixture(scope="module")
def stack(run_dir: Path) -> Iterator[LocalStack]:
    """Not up before the first test asks for that; the next one goes on with what runs then."""
    try:
        yield LocalStack(run_dir)
    finally:
        LocalStack(run_dir).down()


def create_topic(servers: str, replicas: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(TOPIC, num_partitions=1, replication_factor=replicas)])[TOPIC].result(30)


def produce(servers: str, numbers: range, *, meanwhile: Callable[[], None] = lambda: None) -> None:
    """All numbers, acknowledged; `meanwhile` runs once half of them are on their way."""
    failures: list[str] = []
    settings = {"bootstrap.servers": servers, "enable.idempotence": True, "acks": "all", "log_level": 0}
    producer = Producer(settings | {"delivery.timeout.ms": 60_000})
    for number in numbers:
        producer.produce(
            TOPIC, str(number).encode(), on_delivery=lambda error, _: failures.append(str(error)) if error else None
        )
        producer.poll(0)
        if number == numbers[len(numbers) // 2]:
            meanwhile()
    assert producer.flush(60) == 0
    assert not failures


def read_all(servers: str, expected: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "unused", "log_level": 0})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    numbers: list[int] = []
    deadline = time.monotonic() + 30
    while len(numbers) < expected and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            numbers.append(int(message.value() or b""))
    consumer.close()
    return numbers


def pids(stack: LocalStack) -> dict[str, int | None]:
    return {service.name: service.pid for service in stack.status()}


def test_the_shared_broker_and_redis_answer(kafka: str, redis_url: str, topic_prefix: str) -> None:
    assert AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=10).brokers
    with redis.Redis.from_url(redis_url) as client:
        assert client.ping()
    assert topic_prefix.startswith("test-the-shared-broker")
    assert len(topic_prefix) <= 60


def test_a_failed_up_leaves_the_services_running_that_ran_before_it(stack: LocalStack) -> None:
    assert stack.status() == ()
    stack.up()
    before = pids(stack)
    stack.redis.kill()
    with socket.create_server((HOST, stack.redis.port)), pytest.raises(PortTakenError, match="of Redis is in use"):
        stack.up()
    assert pids(stack) == {**before, "redis": None}
    stack.up()
    assert pids(stack)["kafka-1"] == before["kafka-1"]


def test_a_stack_keeps_ports_ids_and_records_and_lives_no_longer_than_its_owner_unless_in_the_background(
    stack: LocalStack, run_dir: Path
) -> None:
    stack.up()
    servers, cluster_id = stack.kafka.bootstrap_servers, stack.kafka.plan.cluster_id
    create_topic(servers)
    produce(servers, range(100))
    before = pids(stack)
    stack.up()
    assert pids(stack) == before, "a second up starts nothing"

    assert stack.down() is True
    assert not any(runs(pid) for pid in before.values())
    assert [(service.pid, service.died) for service in stack.status()] == [(None, False), (None, False)]
    assert stack.down() is False

    tied = started_by_one_that_is_killed(run_dir, "tied")
    wait_until(lambda: not any(map(runs, tied.values())), "every process to be gone", 20.0)
    assert [service.died for service in stack.status()] == [True, True]

    background = started_by_one_that_is_killed(run_dir, "background")
    assert all(runs(pid) for pid in background.values())
    again = LocalStack(run_dir)
    again.up()
    assert pids(again) == background, "what runs in the background is taken over"
    assert (again.kafka.bootstrap_servers, again.kafka.plan.cluster_id) == (servers, cluster_id)
    # Held by its name: one that nobody holds may be gone before its answer comes.
    admin = AdminClient({"bootstrap.servers": servers})
    assert admin.describe_cluster().result(10).cluster_id == cluster_id
    produce(servers, range(100, 200))
    assert read_all(servers, 200) == list(range(200))
    assert again.down() is True
    assert not any(runs(pid) for pid in background.values())


def test_a_copied_run_directory_opens_its_own_records_and_leaves_the_original_and_its_processes_alone(
    tmp_path: Path,
) -> None:
    original, copied = LocalStack(tmp_path / "original"), tmp_path / "copied"
    try:
        original.up()
        before = pids(original)
        shutil.copytree(tmp_path / "original", copied)
        assert LocalStack(copied).down() is False, "the processes that its file names are the original's"
        assert pids(original) == before
        assert all(map(runs, before.values()))
        with pytest.raises(PortTakenError):
            LocalStack(copied).up()
        create_topic(original.kafka.bootstrap_servers)
        produce(original.kafka.bootstrap_servers, range(10))
        original.down()
        left = written(tmp_path / "original")

        shutil.rmtree(copied)
        shutil.copytree(tmp_path / "original", copied)
        moved = LocalStack(copied)
        assert moved.came_from == tmp_path / "original"
        moved.up()
        assert moved.came_from is None
        produce(moved.kafka.bootstrap_servers, range(10, 20))
        assert read_all(moved.kafka.bootstrap_servers, 20) == list(range(20))
        moved.down()
        assert written(tmp_path / "original") == left
    finally:
        LocalStack(copied).down()
        original.down()


def written(directory: Path) -> dict[Path, tuple[int, int]]:
    """The size of each file, and when it was last written."""
    files = {path: path.stat() for path in directory.rglob("*") if path.is_file()}
    return {path: (found.st_size, found.st_mtime_ns) for path, found in files.items()}


def started_by_one_that_is_killed(run_dir: Path, placement: str) -> dict[str, int | None]:
    """The processes of a stack that another process started, which was killed then."""
    program = f"""
import sys, time
from pathlib import Path
from rollstream.local.processes import Placement
from rollstream.local.stack import LocalStack
LocalStack(Path({str(run_dir)!r}), placement=Placement(dies_with_parent=sys.argv[1] == "tied")).up()
print("up", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program, placement], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        started = pids(LocalStack(run_dir))
        owner.kill()
    return started


def test_one_broker_of_three_is_killed_under_load_and_comes_back(tmp_path: Path) -> None:
    stack = LocalStack(tmp_path, brokers=3)
    try:
        stack.up()
        servers = stack.kafka.bootstrap_servers
        create_topic(servers, replicas=3)
        produce(servers, range(2000), meanwhile=stack.kafka.processes[2].kill)
        assert len(stack.kafka.processes) == 2
        stack.up()
        assert len(stack.kafka.processes) == 3
        assert read_all(servers, 2000) == list(range(2000))
        with pytest.raises(LocalStackError, match="holds a cluster of 3 broker"):
            LocalStack(tmp_path, brokers=1).up()
    finally:
        left = pids(stack)
        stack.down()
    assert not any(runs(pid) for pid in left.values())


def test_a_remembered_port_that_another_took_is_named_and_nothing_stays_started(tmp_path: Path) -> None:
    plan = plan_cluster(1)
    state = StackState(cluster=plan, redis_port=free_ports(1)[0])
    (tmp_path / STATE_FILE).write_text(state.model_dump_json())
    stack, port = LocalStack(tmp_path), plan.nodes[0].port
    with socket.create_server((HOST, port)), pytest.raises(PortTakenError, match=f"port {port} of broker 1 is in use"):
        stack.up()
    assert [service.pid for service in stack.status()] == [None, None]
    assert stack.redis.process is None


def test_a_damaged_state_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "stack.json").write_text('{"cluster"')
    with pytest.raises(LocalStackError, match=r"stack.json is damaged .*then remove"):
        LocalStack(tmp_path).up()


def test_redis_comes_back_on_its_port_after_a_kill(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, free_ports(1)[0])
    try:
        server.start()
        with redis.Redis.from_url(server.url) as client:
            client.set("starts", 3)
            server.kill()
            with pytest.raises(redis.ConnectionError):
                client.ping()
            server.start()
            assert client.get("starts") is None
    finally:
        server.stop()
    assert server.process is None


def test_redis_with_a_password_lets_nobody_in_without_it_and_its_command_does_not_show_it(tmp_path: Path) -> None:
    password = 'of "Zoë"/@#\\'
    server = RedisServer(tmp_path, free_ports(1)[0], password=SecretStr(password))
    try:
        server.start()
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()
        with redis.Redis(port=server.port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        assert server.process is not None
        assert password not in " ".join(psutil.Process(server.process.pid).cmdline())
    finally:
        server.stop()
