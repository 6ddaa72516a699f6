"""When the alerts on progress fire."""

from tests.ops.rule_tests import case, closed, run_gauge, series, step_gauge, steps, up

_STARTS = "process_start_time_seconds"
_UPSTREAM = {**series("rollstream_trainer_open_groups", "trainer", "40x400"),
             **series("rollstream_trainer_ready_groups", "trainer", "3x400")}  # fmt: skip
_ALL_READY = {**series("rollstream_trainer_open_groups", "trainer", "3x400"),
              **series("rollstream_trainer_ready_groups", "trainer", "3x400")}  # fmt: skip


def _phases(publishing: str) -> dict[str, str]:
    others = ("assembling", "packing", "forward_backward", "optimizer")
    return {
        **{name: value for phase in others for name, value in step_gauge(f"{phase}_seconds", "1x400").items()},
        **step_gauge("publishing_seconds", publishing),
    }


def _restarting(open_groups: str, ready_groups: str, num_closed: str) -> dict[str, str]:
    """What each of a row of trainers exports, with three minutes between one and the next."""
    return {
        **run_gauge("open_groups", f"{open_groups} stale _x1 " * 4),
        **run_gauge("ready_groups", f"{ready_groups} stale _x1 " * 4),
        **closed(f"{num_closed} stale _x1 " * 4, "trained"),
    }


def _saving(*, checkpoint: str, step: str, start: str) -> dict[str, str]:
    """A trainer that makes steps; when the newest checkpoint and step were committed, and when its process started."""
    return {
        **steps(),
        **run_gauge("last_checkpoint_timestamp_seconds", checkpoint),
        **run_gauge("last_step_timestamp_seconds", step),
        **series(_STARTS, "trainer", start),
    }


def _lag(values: str, topic: str = "math.rollouts") -> dict[str, str]:
    """What waits for two scorers, the same for each."""
    of_one = series("rollstream_bus_consumer_lag_records", "scorer", values, group="math.scorers", topic=topic)
    return {
        **of_one,
        **series("rollstream_bus_consumer_lag_records", "scorer", values, number=1, group="math.scorers", topic=topic),
    }


def _interrupted(values: str, kind: str = "rollback") -> dict[str, str]:
    return series("rollstream_trainer_interruptions_total", "trainer", values, kind=kind)


def _waits(seconds: str) -> dict[str, str]:
    return {**step_gauge("waiting_seconds", seconds), **step_gauge("step_seconds", "10x400")}


CASES = (
    case(
        "RollstreamNoGroupCloses",
        {**up("trainer"), **_UPSTREAM, **closed("7x70", "trained")},
        {**up("trainer"), **_UPSTREAM, **closed("0+1x70", "trained")},
        # The first ones close between two scrapes, and begin a series.
        {**up("trainer"), **_UPSTREAM, **closed("_x50 7x20", "trained")},
        # The rest of a finite source, too few groups for a step.
        {**up("trainer"), **_ALL_READY, **closed("7x70", "trained")},
    ),
    case(
        "RollstreamNoGroupCloses",
        # Trainers that die every half hour; each knows of no group until it has read the ledger.
        {**up("trainer", values="1x28 0x2 " * 4), **_restarting("0x3 40x24", "0x3 3x24", "0x28")},
        # They close some before they die.
        {**up("trainer", values="1x28 0x2 " * 4), **_restarting("0x3 40x24", "0x3 3x24", "0x25 5x2")},
        # What they wait for is ready.
        {**up("trainer", values="1x28 0x2 " * 4), **_restarting("0x3 3x24", "0x3 3x24", "0x28")},
        at="100m",
    ),
    case(
        "RollstreamNoSteps",
        {**run_gauge("last_step_timestamp_seconds", "600x400"), **closed("0+3x400", reason="tokenizer_mismatch")},
        # A step every 40 minutes.
        {**run_gauge("last_step_timestamp_seconds", "600x39 3000x39 5400x40"), **closed("0+3x400", reason="no_spread")},
        {**run_gauge("last_step_timestamp_seconds", "600x400"), **closed("0+3x400", reason="not_for_training")},
        # Nothing to do.
        {**run_gauge("last_step_timestamp_seconds", "600x400"), **closed("70x400", reason="no_spread")},
        at="90m",
    ),
    case(
        "RollstreamNoSteps",
        # Not one since the run began.
        {
            **run_gauge("last_step_timestamp_seconds", "0x400"),
            **closed("0+3x400", reason="tokenizer_mismatch"),
            **series(_STARTS, "trainer", "600x400"),
        },
        {
            **run_gauge("last_step_timestamp_seconds", "0x400"),
            **closed("0+3x400", reason="no_spread"),
            **series(_STARTS, "trainer", "4200x400"),
        },
        at="90m",
    ),
    case(
        "RollstreamNoSteps",
        # Not one since the run began, by trainers of which each lives for half an hour. All drops came at once.
        {
            **up("trainer"),
            **run_gauge("last_step_timestamp_seconds", "0x400"),
            **closed("_x70 90x400", reason="tokenizer_mismatch"),
            **series(_STARTS, "trainer", "600x30 stale _x2 2400x30 stale _x2 4200x30"),
        },
        {
            **up("trainer"),
            **run_gauge("last_step_timestamp_seconds", "0x400"),
            **closed("_x70 30x400", reason="tokenizer_mismatch"),
            **series(_STARTS, "trainer", "600x30 stale _x2 2400x30 stale _x2 4200x30"),
        },
        at="90m",
    ),
    case(
        "RollstreamCheckpointOverdue",
        _saving(checkpoint="600x400", step="600+60x400", start="60x400"),
        # The trainer before saved all, and this one started half an hour ago.
        _saving(checkpoint="600x400", step="600x270 16200+60x130", start="16200x400"),
        # What the trainer before did not save is lost: nobody has it to save.
        _saving(
            checkpoint="600x100 stale _x168 600x130",
            step="600+60x100 stale _x168 16200+60x130",
            start="60x100 stale _x168 16200x130",
        ),
        _saving(checkpoint="16200x400", step="600+60x400", start="60x400"),
        # It saved the newest step, and had nothing to do until ten minutes ago.
        _saving(checkpoint="600x400", step="600x280 17400+60x120", start="60x400"),
        # It makes no steps, so there is nothing to save.
        {**_saving(checkpoint="600x400", step="1200x400", start="60x400"), **steps("9x400")},
        at="5h",
    ),
    case(
        "RollstreamCheckpointOverdue",
        # Trainers that die every two hours, before they save anything; the first has not even found an old checkpoint.
        _saving(
            checkpoint="0x400",
            step="0x2 180+60x118 0x2 7500+60x118 0x2 14800+60x200",
            start="60x120 stale _x2 7300x120 stale _x2 14600x200",
        ),
        # They save something before they die.
        _saving(
            checkpoint="0x60 3600x60 0x2 10800x118 0x2 16000x200",
            step="0x2 180+60x118 0x2 7500+60x118 0x2 14800+60x200",
            start="60x120 stale _x2 7300x120 stale _x2 14600x200",
        ),
        at="5h",
    ),
    case(
        "RollstreamLagGrowing",
        _lag("0+400x200"),
        # Much, and no more than before.
        _lag("90000x200"),
        # What piled up in an outage goes down.
        _lag("90000-400x200"),
        # Little.
        _lag("0+10x200"),
        stage="scorer",
        topic="math.rollouts",
        at="2h30m",
    ),
    case(
        "RollstreamRolledBack",
        # While the rollback was made, no trainer ran.
        _interrupted("2x40 stale _x10 3x50"),
        _interrupted("2x100"),
        _interrupted("2x40 stale _x10 3x50", kind="restart"),
        # Counted from the run's beginning on by the trainer that takes over too: nothing is new.
        {
            **_interrupted("2x60 stale"),
            **series("rollstream_trainer_interruptions_total", "trainer", "_x50 2x50", number=1, kind="rollback"),
        },
        kind="rollback",
        at="95m",
    ),
    case(
        "RollstreamTrainerStarved",
        {**steps(), **_UPSTREAM, **_waits("8x400")},
        {**steps(), **_UPSTREAM, **_waits("2x400")},
        # There is nothing to do: no group waits anywhere.
        {**steps(), **_ALL_READY, **_waits("8x400")},
        # The figures of a step hours ago.
        {**steps("9x400"), **_UPSTREAM, **_waits("8x400")},
        at="100m",
    ),
    case(
        "RollstreamStepsSlower",
        # Slow for three quarters of an hour, after one hour in all.
        {**steps(), **_phases("1x12 30x150")},
        {**steps(), **_phases("1x400")},
        {**steps(), **_phases("1x12 2x150")},
        # The last step before a pause was slow.
        {**steps("0+1x9 9x150"), **_phases("1x9 30x150")},
        at="1h50m",
        interval="5m",
    ),
    case(
        "RollstreamGroupsLost",
        # The first one: its series begins with 1.
        {**up("trainer"), **closed("_x40 1x60", reason="lost")},
        {**up("trainer"), **closed("_x2 1x100", reason="lost")},
        {**up("trainer"), **closed("0+1x100", reason="no_spread")},
    ),
    case(
        "RollstreamGroupsRefused",
        {**up("trainer"), **closed("_x40 2x60", reason="overflow")},
        {**up("trainer"), **closed("0+1x100", reason="too_old"), **closed("0+9x100", "trained")},
    ),
    case(
        "RollstreamPolicyLagDrops",
        {**closed("0+9x400", "trained"), **closed("0+1x400", reason="too_old")},
        {**closed("0+99x400", "trained"), **closed("0+1x400", reason="too_old")},
        {**closed("100x400", "trained"), **closed("50x400", reason="too_old")},
        at="2h",
    ),
    case(
        "RollstreamPolicyLagDrops",
        # The first ones, all between two scrapes.
        {**up("trainer"), **closed("0+9x400", "trained"), **closed("_x80 90x400", reason="too_old")},
        {**up("trainer"), **closed("0+9x400", "trained"), **closed("_x80 9x400", reason="too_old")},
        at="2h",
    ),
)
