"""For each key of a run's file another value than its default, made from the schema that Helm knows."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rollstream.process.settings.base import STAGES
from tests.chart.rendering import CHART

# What the chart sets by values of its own: `test_settings.py` names each.
_OF_THE_CHART: Final = {
    "run", "kafka", "registry_url", "redis_url", "weight_store", "health_port", "storage.options",
    "storage.allow_http", "storage.cache", "storage.cache_bytes", "generator.generator_id", "scorer.scorer_id",
    "generator.engine.tensor_parallel_size", "generator.engine.nodes",
    *(f"generator.serve.{name}" for name in ("enabled", "host", "port", "keys", "spool", "spool_bytes")),
    *(f"ingest.{name}" for name in ("host", "port", "keys")),
    "trainer.checkpoints",
}  # fmt: skip
# A trainer that ends is refused by the chart, and so are headers and keys, which are
# secret. Corrections are not for `old = "behavior"`, a scale and credit by turns not for `advantages = "constant"`, a
# curriculum not for `purpose = "serve"`, which other values are.
_LEFT_OUT: Final = {
    "generator.serve.subject_secret",
    "trainer.num_steps", "trainer.credit", "trainer.learning.correction", "trainer.learning.importance_cap",
    "trainer.learning.importance_floor", "trainer.learning.scale_advantages", "tracing.headers",
    "generator.engine.http.api_key", "producer.curriculum",
}  # fmt: skip
# Values that must fit to others.
_FITTING: Final[dict[str, Any]] = {
    "health_host": "127.0.0.1",
    "environments": {"mine": {"path": "my.module.Environment", "options": {"level": "3"}}},
    "agents": {"mine": {"path": "my.module.Agent", "options": {"tools": "a=b # c"}}},
    "tracing.endpoint": "http://collector:4318",
    "generator.engine.http.urls": ["http://server-0:8000", "http://server-1:8000/v1"],
    "producer.share": 7,
    "producer.wait_until_closed": False,
    "producer.source": "parquet",
    "producer.feedback.weights": {"stars": 2.5},
    "producer.feedback.component_weights": {"exact_match": 0.25},
    "producer.feedback.required": ["stars", "exact_match"],
    "producer.environment": "word_count",
    "scorer.reward_at_timeout": {"word_count": 0.5},
    "trainer.source_run": "other-run",
    "trainer.buffer_groups": 99,
    "trainer.keep_versions": 77,
    "trainer.learning.loss": "grpo",
    "trainer.learning.turn_weights": {"reasoning/3": 2.5},
    "trainer.learning.dtype": "bfloat16",
    "trainer.learning.kl_estimator": "k1",
    "producer.agent.options": {"a": "b"},
    "producer.sampling.stop": ["\n\n", 'a "quoted" \\ end', "ünïcödé"],
}
# Tables under names of the user's, each of whose keys is looked at.
_NAMED: Final[dict[str, Any]] = {
    "tools": {"mine": {"kind": "python", "path": "my.module.Tools", "replayable": ["read"], "max_sessions": 9}},
    "generator.engines": {"scribe": {"kind": "openai_http", "http": {"urls": ["http://scribe:8000"], "model": "a"}}},
}
_SCHEMA: Final = json.loads((CHART / "values.schema.json").read_text())


def other_config() -> dict[str, Any]:
    """A value for `config` in which every key that it may set differs from its default."""
    return _table(_SCHEMA["properties"]["config"], "")


def leaves(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its path; what users name themselves is one value."""
    for name, value in table.items():
        path = f"{above}{name}"
        if isinstance(value, dict) and path not in _FITTING:
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


def _table(schema: Mapping[str, Any], above: str) -> dict[str, Any]:
    known = _OF_THE_CHART | _LEFT_OUT
    # A stage's table may repeat what stands at the top.
    shared = _SCHEMA["properties"]["config"]["properties"].keys() if above.rstrip(".") in STAGES else set()
    paths = {name: f"{above}{name}" for name in schema["properties"] if name not in shared}
    return {name: _other(schema["properties"][name], path) for name, path in paths.items() if path not in known}


def _other(schema: Mapping[str, Any], path: str) -> Any:
    if path in _FITTING or path in _NAMED:
        return {**_FITTING, **_NAMED}[path]
    if "$ref" in schema:
        return _other(_SCHEMA["definitions"][schema["$ref"].rsplit("/", 1)[1]], path)
    if "anyOf" in schema:
        return _other(schema["anyOf"][0], path)
    if "properties" in schema:
        return _table(schema, f"{path}.")
    if "enum" in schema:
        return schema["enum"][-1]
    least = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    text = f"other {path.rpartition('.')[2]}"
    kinds = {"boolean": True, "integer": least + 5, "number": least + 0.125, "string": text}
    return kinds[schema["type"]]
