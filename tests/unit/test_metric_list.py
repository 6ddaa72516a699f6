"""The list of all metrics: what the code exports, and the document that is made of it."""

import re
import subprocess
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from rollstream.local.metric_list import all_metrics, markdown
from rollstream.trainer.metrics import LagHistogram

ROOT = Path(__file__).parents[2]
MADE = re.compile(r'"rollstream_[a-z]+_[a-z0-9_]+"|f"rollstream_trainer_\{name\}"')
PLAIN_NUMBERS = {
    "rollstream_producer_sequence",
    "rollstream_trainer_grad_norm",
    "rollstream_trainer_learning_rate",
    "rollstream_trainer_loss",
}


def test_the_document_is_what_the_command_prints() -> None:
    text = (ROOT / "services" / "METRICS.md").read_text()
    assert text == markdown(all_metrics()), "make it again: rollstream metrics --markdown > services/METRICS.md"


def test_only_the_modules_that_are_listed_make_metrics() -> None:
    code = (
        "import json, sys; from rollstream.local.metric_list import all_metrics; all_metrics();"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    for source in ("schemas", "services", "producers", "trainer"):
        for path in (ROOT / source).rglob("*.py"):
            if MADE.search(path.read_text()) and path.name != "metric_list.py":
                module = ".".join(path.relative_to(ROOT / source).with_suffix("").parts)
                assert f'"{module}"' in done.stdout, f"{path} makes metrics, but the list does not know it"


def test_each_metric_has_a_type_a_unit_a_meaning_and_a_name_by_the_conventions() -> None:
    found = all_metrics()
    assert len({metric.name for metric in found}) == len(found) > 60
    for metric in found:
        assert metric.kind in ("counter", "gauge", "histogram"), metric
        assert metric.meaning, metric
        assert metric.unit or metric.name in PLAIN_NUMBERS, metric
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric
        # The conventions of Prometheus.
        assert not re.search("(milli|micro|nano)seconds|kilobytes|percent|minutes|hours", metric.name), metric.name
        assert ("_ratio" in metric.name or "_fraction" in metric.name) == (metric.unit == "0 to 1"), metric
        assert metric.kind != "gauge" or not metric.name.endswith(("_count", "_sum", "_bucket")), metric


def test_what_is_counted_is_not_named_by_what_it_is_given() -> None:
    units = {metric.name: metric.unit for metric in all_metrics()}
    assert units["rollstream_scorer_rewards_at_timeout_total"] == "rollouts"


def test_labels_have_few_values_so_no_metric_has_an_id_or_a_version_as_label() -> None:
    labels = {label for metric in all_metrics() for label in metric.labels}
    assert labels <= {
        "topic",
        "group",
        "reason",
        "outcome",
        "event",
        "status",
        "code",
        "kind",
        "component",
        "k",
        "pool",
        # Of a process there are two; routes are those that it declares.
        "server",
        "route",
        # Sets that the settings declare, 64 at most.
        "tools",
    }


def test_tokens_are_counted_by_lag_as_a_histogram_of_prometheus() -> None:
    registry = CollectorRegistry()
    histogram = LagHistogram("lag_steps", "Lag", registry=registry)
    for lag, tokens in ((0, 100), (5, 7), (2, 40), (40, 3)):
        histogram.add(lag, tokens)
    lines = set(generate_latest(registry).decode().splitlines())
    buckets = {"0.0": 100, "2.0": 140, "4.0": 140, "6.0": 147, "32.0": 147, "+Inf": 150}
    assert {f'lag_steps_bucket{{le="{bound}"}} {count}.0' for bound, count in buckets.items()} <= lines
    assert {"lag_steps_count 150.0", "lag_steps_sum 235.0"} <= lines
