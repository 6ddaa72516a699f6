"""The list of all metrics of all stages, taken from the code that exports them."""

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import REGISTRY

_EXPORTED_BY: Final = {
    "producer": "rollstream.producers.metrics",
    "feedback": "rollstream.producers.feedback.metrics",
    "states": "rollstream.producers.states.metrics",
    "ingest": "rollstream.ingest.metrics",
    "generator": "rollstream.generator.metrics",
    "scorer": "rollstream.scorer.metrics",
    "trainer": "rollstream.trainer.metrics",
    "collect": "rollstream.offline.continuous.metrics",
    "evaluate": "rollstream.client.metrics",
    "bus": "rollstream.bus.metrics",
    "http": "rollstream.http.metrics",
    "tools": "rollstream.tools.metrics",
    "serve": "rollstream.generator.serve.metrics",
    "process": "rollstream.process.health",
    "tracing": "rollstream.process.tracing.spans",
}
"""The second word of a metric's name → the module that makes it. Generators export what begins with `bus` in full; the
other stages export the parts that they use."""
_NAME: Final = re.compile("rollstream_([a-z]+)_[a-z0-9_]+")
_UNITS: Final = {
    "timestamp_seconds": "seconds since 1970",
    "rewards_at_timeout": "rollouts",
    **dict.fromkeys(("feedback_read", "feedback_matched", "feedback_unmatched", "feedback_ignored"), "records"),
    "feedback_published": "groups",
    "ingest_refused": "requests",
    **dict.fromkeys(("ingest_accepted", "ingest_repeated"), "records"),
    "store_rebuilt": "stores",
    "per_second": "tokens per second",
    "ratio": "0 to 1",
    "fraction": "0 to 1",
    **{
        unit: unit
        for unit in (
            "seconds",
            "bytes",
            "records",
            "steps",
            "groups",
            "rollouts",
            "prompts",
            "samples",
            "parts",
            "tasks",
            "answers",
            "calls",
            "connections",
            "sessions",
        )
    },
    "tokens": "tokens",
    "entropy": "nats",
    "mismatch_kl": "nats",
    "trainer_kl": "nats",
    "policy_lag": "steps",
    "reward": "rewards of the environment",
    "version": "number of a version",
    "importance_weight": "ratio of probabilities",
    "in_flight_weight": "samples or tokens in generators, else records",
    "step": "steps",
    "ready": "0 or 1",
}
"""Part of a name → unit; the first that fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric as Prometheus knows it."""

    stage: str
    """Which stage exports it; `bus`: each one that takes records from topics or puts them there; `process`,
    `tracing`: each."""
    name: str
    kind: str
    """counter, gauge or histogram."""
    labels: tuple[str, ...]
    unit: str
    """Empty: a plain number."""
    meaning: str


def all_metrics() -> list[Metric]:
    """Every metric of every stage, in the order of the stages and then of the names."""
    for module in _EXPORTED_BY.values():
        importlib.import_module(module)
    # The library has no public way to the labels of a metric that has no values yet.
    collectors = {id(one): one for name, one in REGISTRY._names_to_collectors.items() if _NAME.fullmatch(name)}
    order = list(_EXPORTED_BY)
    return sorted(map(_metric, collectors.values()), key=lambda metric: (order.index(metric.stage), metric.name))


def markdown(metrics: Sequence[Metric]) -> str:
    """The list as the text of `services/METRICS.md`."""
    lines = [
        "# Metrics",
        "",
        "Each stage serves these at `/metrics`. `bus`: each stage exports the part that it uses. `process` and",
        "`tracing`: each stage exports all of it. `collect`, `evaluate`: these commands with `--health-port`. `http`:",
        "generators that serve clients, and ingest. `serve`: these generators. `feedback`: the producer with",
        '`source = "feedback"`; `states`: that with `source = "states"`.',
        "",
        "This file is made by `rollstream metrics --markdown`. With `vllm_metrics = true` in `[generator.engine]`,",
        "generators export vLLM's own metrics too, `vllm:…`: time to the first token and between tokens, queue, KV",
        "cache and more.",
    ]
    for stage in _EXPORTED_BY:
        lines += ["", f"## {stage}", "", "| metric | type | labels | unit | meaning |", "|---|---|---|---|---|"]
        lines += [
            f"| `{one.name}` | {one.kind} | {', '.join(one.labels)} | {one.unit} | {one.meaning} |"
            for one in metrics
            if one.stage == stage
        ]
    return "\n".join(lines) + "\n"


def unit_of(name: str, kind: str) -> str:
    """The unit that a metric's name tells; empty: a plain number."""
    named = next((unit for part, unit in _UNITS.items() if f"_{part}" in name), "")
    return named or (name.removesuffix("_total").rsplit("_", 1)[-1] if kind == "counter" else "")


def _metric(collector: Any) -> Metric:
    (family,) = collector.collect()
    name = f"{family.name}_total" if family.type == "counter" else family.name
    found = _NAME.fullmatch(name)
    assert found is not None, name
    return Metric(
        stage=found[1],
        name=name,
        kind=family.type,
        labels=tuple(getattr(collector, "_labelnames", ())),
        unit=unit_of(name, family.type),
        meaning=family.documentation,
    )
