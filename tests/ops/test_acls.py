"""Against a broker with TLS, passwords and an authorizer: each stage's principal can do its work, and nothing else."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import confluent_kafka
import pytest
from click.testing import CliRunner
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from pydantic import SecretStr

from rollstream.bus.acl_rules import ROLES
from rollstream.bus.clients import cluster_topics
from rollstream.cli.main import cli
from rollstream.local.tiny_model import write_tiny_model
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import BrokerError, ConfigurationError
from rollstream.schemas.record import utc_now
from rollstream.schemas.topics import FEEDBACK, LEDGER, SCORED, SERVE_SCORED, STREAM_TOPICS, TOPICS
from tests.harness.builders import a_feedback, a_served_prompt, a_served_rollout
from tests.harness.loops import STAGES, a_loop
from tests.harness.running import Run, a_run
from tests.harness.secure_kafka import ADMIN, SecureKafka, a_secure_cluster, password_of
from tests.harness.waits import wait_until

_DENIED = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    with a_secure_cluster(tmp_path_factory.mktemp("secure-kafka")) as broker:
        broker.add_users(*(f"rollstream-{role}" for role in ROLES))
        yield broker


@pytest.fixture
def run(secure: SecureKafka, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A run on that broker, whose commands are an administrator's."""
    for name, value in secure.variable(ADMIN).items():
        monkeypatch.setenv(name, value)
    with a_run(secure.settings(ADMIN), topic_prefix, tmp_path) as fresh:
        fresh.command("topics", "create", "--streams")
        fresh.command("acls", "apply")
        yield fresh


def test_the_whole_loop_runs_with_each_stage_under_its_own_principal(
    run: Run, secure: SecureKafka, tmp_path: Path
) -> None:
    write_tiny_model(tmp_path / "model", seed=0, hidden=32, layers=1, heads=2, ffn=64)
    with a_loop(run, tmp_path / "model", token_seconds=0.01) as loop:
        for stage in STAGES:
            loop.keep_alive(stage, partial(run.start, stage, **secure.variable(f"rollstream-{stage}")))
        loop.until(lambda: max((entry.step for entry in run.records(LEDGER)), default=0) >= 5, "five optimizer steps")
        for stage in STAGES:
            assert loop.stages[stage].restarts == 0
            loop.stop(stage)
    said = "".join(process.said() for process in run.running)
    assert "authorization" not in said.lower()
    assert not [user for user in (ADMIN, *(f"rollstream-{stage}" for stage in STAGES)) if password_of(user) in said]


def test_the_producer_of_feedback_works_under_its_own_principal(run: Run, secure: SecureKafka, tmp_path: Path) -> None:
    prompt = a_served_prompt(run=run.name)
    answer = a_served_rollout(prompt=prompt, finished_at=utc_now())
    run.publish("serve-scored", [(prompt.group_id, AvroCodec(SERVE_SCORED).encode(answer))])
    run.publish("feedback", [("k", b"garbage"), ("chatcmpl-5f0c", AvroCodec(FEEDBACK).encode(a_feedback(-1.0)))])
    feedback = {"store": tmp_path / "store.sqlite", "settle_seconds": 0.1}
    run.tables["producer"] = {"source": "feedback", "feedback": feedback}
    producer = run.start("producer", **secure.variable("rollstream-feedback"))
    wait_until(lambda: run.records(SCORED), producer.said)
    assert [one.scoring.reward for one in run.records(SCORED)] == [-1.0]
    assert len(run.messages("dead-letters")) == 1
    assert producer.terminate() == 0
    assert "authorization" not in producer.said().lower()


def test_who_may_not_look_at_acls_is_told_so(run: Run, secure: SecureKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in secure.variable("rollstream-trainer").items():
        monkeypatch.setenv(name, value)
    found = CliRunner().invoke(cli, ["acls", "check", "--config", str(run.config)])
    assert isinstance(found.exception, ConfigurationError)
    assert "may not look at the cluster's ACLs" in str(found.exception)


def test_what_is_applied_is_what_is_checked(run: Run) -> None:
    assert "permissions, as they should be" in run.command("acls", "check")
    assert "every permission is there already" in run.command("acls", "apply")
    arguments = ["acls", "check", "--config", str(run.config), "--principal", "trainer=User:rollstream-trainer"]
    found = CliRunner().invoke(cli, arguments)
    assert found.exit_code == 1
    assert f"too many: User:rollstream-generator READ topic literal {run.name}.prompts" in found.output
    other = CliRunner().invoke(cli, [*arguments[:-1], "trainer=User:somebody-else"])
    assert f"missing: User:somebody-else WRITE topic literal {run.name}.ledger" in other.output


def test_a_broker_without_an_authorizer_is_told_apart(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    with a_run(kafka, topic_prefix, tmp_path) as open_to_all:
        found = CliRunner().invoke(cli, ["acls", "check", "--config", str(open_to_all.config)])
    assert isinstance(found.exception, ConfigurationError)
    assert "the cluster has no authorizer" in str(found.exception)


def test_a_wrong_password_is_said_without_it(secure: SecureKafka) -> None:
    right = secure.settings("rollstream-generator")
    security = {**right.security, "sasl.password": SecretStr("mistyped-4711")}
    with pytest.raises(BrokerError, match="no broker answered") as refused:
        cluster_topics(right.model_copy(update={"security": security}))
    assert "mistyped-4711" not in str(refused.value)
    assert "uthentication" in str(refused.value)


def test_who_shows_no_certificate_is_turned_away(secure: SecureKafka) -> None:
    right = secure.settings("rollstream-generator")
    security = {name: value for name, value in right.security.items() if not name.startswith(("ssl.cert", "ssl.key"))}
    with pytest.raises(BrokerError, match="no broker answered"):
        cluster_topics(right.model_copy(update={"security": security}))


@pytest.mark.parametrize("role", [role for role in ROLES if role != "operator"])
def test_what_is_not_a_roles_work_is_denied_by_the_broker(run: Run, secure: SecureKafka, role: str) -> None:
    user = secure.settings(f"rollstream-{role}").client_config()
    attempts = _forbidden(run.name, role, user)
    assert len(attempts) >= 8
    codes = {what: _code(attempt) for what, attempt in attempts.items()}
    assert {what: code for what, code in codes.items() if code not in _DENIED} == {}


WRITES = {
    "producer": {"prompts", "producers", "serve-prompts", "dead-letters"},
    "feedback": {"scored", "producers", "dead-letters"},
    "states": {"prompts", "producers"},
    "ingest": {"ingest-prompts", "serve-prompts", "feedback"},
    "generator": {
        "rollouts",
        "eval-rollouts",
        "serve-rollouts",
        "progress",
        "eval-progress",
        "weights-applied",
        "dead-letters",
    },
    "scorer": {"scored", "eval-scored", "serve-scored", "dead-letters"},
    "trainer": {"weights", "ledger", "dead-letters"},
    "client": {"serve-prompts", "eval-prompts"},
    "rc-actor": {topic.name for topic in STREAM_TOPICS},
    "viewer": set(),
}
READS = {
    "producer": {"prompts", "serve-prompts", "producers", "ledger", "ingest-prompts"},
    "feedback": {"feedback", "serve-scored", "producers", "ledger"},
    "states": {"prompts", "serve-scored", "producers", "ledger"},
    "ingest": set(),
    "generator": {"prompts", "eval-prompts", "serve-prompts", "progress", "eval-progress", "weights"},
    "scorer": {"rollouts", "eval-rollouts", "serve-rollouts"},
    "trainer": {"prompts", "scored", "weights", "ledger", "producers"},
    "client": {"serve-scored", "eval-scored", "weights", "weights-applied", "ledger"},
    "rc-actor": {topic.name for topic in STREAM_TOPICS},
    "viewer": {topic.name for topic in TOPICS},
}
GROUPS = {"generator": {"generators"}, "scorer": {"scorers"}, "trainer": {"trainer", "trainer-presence"}}


def _forbidden(run: str, role: str, user: dict[str, object]) -> dict[str, Callable[[], None]]:
    """What the role must not do: each as a function that raises the broker's refusal."""
    topics = {topic.name for topic in (*TOPICS, *STREAM_TOPICS)}
    attempts: dict[str, Callable[[], None]] = {}
    for name in sorted(topics - WRITES[role]):
        attempts[f"write {name}"] = partial(_produce, user, f"{run}.{name}")
    for name in sorted(topics - READS[role]):
        attempts[f"read {name}"] = partial(_fetch, user, f"{run}.{name}")
    for name in sorted({"generators", "scorers", "trainer"} - GROUPS.get(role, set())):
        attempts[f"commit for {name}"] = partial(_commit, user, f"{run}.{name}", f"{run}.prompts")
    if role != "trainer":
        attempts["fence the trainer"] = partial(_init_transactions, user, f"{run}.trainer")
    attempts["write another run's prompts"] = partial(_produce, user, "other-run.prompts")
    attempts["make a topic"] = partial(_create_topic, user, f"{run}.more")
    attempts["delete a topic"] = partial(_delete_topic, user, f"{run}.ledger")
    attempts["change a topic"] = partial(_alter, user, f"{run}.ledger")
    attempts["delete records"] = partial(_delete_records, user, f"{run}.{min(READS[role] | WRITES[role])}")
    attempts["allow itself more"] = partial(_create_acl, user, f"{run}.ledger")
    return attempts


def _code(attempt: Callable[[], None]) -> int:
    try:
        attempt()
    except KafkaException as error:
        return int(error.args[0].code())
    return 0


def _produce(user: dict[str, object], topic: str) -> None:
    failures: list[KafkaError] = []
    producer = confluent_kafka.Producer({**user, "message.timeout.ms": 15000, "log_level": 0})
    producer.produce(topic, b"forged", on_delivery=lambda error, _: error and failures.append(error))
    producer.flush(20)
    if failures:
        raise KafkaException(failures[0])


def _fetch(user: dict[str, object], topic: str) -> None:
    consumer = confluent_kafka.Consumer({**user, "group.id": "any", "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = wait_until(lambda: consumer.poll(0.5), "an answer of the broker")
        if message.error():
            raise KafkaException(message.error())
    finally:
        consumer.close()


def _commit(user: dict[str, object], group: str, topic: str) -> None:
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 5)])
    with AdminClient({**user, "log_level": 0}) as admin:
        for partition in admin.alter_consumer_group_offsets([asked])[group].result(20).topic_partitions:
            if partition.error is not None:
                raise KafkaException(partition.error)


def _init_transactions(user: dict[str, object], transactional_id: str) -> None:
    confluent_kafka.Producer({**user, "transactional.id": transactional_id, "log_level": 0}).init_transactions(20)


def _create_topic(user: dict[str, object], topic: str) -> None:
    with AdminClient({**user, "log_level": 0}) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)


def _delete_topic(user: dict[str, object], topic: str) -> None:
    with AdminClient({**user, "log_level": 0}) as admin:
        admin.delete_topics([topic])[topic].result(20)


def _alter(user: dict[str, object], topic: str) -> None:
    entry = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    with AdminClient({**user, "log_level": 0}) as admin:
        admin.incremental_alter_configs([resource])[resource].result(20)


def _delete_records(user: dict[str, object], topic: str) -> None:
    partition = TopicPartition(topic, 0, 0)
    with AdminClient({**user, "log_level": 0}) as admin:
        admin.delete_records([partition])[partition].result(20)


def _create_acl(user: dict[str, object], topic: str) -> None:
    more = AclBinding(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user['sasl.username']}", "*", AclOperation.ALL,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    with AdminClient({**user, "log_level": 0}) as admin:
        admin.create_acls([more])[more].result(20)
