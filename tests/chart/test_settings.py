"""Every value that configures a stage lands in the setting that it names, read by the stage's own settings class."""

from pathlib import Path
from typing import Any

import pytest

from rollstream.process.settings.base import STAGES as TABLES
from rollstream.process.settings.base import Stage
from tests.chart.everything import EVERYTHING
from tests.chart.other_values import leaves, other_config
from tests.chart.rendering import EXAMPLES, STAGES, at, container_of, example, render, render_exactly
from tests.chart.stage_settings import IN_GROUP, POD_NAME, found_at, plain, secret_of, settings_of

SASL = {"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-256", "existingSecret": "user"}
BUCKET = {"backend": "objectStore", "location": "s3://bucket/weights"}
GROUPS = at("generator", {"gpu": {"count": 8}, "leaderWorkerSet": {"enabled": True, "size": 3, "port": 29600}})
KEYS = {"existingSecret": "keys", "secretOptions": {"access_key_id": "id", "account_key": "key"}}

VALUES: list[tuple[dict[str, Any], str, str, Any]] = [
    (at("run", "other"), "all", "run", "other"),
    (at("config.producer.curriculum", {"unseen_weight": 3}), "producer", "curriculum.unseen_weight", 3),
    (at("healthPort", 9200), "all", "health_port", 9200),
    (at("kafka.bootstrapServers", "a:1,b:2"), "all", "kafka.bootstrap_servers", "a:1,b:2"),
    (at("kafka.groupProtocol", "classic"), "all", "kafka.group_protocol", "classic"),
    (at("kafka.lingerSeconds", 0.5), "all", "kafka.linger_seconds", 0.5),
    (at("kafka.security.protocol", "SSL"), "all", 'kafka.security."security.protocol"', "SSL"),
    (at("kafka.security", SASL), "all", 'kafka.security."sasl.mechanism"', "SCRAM-SHA-256"),
    (at("kafka.security", SASL), "all", 'kafka.security."sasl.username"', secret_of("user", "username")),
    (at("kafka.security", SASL), "all", 'kafka.security."sasl.password"', secret_of("user", "password")),
    (at("kafka.security", SASL | {"username": "rl"}), "all", 'kafka.security."sasl.username"', "rl"),
    (at("kafka.security", SASL | {"usernameKey": "u"}), "all", 'kafka.security."sasl.username"',
     secret_of("user", "u")),
    (at("kafka.security", SASL | {"passwordKey": "p"}), "all", 'kafka.security."sasl.password"',
     secret_of("user", "p")),
    (
        at("kafka.security", {"protocol": "SSL", "tls": {"client": {"existingSecret": "c", "passwordKey": "p"}}}),
        "all", 'kafka.security."ssl.key.password"', secret_of("c", "p"),
    ),
    (
        at("kafka.security", {"protocol": "SSL", "tls": {"verifyHostname": False}}),
        "all", 'kafka.security."ssl.endpoint.identification.algorithm"', "none",
    ),
    (at("schemaRegistry.url", "http://registry:8081"), "all", "registry_url", "http://registry:8081"),
    (at("redis.url", "redis://cache:6379/1"), "all", "redis_url", "redis://cache:6379/1"),
    (at("model.path", "/models/other"), "generator", "engine.model_path", "/models/other"),
    (at("model.path", "/models/other"), "trainer", "model_path", "/models/other"),
    ({}, "generator", "engine.tensor_parallel_size", 1),
    (at("generator.gpu.count", 1), "generator", "engine.tensor_parallel_size", 1),
    (at("generator.gpu.count", 4), "generator", "engine.tensor_parallel_size", 4),
    (GROUPS, "generator", "engine.tensor_parallel_size", 24),
    (GROUPS, "generator", "engine.nodes", {"count": 3, "rank": 0, "leader": IN_GROUP["LWS_LEADER_ADDRESS"],
                                           "port": 29600}),
    ({}, "all", "weight_store", "/weights"),
    (at("weightStore", BUCKET), "all", "weight_store", "s3://bucket/weights"),
    (at("objectStore.endpoint", "https://s3:9000"), "all", "storage.options.endpoint", "https://s3:9000"),
    (at("objectStore.region", "us-east-1"), "all", "storage.options.region", "us-east-1"),
    (at("objectStore.allowHttp", True), "all", "storage.allow_http", True),
    (at("objectStore.options.virtual_hosted_style_request", "false"), "all",
     "storage.options.virtual_hosted_style_request", "false"),
    (at("objectStore.cache.gib", 3), "all", "storage.cache_bytes", 3 * 2**30),
    ({}, "all", "storage.cache", "/storage-cache"),
    ({"weightStore": BUCKET, "objectStore": KEYS}, "trainer", "storage.options.access_key_id", secret_of("keys", "id")),
    ({"weightStore": BUCKET, "objectStore": KEYS}, "generator", "storage.options.account_key",
     secret_of("keys", "key")),
    ({}, "trainer", "checkpoints", "/checkpoints"),
    (at("trainer.checkpoints.location", "gs://b/c"), "trainer", "checkpoints", "gs://b/c"),
    ({}, "generator", "generator_id", POD_NAME),
    ({}, "scorer", "scorer_id", POD_NAME),
    (
        at("trainer.extraEnv", [{"name": "ROLLSTREAM_LEARNING__SEED", "value": "{{ len .Values.run }}"}]),
        "trainer", "learning.seed", 4,
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "stages", "path", "expected"), VALUES,
    ids=[f"{path}-{number}" for number, (*_, path, _) in enumerate(VALUES)],
)  # fmt: skip
def test_a_value_of_the_chart_lands_in_its_setting(
    values: dict[str, Any], stages: str, path: str, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stage in STAGES if stages == "all" else [stage for stage in STAGES if stage == stages]:
        assert found_at(settings_of(render(values), stage, tmp_path, monkeypatch), path) == expected


@pytest.mark.parametrize(
    ("values", "path", "url"),
    [
        (at("redis.existingSecret", "redis"), "redis_url", "rediss://:hunter2@cache:6380/0"),
        (at("schemaRegistry", {"existingSecret": "registry"}), "registry_url", "https://key:hunter2@registry"),
    ],
)
def test_an_address_with_a_password_comes_from_its_secret(
    values: dict[str, Any], path: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {"redis/url": url, "registry/url": url}
    for stage in STAGES:
        assert found_at(settings_of(render(values), stage, tmp_path, monkeypatch, secrets), path) == url


def test_the_other_pods_of_a_group_read_the_same_settings_but_for_their_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = render(GROUPS)
    leader, worker = (
        plain(settings_of(release, "generator", tmp_path, monkeypatch, member=member).model_dump())
        for member in ("leader", "worker")
    )
    assert (leader["engine"]["nodes"].pop("rank"), worker["engine"]["nodes"].pop("rank")) == (0, 1)
    assert leader == worker


@pytest.mark.parametrize("stage", STAGES)
def test_every_key_of_config_lands_in_the_setting_of_the_same_name(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = other_config()
    found = plain(settings_of(render({"config": config}), stage, tmp_path, monkeypatch).model_dump())
    usual = plain(settings_of(render(), stage, tmp_path, monkeypatch).model_dump())
    own = {name: value for name, value in config.items() if name not in TABLES} | config[stage]
    paths = dict(leaves(own))
    assert len(paths) >= 12
    for path, value in paths.items():
        landed, before = found, usual
        for name in path.split("."):
            landed, before = landed[name], (before or {}).get(name)
        assert landed == value, path
        assert before != value, f"{path}: {value} is the default, which would land anyway"


def test_a_stage_may_set_a_shared_key_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = render(at("config.scorer.model", "judge"))
    found = {stage: settings_of(release, stage, tmp_path, monkeypatch).model for stage in STAGES}
    assert found == {"producer": "policy", "generator": "policy", "scorer": "judge", "trainer": "policy"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_accepted_by_the_stages(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = render_exactly(example(name))
    for stage in release.stages():
        secrets = {"redis-url/url": "redis://cache", "confluent-schema-registry/url": "https://k:s@registry"}
        settings = settings_of(release, stage, tmp_path, monkeypatch, secrets)
        assert settings.run == example(name)["run"]


def test_certificates_are_mounted_where_the_settings_look_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = render(EVERYTHING)
    for stage in STAGES:
        secrets = {"redis-url/url": "redis://cache"}
        security = found_at(settings_of(release, stage, tmp_path, monkeypatch, secrets), "kafka.security")
        pod = release.workload(stage)["spec"]["template"]
        mounts = {one["mountPath"]: one["name"] for one in container_of(pod, stage)["volumeMounts"]}
        volumes = {one["name"]: one.get("secret") for one in pod["spec"]["volumes"]}
        for setting, secret, key in (
            ("ssl.ca.location", "kafka-ca", "ca.crt"),
            ("ssl.certificate.location", "kafka-client", "tls.crt"),
            ("ssl.key.location", "kafka-client", "tls.key"),
        ):
            path = Path(security[setting])
            volume = volumes[mounts[str(path.parent)]]
            assert volume["secretName"] == secret
            assert {"key": key, "path": path.name} in volume["items"]


def test_the_cache_of_the_object_store_has_a_volume_larger_than_its_bound() -> None:
    store = {"weightStore": BUCKET, "objectStore": {"cache": {"gib": 10}}}
    for stage in ("generator", "trainer"):
        volumes = render(store).workload(stage)["spec"]["template"]["spec"]["volumes"]
        assert {"name": "storage-cache", "emptyDir": {"sizeLimit": "12Gi"}} in volumes


def test_pods_start_again_when_what_their_stage_reads_changes() -> None:
    def checksums(*values: dict[str, Any]) -> dict[str, str]:
        release = render(*values)
        return {
            stage: release.workload(stage)["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            for stage in STAGES
        }

    before = checksums()
    shared = checksums(at("config.groups_per_step", 9))
    assert {stage for stage in STAGES if shared[stage] != before[stage]} == set(STAGES)
    kafka = checksums(at("kafka.lingerSeconds", 0.01))
    assert {stage for stage in STAGES if kafka[stage] != before[stage]} == set(STAGES)
    for stage, path, value in (
        ("producer", "seed", 1), ("generator", "max_tries", 3), ("scorer", "batch_size", 7),
        ("trainer", "keep_versions", 9),
    ):  # fmt: skip
        own = checksums(at(f"config.{stage}.{path}", value))
        assert {one for one in STAGES if own[one] != before[one]} == {stage}
    assert checksums(at("generator.replicas", 2)) == before


def test_a_finite_producer_is_a_job_whose_name_changes_with_its_pod() -> None:
    names = set()
    for seed in (1, 2):
        release = render(at("config.producer", {"epochs": 1, "seed": seed}))
        job = release.workload("producer")
        assert job["kind"] == "Job"
        assert job["spec"]["template"]["spec"]["restartPolicy"] == "OnFailure"
        names.add(job["metadata"]["name"])
    assert len(names) == 2
    endless = render().workload("producer")
    assert endless["kind"] == "Deployment"
    assert (endless["spec"]["replicas"], endless["spec"]["strategy"]) == (1, {"type": "Recreate"})
