"""No alert begins on a run in which nothing is wrong: busy, idle, just started, or restarted."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.ops.rule_tests import (
    all_rules,
    closed,
    one_test,
    run_gauge,
    run_promtool,
    samples,
    series,
    step_gauge,
    steps,
    up,
)

_ALL = ("producer", "generator", "scorer", "trainer")
_PHASES = ("assembling", "packing", "forward_backward", "optimizer", "publishing")
_FIGURES = {"reward_mean": 0.4, "truncated_ratio": 0.05, "entropy": 0.4, "grad_norm": 0.7, "mismatch_kl_lag_0": 0.001,
            "waiting_seconds": 20, "step_seconds": 60}  # fmt: skip


def _processes() -> dict[str, str]:
    """Every stage answers, was started once, and has files open; a second generator too."""
    found = {**up(*_ALL), **series("up", "generator", "1x400", number=1)}
    for stage in _ALL:
        found |= series("process_start_time_seconds", stage, "60x400")
        found |= series("process_open_fds", stage, "120x400")
        found |= series("process_max_fds", stage, "1048576x400")
        found |= series("rollstream_process_ready", stage, "0x5 1x400")
    return found


def _last_step(values: str = "x400") -> dict[str, str]:
    """Figures of a step that stay the same."""
    gauges = {**_FIGURES, **dict.fromkeys((f"{phase}_seconds" for phase in _PHASES), 8)}
    return {
        key: value for name, figure in gauges.items() for key, value in step_gauge(name, f"{figure}{values}").items()
    }


def _progress(step: str, checkpoint: str, restarts: str = "1x400") -> dict[str, str]:
    """When the newest step and checkpoint were, and how often the run was interrupted."""
    return {
        **run_gauge("last_step_timestamp_seconds", step),
        **run_gauge("last_checkpoint_timestamp_seconds", checkpoint),
        **series("rollstream_trainer_interruptions_total", "trainer", restarts, kind="restart"),
        **series("rollstream_trainer_interruptions_total", "trainer", "0x400", kind="rollback"),
    }


def _lag(values: str) -> dict[str, str]:
    """What waits for each stage."""
    found: dict[str, str] = {}
    for stage, topic in (("generator", "prompts"), ("scorer", "rollouts"), ("trainer", "scored")):
        found |= series(
            "rollstream_bus_consumer_lag_records", stage, values, group=f"math.{stage}s", topic=f"math.{topic}"
        )
    return found


def _groups(open_groups: str, ready: str) -> dict[str, str]:
    return {
        **series("rollstream_trainer_open_groups", "trainer", open_groups),
        **series("rollstream_trainer_ready_groups", "trainer", ready),
    }


def _generators(tokens: str, in_flight: str, lag: str = "1x400") -> dict[str, str]:
    found: dict[str, str] = {}
    for number in (0, 1):
        found |= series("rollstream_generator_completion_tokens_total", "generator", tokens, number=number)
        found |= series(
            "rollstream_bus_in_flight_records", "generator", in_flight, number=number, group="math.generators"
        )
        found |= series("rollstream_generator_policy_lag_steps", "generator", lag, number=number)
        found |= series("rollstream_generator_max_policy_lag_steps", "generator", "4x400", number=number)
        found |= series("rollstream_generator_stale_since_timestamp_seconds", "generator", "0x400", number=number)
    return found


def _counters(change: str) -> dict[str, str]:
    """Counters that each stage exports; `change`: what comes after their first value."""
    return {
        **closed(f"100{change}", "trained"),
        **closed(f"40{change}", reason="no_spread"),
        **closed("1x400", reason="too_old"),
        **closed("2x400", reason="lost"),  # long ago
        **samples(f"900{change}"),
        **samples(f"900{change}", number=1),
        **samples("3x400", "unresolved"),
        **series("rollstream_generator_weight_loads_total", "generator", f"50{change}", outcome="applied"),
        **series("rollstream_scorer_rollouts_total", "scorer", f"1800{change}", topic="rollouts", status="completed"),
        **series("rollstream_scorer_batch_seconds_bucket", "scorer", f"30{change}", le="0.1"),
        **series("rollstream_scorer_batch_seconds_bucket", "scorer", f"30{change}", le="+Inf"),
        **series("rollstream_producer_strangers_prompts_total", "producer", "0x400"),
    }


_RUNS = {
    "busy": {
        **_processes(), **steps(), **_last_step(), **_groups("40x400", "5x400"), **_counters("+10x400"),
        **_generators("9000+900x400", "18x400"), **_progress("0+60x400", "0+60x400"), **_lag("20000x400"),
    },
    # Producers have nothing to submit. The figures of the last step stay, and so does a rest that fills no step.
    "idle": {
        **_processes(), **steps("70x400"), **_last_step(), **_groups("3x400", "3x400"), **_counters("x400"),
        **_generators("9000x400", "0x400"), **_progress("600x400", "600x400"), **_lag("0x400"),
    },
    # Producers used up their credit at once; generators load their model for 40 minutes.
    "just started": {
        **_processes(), **series("rollstream_trainer_ledger_entries_total", "trainer", "1x400", kind="restart"),
        **dict.fromkeys(_last_step(), "0x400"), **_groups("40x400", "0x400"), **_progress("0x400", "0x400"),
        **series("rollstream_process_ready", "generator", "0x400"), **_lag("200x400"),
    },
    # The trainer's process was replaced an hour ago, and its gauges were 0 for 20 minutes.
    "restarted": {
        **_processes(), **steps("0+1x100 _x20 1+1x300"), **_groups("40x400", "5x400"), **_counters("+10x400"),
        **_generators("9000+900x400", "18x400"),
        **{name: f"{value} 0x20 {value}" for name, value in _last_step("x100").items()},
        **series("process_start_time_seconds", "trainer", "60x100 6100x300"),
        **_progress("0+60x100 6000x20 7200+60x280", "0x50 3000x80 7800+60x270", "1x100 _x2 2x300"), **_lag("20000x400"),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ["busy", "idle", "restarted"])
def test_no_alert_begins_on_a_healthy_run(name: str, promtool: str, tmp_path: Path) -> None:
    given: Mapping[str, str] = _RUNS[name]
    run_promtool(promtool, all_rules(), [one_test(given, "ALERTS", "170m", [])], tmp_path, "5m")


def test_no_alert_fires_while_a_large_model_is_loaded(promtool: str, tmp_path: Path) -> None:
    firing = 'ALERTS{alertstate="firing"}'
    run_promtool(promtool, all_rules(), [one_test(_RUNS["just started"], firing, "40m", [])], tmp_path, "5m")
