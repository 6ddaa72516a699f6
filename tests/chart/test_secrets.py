"""Secrets come from existing secrets alone: the chart makes none, and none is in what it renders."""

from typing import Any

import helm_python
import pytest

from rollstream.process.masking import may_name_a_secret
from rollstream.process.settings.base import STAGES, Stage, settings_class
from rollstream.process.settings.keys import keys_of
from tests.chart.everything import EVERYTHING, SETS
from tests.chart.rendering import at, render, render_exactly

PLANTED = "hunter2"

SECRET_NAMES = (
    "password", "db_passwd", "client_secret", "token", "hf_token", "auth-token", "authorization", "bearer", "api_key",
    "apiKey", "x-api-key", "apikey", "access_key_id", "private_key", "signing_key", "google_credentials", "auth",
)  # fmt: skip
PLAIN_NAMES = ("max_tokens", "tokenizer_path", "token_seconds", "author", "answer_key", "keys", "level", "secre")

# Where somebody may put each kind of secret: SASL, TLS, S3, Redis, registry.
PLACES = [
    at("kafka.security.password", PLANTED),
    at("kafka.security.tls.client.key", PLANTED),
    at("kafka.bootstrapServers", {"password": PLANTED}),
    at("objectStore.secretAccessKey", PLANTED),
    at("objectStore.options.secret_access_key", PLANTED),
    at("objectStore.options.account_key", PLANTED),
    at("objectStore.options.sas_token", PLANTED),
    at("objectStore.endpoint", f"https://key:{PLANTED}@s3"),
    at("weightStore", {"backend": "objectStore", "location": f"s3://key:{PLANTED}@bucket/w"}),
    at("trainer.checkpoints.location", f"s3://bucket/w?secret={PLANTED}"),
    at("redis.url", f"redis://:{PLANTED}@cache"),
    at("redis.url", f"redis://cache?password={PLANTED}"),
    at("redis.password", PLANTED),
    at("schemaRegistry.url", f"https://key:{PLANTED}@registry"),
    at("config.kafka.security", {"sasl.password": PLANTED}),
    at("config.storage.options", {"secret_access_key": PLANTED}),
    at("config.redis_url", f"redis://:{PLANTED}@cache"),
    at("config.scorer.registry_url", f"https://key:{PLANTED}@registry"),
    at("config.environments.mine", {"path": "a.B", "options": {"api_key": PLANTED}}),
    at("config.scorer.environments.mine", {"path": "a.B", "options": {"password": PLANTED}}),
    at("config.generator.engine.http.api_key", PLANTED),
    at("config.producer.agent.options", {"api_key": PLANTED}),
    *(at("config.agents.mine", {"path": "a.B", "options": {name: PLANTED}}) for name in SECRET_NAMES),
    at("kafka.bootstrapServers", f"user:{PLANTED}@broker:9092"),
    at("kafka.security.tls.client.keyPassword", PLANTED),
    at("kafka.security.tls.client.keyKey", {"pem": f"-----BEGIN PRIVATE KEY-----\n{PLANTED}\n"}),
    at("kafka.security.tls.ca.pem", f"-----BEGIN CERTIFICATE-----\n{PLANTED}\n"),
    # Where no address belongs, or any text may stand.
    *(
        at(path, f"https://key:{PLANTED}@host/x")
        for path in (
            "model.path",
            "image.repository",
            "serviceAccount.name",
            "config.producer.path",
            "objectStore.region",
        )
    ),
    at("stageDefaults.podAnnotations", {"note": f"amqp://key:{PLANTED}@host"}),
    at("stageDefaults.extraEnv", [{"name": "HTTPS_PROXY", "value": f"http://key:{PLANTED}@proxy"}]),
    at("config.tracing.headers", {"authorization": PLANTED}),
    at("config.trainer.tracing.headers", {"authorization": PLANTED}),
    at("config.tracing.endpoint", f"https://key:{PLANTED}@collector"),
    *(
        at(f"{part}.extraEnv", [{"name": name, "value": PLANTED}])
        for part, name in (
            ("stageDefaults", "ROLLSTREAM_KAFKA__SECURITY"),
            ("trainer", "AWS_SECRET_ACCESS_KEY"),
            ("generator", "HF_TOKEN"),
            ("producer", "ROLLSTREAM_REDIS_URL"),
            ("bootstrapJob", "ROLLSTREAM_REGISTRY_URL"),
            ("scorer", "ROLLSTREAM_ENVIRONMENTS__MINE__OPTIONS__API_KEY"),
            ("trainer", "ROLLSTREAM_TRACING__HEADERS__AUTHORIZATION"),
            ("stageDefaults", "OTEL_EXPORTER_OTLP_HEADERS"),
        )
    ),
]


def test_the_chart_and_the_settings_tell_a_secret_by_the_same_names() -> None:
    assert [name for name in SECRET_NAMES if not may_name_a_secret(name)] == []
    assert [name for name in PLAIN_NAMES if may_name_a_secret(name)] == []
    render(at("config.agents.mine", {"path": "a.B", "options": dict.fromkeys(PLAIN_NAMES, "x")}))


@pytest.mark.parametrize("stage", STAGES)
def test_no_plain_setting_has_the_name_of_a_secret(stage: Stage) -> None:
    plain = [key for key in keys_of(settings_class(stage)) if not key.is_secret]
    assert [key.path for key in plain if may_name_a_secret(key.path[-1])] == []


@pytest.mark.parametrize("values", PLACES, ids=str)
def test_a_secret_among_the_values_is_refused_without_being_shown(values: dict[str, Any]) -> None:
    with pytest.raises(helm_python.HelmError) as refused:
        render(values)
    assert PLANTED not in str(refused.value)


def test_the_same_variables_may_come_from_a_secret_and_others_may_have_a_value() -> None:
    source = {"secretKeyRef": {"name": "hub", "key": "token"}}
    variables = [{"name": "HF_TOKEN", "valueFrom": source}, {"name": "TOKENIZERS_PARALLELISM", "value": "false"}]
    container = render(at("generator.extraEnv", variables)).workload("generator")["spec"]["template"]["spec"][
        "containers"
    ][0]
    assert container["env"][-2:] == variables


def test_an_address_may_name_a_variable_that_comes_from_a_secret() -> None:
    proxy = {"name": "HTTPS_PROXY", "value": "http://key:$(PROXY_PASSWORD)@proxy"}
    assert proxy["value"] in "".join(render(at("stageDefaults.extraEnv", [proxy])).texts)


@pytest.mark.parametrize("name", SETS)
def test_the_chart_makes_no_secret(name: str) -> None:
    assert render_exactly(SETS[name]).of_kind("Secret") == []


def test_no_command_line_holds_a_variable_and_only_who_uses_the_object_store_gets_its_keys() -> None:
    for where, pod in render(EVERYTHING).pods():
        uses = any(stage in where for stage in ("generator", "trainer"))
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            assert "$(" not in " ".join(container.get("args", [])), where
            names = [one["name"] for one in container.get("env", [])]
            has = any(name.startswith("ROLLSTREAM_STORAGE__OPTIONS") for name in names)
            assert has == (uses and bool(names)), where
