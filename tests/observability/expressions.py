"""What an expression asks Prometheus for: metrics, with the labels that it expects of them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import promql_parser
import yaml

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "helm" / "rollstream" / "files" / "rules"
_ROW: Final = re.compile(r"^\| `(rollstream_\w+)` \| (\w+) \| ([\w, ]*) \|", re.MULTILINE)
_OF_TARGETS: Final = frozenset({"run", "stage", "instance", "pod"})
"""What relabeling gives to each process that is scraped."""
_FOREIGN: Final = {
    "up": _OF_TARGETS,  # Prometheus itself, for each target
    "ALERTS": frozenset({"alertname", "alertstate", "severity", "run"}),  # Prometheus itself, for each alert
    # The Python client, for each process on Linux.
    **dict.fromkeys(
        (
            "process_start_time_seconds",
            "process_resident_memory_bytes",
            "process_open_fds",
            "process_max_fds",
            "process_cpu_seconds_total",
        ),
        _OF_TARGETS,
    ),
    # vLLM, where `vllm_metrics` is on.
    **{
        f"vllm:{name}": _OF_TARGETS | {"model_name", "engine"}
        for name in (
            "kv_cache_usage_perc",
            "num_requests_running",
            "num_requests_waiting",
            "num_preemptions_total",
            "prefix_cache_queries_total",
            "prefix_cache_hits_total",
        )
    },
    **{
        f"vllm:{name}_seconds_bucket": _OF_TARGETS | {"model_name", "engine", "le"}
        for name in ("time_to_first_token", "inter_token_latency", "request_queue_time")
    },
    # Kafka's exporter (danielqsj/kafka_exporter), where there is one.
    "kafka_brokers": frozenset(),
    "kafka_topic_partitions": frozenset({"topic"}),
    "kafka_topic_partition_current_offset": frozenset({"topic", "partition"}),
    "kafka_topic_partition_oldest_offset": frozenset({"topic", "partition"}),
    "kafka_topic_partition_in_sync_replica": frozenset({"topic", "partition"}),
    "kafka_topic_partition_under_replicated_partition": frozenset({"topic", "partition"}),
    "kafka_consumergroup_lag": frozenset({"consumergroup", "topic", "partition"}),
    "kafka_consumergroup_current_offset": frozenset({"consumergroup", "topic", "partition"}),
    "kafka_consumergroup_members": frozenset({"consumergroup"}),
}
"""Metrics of others, with the labels that may be asked for."""
_VALUES: Final = {"$__rate_interval": "5m", "$__range": "6h", "$__interval": "1m"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A metric that an expression names, and the labels by which it chooses."""

    metric: str
    labels: frozenset[str]


def substituted(expr: str) -> str:
    """The expression as Grafana would send it, for a run called `demo`."""
    for name, value in _VALUES.items():
        expr = expr.replace(name, value)
    return re.sub(r"\$\w+", "demo", expr)


def nodes(expr: str) -> list[Any]:
    """Every part of an expression; raises ValueError if it is none."""
    found: list[Any] = []
    promql_parser.walk(promql_parser.parse(substituted(expr)), found.append)
    return found


def asked(expr: str) -> Iterator[Asked]:
    """The metrics of an expression."""
    for node in nodes(expr):
        selector = getattr(node, "vector_selector", node)
        if isinstance(selector, promql_parser.VectorSelector) and selector.name:
            yield Asked(metric=selector.name, labels=frozenset(one.name for one in selector.matchers.matchers))


def grouped_by(expr: str) -> set[str]:
    """The labels by which an expression aggregates."""
    modifiers = [node.modifier for node in nodes(expr) if isinstance(node, promql_parser.AggregateExpr)]
    return {label for modifier in modifiers if modifier is not None for label in modifier.labels}


def own_metrics() -> dict[str, frozenset[str]]:
    """Each series that a stage exports, by `services/METRICS.md`, with its labels."""
    found: dict[str, frozenset[str]] = {}
    for name, kind, labels in _ROW.findall((ROOT / "services" / "METRICS.md").read_text()):
        own = frozenset(filter(None, labels.split(", "))) | _OF_TARGETS
        if kind == "histogram":
            found |= {f"{name}_bucket": own | {"le"}, f"{name}_sum": own, f"{name}_count": own}
        else:
            found[name] = own
    return found


def rules(*files: str) -> list[dict[str, Any]]:
    """The rules of these files, in their order."""
    groups = [group for name in files for group in yaml.safe_load((RULES / f"{name}.yaml").read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def recorded_metrics() -> dict[str, frozenset[str]]:
    """What recording rules make, with the labels that they leave."""
    found = {"rollstream:threshold": frozenset({"name"})}
    for rule in rules("recording"):
        found[rule["record"]] = frozenset(grouped_by(rule["expr"]))
    return found


def known_metrics() -> dict[str, frozenset[str]]:
    """All that panels and alerts may ask for."""
    return {**own_metrics(), **recorded_metrics(), **_FOREIGN}
