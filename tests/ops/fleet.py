"""A run of known figures, as Prometheus would have scraped it for ten hours, and what expressions make of it.

Every stage has two processes; the second counts three times what the first does. A second run, `code`, counts a
thousand times as much and is no part of the figures. Counters grow ever faster and gauges go up and down, so that every
window of time gives another figure. The first value of a label counts once, the second twice, and so on; and each
metric has a factor of its own: an expression that asks for something else gives another figure.
"""

import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Final

from tests.observability.expressions import known_metrics, recorded_metrics
from tests.ops.rule_tests import RUN, all_rules, promtool_says, selector

EVERY_MINUTES: Final = 5
NUM_SCRAPES: Final = 121
AT: Final = "10h"
_FACTORS: Final = {(RUN, 0): 1, (RUN, 1): 3, ("code", 0): 1000}
_STAGES: Final = ("producer", "generator", "scorer", "trainer")
_OF_EACH: Final = {
    "rollstream_bus_": ("generator", "scorer", "trainer"),
    **{f"rollstream_{stage}_": (stage,) for stage in _STAGES},
    "rollstream_serve_": ("generator",),
    "rollstream_http_": ("generator",),
    "rollstream_feedback_": ("producer",),
    "vllm:": ("generator",),
    "process_": _STAGES,
    "rollstream_": _STAGES,
}
"""The stages that export metrics whose names begin so; the first that fits counts."""
_VALUES: Final = {
    "topic": ("prompts", "rollouts", "scored", "weights"),
    "group": ("generators", "scorers", "trainer"),
    "consumergroup": ("generators", "scorers"),
    "partition": ("0", "1"),
    "status": ("completed", "failed", "unresolved"),
    "code": ("timeout", "crash", "bad_prompt", "deadline"),
    "kind": ("step", "restart", "rollback", "drops"),
    "event": ("assigned", "revoked", "lost"),
    "component": ("correct", "short"),
    "model_name": ("policy",),
    "engine": ("0",),
    "le": ("1.0", "5.0", "20.0", "60.0", "+Inf"),
}
_SHARES: Final = {"1.0": 4.0, "5.0": 10.0, "20.0": 15.0, "60.0": 19.0, "+Inf": 20.0}
"""Of twenty observations, how many are at most that large in the beginning."""
_COUNTERS: Final = ("_total", "_bucket", "_sum", "_count", "_offset")
_MOMENTS: Final = {
    "process_start_time_seconds": 1000,
    "rollstream_trainer_last_checkpoint_timestamp_seconds": 20_000,
    "rollstream_generator_stale_since_timestamp_seconds": 25_000,
    "rollstream_trainer_last_step_timestamp_seconds": 30_000,
    "rollstream_bus_oldest_unfinished_timestamp_seconds": 31_000,
}
"""Seconds at which they begin; a minute later every twenty minutes."""
_ENDS: Final = {
    "rollstream_trainer_groups_total": (
        {"outcome": "trained", "reason": ""},
        *({"outcome": "dropped", "reason": reason}
          for reason in ("lost", "conflict", "non_finite", "too_old", "no_spread", "failed", "not_for_training",
                         "expired")),
    ),
    "rollstream_generator_weight_loads_total": ({"outcome": "applied"}, {"outcome": "failed"}),
    "rollstream_bus_commits_total": ({"outcome": "committed"}, {"outcome": "failed"}),
    "rollstream_bus_dead_letters_total": ({"reason": "unreadable"}, {"reason": "poison"}),
    "rollstream_serve_answers_total": ({"outcome": "recorded"}, {"outcome": "unrecorded"}),
    "rollstream_http_requests_total": (
        *({"server": "generator", "route": "/v1/chat/completions", "code": code} for code in ("200", "503")),
        {"server": "ingest", "route": "/v1/feedback", "code": "503"},
    ),
    "rollstream_tracing_dropped_spans_total": ({"reason": "full"}, {"reason": "refused"}),
}  # fmt: skip
_SAMPLE: Final = re.compile(r"(\{.*?\}) (\S+?)(?:, (?=\S*\{)|$)")


def fleet() -> dict[str, str]:
    """Every series that a stage, its libraries or Kafka's exporter have, with its values."""
    found: dict[str, str] = {}
    for metric, labels in known_metrics().items():
        if metric not in recorded_metrics() and metric != "ALERTS":
            for run, number in _FACTORS:
                found |= _series(metric, labels, run, number)
    return found


def _series(metric: str, labels: frozenset[str], run: str, number: int) -> dict[str, str]:
    stages = next((stages for start, stages in _OF_EACH.items() if metric.startswith(start)), _STAGES)
    is_scraped = "instance" in labels or metric.startswith("rollstream_")
    targets = (
        [{"run": run, "stage": stage, "instance": f"{stage}-{number}.{run}:9000"} for stage in stages]
        if is_scraped
        else [{}] if number == 0 else []
    )  # fmt: skip
    made = {}
    for target, (weight, own) in product(targets, _labeled(metric, labels, run)):
        factor = _FACTORS[run, number] * weight
        values = _bucket(metric, factor, own["le"]) if "le" in own else _values(metric, factor)
        made[selector(metric, {**target, **own})] = values
    return made


def _labeled(metric: str, labels: frozenset[str], run: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Each combination of labels, and how much it counts."""
    ends = _ENDS.get(metric, ({},))
    named = sorted((labels & _VALUES.keys()) - set().union(*ends))
    for (place, end), values in product(enumerate(ends, 1), product(*(enumerate(_VALUES[one], 1) for one in named))):
        weight = place
        own = dict(end)
        for name, (order, value) in zip(named, values, strict=True):
            weight *= 1 if name == "le" else order
            own[name] = f"{run}.{value}" if name in ("topic", "group", "consumergroup") else value
        yield weight, own


def _values(metric: str, factor: int) -> str:
    """By time `k`, in scrapes."""
    scrapes = range(NUM_SCRAPES)
    if metric == "up":
        values = [1.0] * NUM_SCRAPES
    elif (moment := _MOMENTS.get(metric)) is not None:
        values = [moment + 10.0 * factor + 60 * (k // 4) for k in scrapes]
    elif metric.endswith(_COUNTERS):
        # Shares among values of a label depend on the window as well.
        values = [float(_factor_of(metric) * factor * k * (k + 20 * (factor % 5))) for k in scrapes]
    else:
        # The most of the last 5, 15, 30 and 60 minutes and of all differs, and so do the slopes of two metrics.
        slope = 1 + _factor_of(metric) / 200
        values = [_factor_of(metric) * factor * (10 + slope * k + (2 * k * k + 21 * k) % 101) / 10 for k in scrapes]
    return " ".join(f"{value:.10g}" for value in values)


def _bucket(metric: str, factor: int, bound: str) -> str:
    """What is measured becomes smaller as time goes on, so that percentiles depend on the window too.

    It does so in each process at a pace of its own: percentiles of all are not those of the most.
    """
    share, pace = _SHARES[bound], 200 * (1 + factor % 3)
    return " ".join(f"{factor * k * k * (share + (20 - share) * k / pace):.10g}" for k in range(NUM_SCRAPES))


def _factor_of(metric: str) -> int:
    return 1 + zlib.crc32(metric.encode()) % 89


def as_asked(expr: str) -> str:
    """The expression as Grafana would send it for the run."""
    for name, value in {"$__rate_interval": "20m", "$__range": "6h", "$__interval": "5m", "$run": RUN}.items():
        expr = expr.replace(name, value)
    return re.sub(r"\$\w+", ".*", expr)


def figures(promtool: str, exprs: Sequence[str], folder: Path) -> dict[str, str]:
    """What each expression makes of the fleet, in a few words: how many series, by which labels, and their values."""
    test = {
        "interval": f"{EVERY_MINUTES}m",
        "input_series": [{"series": name, "values": values} for name, values in fleet().items()],
        # Nothing is expected, so promtool says what there is.
        "promql_expr_test": [{"expr": expr, "eval_time": AT, "exp_samples": []} for expr in dict.fromkeys(exprs)],
    }
    _, said = promtool_says(promtool, all_rules(), [test], folder, f"{EVERY_MINUTES}m")
    answers = dict(_answers(said))
    return {expr: _in_words(_of_the_run(answers.get(expr, {}))) for expr in exprs}


def _answers(said: str) -> Iterator[tuple[str, dict[str, float]]]:
    for block in said.split("    expr: ")[1:]:
        expr, _ = json.JSONDecoder().raw_decode(block)
        (got,) = re.findall(r"^ *got: ?(.*)$", block, re.MULTILINE)
        yield expr, {labels: float(value) for labels, value in _SAMPLE.findall(got)}


def _of_the_run(samples: Mapping[str, float]) -> dict[str, float]:
    return {labels: value for labels, value in samples.items() if 'run="code"' not in labels}


def _in_words(samples: Mapping[str, float]) -> str:
    if not samples:
        return "nothing"
    values = sorted(samples.values())
    labels = {name for one in samples for name in re.findall(r"(\w+)=\"", one)} - {"__name__", "job"}
    by = f" by {', '.join(sorted(labels))}" if labels else ""
    if len(values) == 1:
        return f"{values[0]:.5g}{by}"
    return f"{len(values)} series{by}: {values[0]:.5g} to {values[-1]:.5g}, together {sum(values):.5g}"
