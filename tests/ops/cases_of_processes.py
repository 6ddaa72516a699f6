"""When the alerts on processes fire."""

from tests.ops.rule_tests import case, instance, series, up

_STARTS = "process_start_time_seconds"
_GENERATORS_GO_ON = up("generator", "scorer")


def _taking_turns(metric: str, *alive: str, dead: str) -> dict[str, str]:
    """Two trainers, of which each lives for five minutes and then takes five to come back."""
    first = " ".join(f"{value}x4 {dead}" for value in alive)
    return {**series(metric, "trainer", first), **series(metric, "trainer", f"{dead} {first}", number=1)}


CASES = (
    case(
        "RollstreamTargetDown",
        up("scorer", values="1x10 0x60"),
        up("scorer", values="1x57 0x1 1x60"),
        up("scorer"),
        stage="scorer",
        instance=instance("scorer"),
    ),
    case(
        "RollstreamRunDown",
        up("trainer", "generator", "producer", values="1x10 0x60"),
        # All were started anew.
        up("trainer", "generator", values="1x10 0x4 1x60"),
        # One goes on.
        {**up("trainer", "generator", values="1x10 0x60"), **up("producer")},
        # It never was a run.
        up("trainer", values="0x70"),
    ),
    case(
        "RollstreamRunDown",
        # Prometheus finds none of the targets any more, for a day and longer.
        up("trainer", "generator", values="1x10 stale"),
        {**up("generator", values="1x10 stale"), **series("up", "generator", "_x11 1x400", number=1)},
        at="30h",
        interval="5m",
    ),
    case(
        "RollstreamStageDown",
        {**up("trainer", values="1x10 0x60"), **_GENERATORS_GO_ON},
        # The whole run was taken down, which has an alert of its own.
        {**up("trainer", values="1x10 0x60"), **up("generator", values="1x10 0x60")},
        # A run that trains on the rollouts of another one has a trainer alone.
        up("trainer"),
        # A finite source is done.
        {**up("producer", values="1x10 0x60"), **up("trainer", "generator", "scorer")},
        # One of two is left.
        {**up("scorer", values="1x10 0x60"), **series("up", "scorer", "1x70", number=1), **up("trainer")},
        stage="trainer",
    ),
    case(
        "RollstreamStageDown",
        # Its target is gone, and nobody does anything about it for a day and longer.
        {**up("trainer", values="1x10 stale"), **_GENERATORS_GO_ON},
        {**up("trainer", values="1x10 stale _x300 1x80"), **_GENERATORS_GO_ON},
        stage="trainer",
        at="30h",
        interval="5m",
    ),
    case(
        "RollstreamStageDown",
        # The run was down for half a day, and came back without its trainer.
        {**up("trainer", values="1x10 stale"), **up("generator", values="1x10 stale _x150 1x400")},
        up("trainer", "generator", values="1x10 stale _x150 1x400"),
        stage="trainer",
        at="20h",
        interval="5m",
    ),
    case(
        "RollstreamProcessRestarting",
        series(_STARTS, "generator", "100x40 2500x5 2800x5 3100x20"),
        series(_STARTS, "generator", "100x40 2500x5 2800x20"),
        series(_STARTS, "generator", "100x70"),
        stage="generator",
        instance=instance("generator"),
    ),
    case(
        "RollstreamNotReady",
        series("rollstream_process_ready", "scorer", "1x20 0x80"),
        series("rollstream_process_ready", "scorer", "1x200"),
        # It loads a model, then it is ready.
        series("rollstream_process_ready", "scorer", "0x50 1x100"),
        # It is too far behind, which has an alert of its own.
        {
            **series("rollstream_process_ready", "generator", "0x100"),
            **series("rollstream_generator_policy_lag_steps", "generator", "3x100"),
            **series("rollstream_generator_max_policy_lag_steps", "generator", "2x100"),
        },
        {
            **series("rollstream_process_ready", "generator", "0x100"),
            **series("rollstream_generator_policy_lag_steps", "generator", "-1x100"),
        },
        stage="scorer",
        instance=instance("scorer"),
        at="90m",
    ),
    case(
        "RollstreamNotReady",
        # It never is, and is killed and started again after ten minutes, ten minutes later.
        series("rollstream_process_ready", "scorer", "0x10 stale _x8 " * 10),
        # Each time it becomes ready before it dies.
        series("rollstream_process_ready", "scorer", "0x1 1x9 stale _x8 " * 10),
        # It is gone.
        series("rollstream_process_ready", "scorer", "0x40 stale"),
        stage="scorer",
        instance=instance("scorer"),
        at="90m",
    ),
    case(
        "RollstreamTwoTrainers",
        {**up("trainer"), **series("up", "trainer", "1x70", number=1)},
        {**up("trainer"), **series("up", "trainer", "1x70", run="code")},
        {**up("trainer"), **series("up", "trainer", "0x70", number=1)},
    ),
    case(
        "RollstreamTwoTrainers",
        # They take turns: never do both answer.
        _taking_turns("up", "1", "1", "1", "1", "1", "1", "1", dead="0x4"),
        # It moved to another machine.
        {**up("trainer", values="1x20 0x50"), **series("up", "trainer", "0x20 1x50", number=1)},
        # One that dies again and again has another alert.
        up("trainer", values="1x4 0x4 1x4 0x4 1x4 0x4 1x4 0x4 1x40"),
    ),
    case(
        "RollstreamTwoTrainers",
        # The same, where the target of a dead process goes away.
        _taking_turns(_STARTS, "60", "600", "1200", "1800", "2400", "3000", "3600", dead="stale _x3"),
        {**series(_STARTS, "trainer", "60x20"), **series(_STARTS, "trainer", "_x22 1300x50", number=1)},
        series(_STARTS, "trainer", "60x20 1300x20 2500x30"),
    ),
    case(
        "RollstreamOpenFilesHigh",
        {**series("process_open_fds", "trainer", "900x70"), **series("process_max_fds", "trainer", "1024x70")},
        {**series("process_open_fds", "trainer", "300x70"), **series("process_max_fds", "trainer", "1024x70")},
        stage="trainer",
        instance=instance("trainer"),
    ),
    case(
        "RollstreamThresholdMissing",
        {'rollstream:threshold{name="lost_groups"}': "0x70"},
        run="",
        without_thresholds=True,
    ),
    case(
        "RollstreamThresholdMissing",
        {'rollstream:threshold{name="lost_groups", release="second"}': "0x70"},
        {},
        run="",
        name="lost_groups",
    ),
)
