"""When the alerts on processes and on progress fire."""

from tests.ops.rule_tests import RUN, AlertCase, closed, instance, run_gauge, series, step_gauge, steps, up

_OF_RUN = {"run": RUN}
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
    AlertCase(
        alert="RollstreamTargetDown",
        fires=up("scorer", values="1x10 0x60"),
        silent=[up("scorer", values="1x57 0x1 1x60"), up("scorer")],
        labels={**_OF_RUN, "stage": "scorer", "instance": instance("scorer")},
    ),
    AlertCase(
        alert="RollstreamStageDown",
        fires={**up("trainer", values="1x10 0x60"), **up("generator", "scorer")},
        silent=[
            # The whole run was taken down.
            {**up("trainer", values="1x10 0x60"), **up("generator", values="1x10 0x60")},
            # A run that trains on the rollouts of another one has a trainer alone.
            up("trainer"),
            # A finite source is done.
            {**up("producer", values="1x10 0x60"), **up("trainer", "generator", "scorer")},
            # One of two is left.
            {**up("scorer", values="1x10 0x60"), **series("up", "scorer", "1x70", number=1), **up("trainer")},
        ],
        labels={**_OF_RUN, "stage": "trainer"},
    ),
    AlertCase(
        alert="RollstreamProcessRestarting",
        fires=series(_STARTS, "generator", "100x40 2500x5 2800x5 3100x20"),
        silent=[series(_STARTS, "generator", "100x40 2500x5 2800x20"), series(_STARTS, "generator", "100x70")],
        labels={**_OF_RUN, "stage": "generator", "instance": instance("generator")},
    ),
    AlertCase(
        alert="RollstreamNotReady",
        fires=series("rollstream_process_ready", "scorer", "1x20 0x80"),
        silent=[
            series("rollstream_process_ready", "scorer", "1x200"),
            # It loads a model, then it is ready.
            series("rollstream_process_ready", "scorer", "0x50 1x100"),
            # It is too far behind, which has an alert of its own.
            {
                **series("rollstream_process_ready", "generator", "0x100"),
                **series("rollstream_generator_policy_lag_steps", "generator", "7x100"),
            },
            {
                **series("rollstream_process_ready", "generator", "0x100"),
                **series("rollstream_generator_policy_lag_steps", "generator", "-1x100"),
            },
        ],
        labels={**_OF_RUN, "stage": "scorer", "instance": instance("scorer")},
        at="90m",
    ),
    AlertCase(
        alert="RollstreamTwoTrainers",
        fires={**up("trainer"), **series("up", "trainer", "1x70", number=1)},
        silent=[
            {**up("trainer"), **series("up", "trainer", "1x70", run="code")},
            {**up("trainer"), **series("up", "trainer", "0x70", number=1)},
        ],
        labels=_OF_RUN,
    ),
    AlertCase(
        alert="RollstreamOpenFilesHigh",
        fires={**series("process_open_fds", "trainer", "900x70"), **series("process_max_fds", "trainer", "1024x70")},
        silent=[{**series("process_open_fds", "trainer", "300x70"), **series("process_max_fds", "trainer", "1024x70")}],
        labels={**_OF_RUN, "stage": "trainer", "instance": instance("trainer")},
    ),
    AlertCase(
        alert="RollstreamThresholdMissing",
        fires={'rollstream:threshold{name="lost_groups"}': "0x70"},
        silent=[],
        labels={},
        without_thresholds=True,
    ),
    AlertCase(
        alert="RollstreamThresholdMissing",
        fires={'rollstream:threshold{name="lost_groups", release="second"}': "0x70"},
        silent=[{}],
        labels={"name": "lost_groups"},
    ),
    AlertCase(
        alert="RollstreamNoGroupCloses",
        fires={**up("trainer"), **_UPSTREAM, **closed("7x70", "trained")},
        silent=[
            {**up("trainer"), **_UPSTREAM, **closed("0+1x70", "trained")},
            # The rest of a finite source, too few groups for a step.
            {**up("trainer"), **_ALL_READY, **closed("7x70", "trained")},
        ],
        labels=_OF_RUN,
    ),
    AlertCase(
        alert="RollstreamNoSteps",
        fires={**run_gauge("last_step_timestamp_seconds", "600x400"), **closed("0+3x400", reason="tokenizer_mismatch")},
        silent=[
            # A step every 40 minutes.
            {
                **run_gauge("last_step_timestamp_seconds", "600x39 3000x39 5400x40"),
                **closed("0+3x400", reason="no_spread"),
            },
            {
                **run_gauge("last_step_timestamp_seconds", "600x400"),
                **closed("0+3x400", reason="not_for_training"),
            },
            # Nothing to do.
            {**run_gauge("last_step_timestamp_seconds", "600x400"), **closed("70x400", reason="no_spread")},
        ],
        labels=_OF_RUN,
        at="90m",
    ),
    AlertCase(
        alert="RollstreamNoSteps",
        # Not one since the run began.
        fires={
            **run_gauge("last_step_timestamp_seconds", "0x400"),
            **closed("0+3x400", reason="tokenizer_mismatch"),
            **series(_STARTS, "trainer", "600x400"),
        },
        silent=[
            {
                **run_gauge("last_step_timestamp_seconds", "0x400"),
                **closed("0+3x400", reason="no_spread"),
                **series(_STARTS, "trainer", "4200x400"),
            }
        ],
        labels=_OF_RUN,
        at="90m",
    ),
    AlertCase(
        alert="RollstreamCheckpointOverdue",
        fires={
            **steps(),
            **run_gauge("last_checkpoint_timestamp_seconds", "600x400"),
            **series(_STARTS, "trainer", "60x400"),
        },
        silent=[
            # The last one of the trainer before: this one has started half an hour ago.
            {
                **steps(),
                **run_gauge("last_checkpoint_timestamp_seconds", "600x400"),
                **series(_STARTS, "trainer", "16200x400"),
            },
            {
                **steps(),
                **run_gauge("last_checkpoint_timestamp_seconds", "16200x400"),
                **series(_STARTS, "trainer", "60x400"),
            },
            # It makes no steps, so there is nothing to save.
            {
                **steps("9x400"),
                **run_gauge("last_checkpoint_timestamp_seconds", "600x400"),
                **series(_STARTS, "trainer", "60x400"),
            },
        ],
        labels=_OF_RUN,
        at="5h",
    ),
    AlertCase(
        alert="RollstreamLagGrowing",
        fires=_lag("0+400x200"),
        silent=[
            # Much, and no more than before.
            _lag("90000x200"),
            # What piled up in an outage goes down.
            _lag("90000-400x200"),
            # Little.
            _lag("0+10x200"),
        ],
        labels={**_OF_RUN, "stage": "scorer", "topic": "math.rollouts"},
        at="2h30m",
    ),
    AlertCase(
        alert="RollstreamRolledBack",
        # While the rollback was made, no trainer ran.
        fires=_interrupted("2x40 stale _x10 3x50"),
        silent=[
            _interrupted("2x100"),
            _interrupted("2x40 stale _x10 3x50", kind="restart"),
            # Counted from the run's beginning on by the trainer that takes over too: nothing is new.
            {
                **_interrupted("2x60 stale"),
                **series("rollstream_trainer_interruptions_total", "trainer", "_x50 2x50", number=1, kind="rollback"),
            },
        ],
        labels={**_OF_RUN, "kind": "rollback"},
        at="95m",
    ),
    AlertCase(
        alert="RollstreamTrainerStarved",
        fires={**steps(), **_UPSTREAM, **_waits("8x400")},
        silent=[
            {**steps(), **_UPSTREAM, **_waits("2x400")},
            # There is nothing to do: no group waits anywhere.
            {**steps(), **_ALL_READY, **_waits("8x400")},
            # The figures of a step hours ago.
            {**steps("9x400"), **_UPSTREAM, **_waits("8x400")},
        ],
        labels=_OF_RUN,
        at="100m",
    ),
    AlertCase(
        alert="RollstreamStepsSlower",
        # Slow for three quarters of an hour, after one hour in all.
        fires={**steps(), **_phases("1x12 30x150")},
        silent=[
            {**steps(), **_phases("1x400")},
            {**steps(), **_phases("1x12 2x150")},
            # The last step before a pause was slow.
            {**steps("0+1x9 9x150"), **_phases("1x9 30x150")},
        ],
        labels=_OF_RUN,
        at="1h50m",
        interval="5m",
    ),
    AlertCase(
        alert="RollstreamGroupsLost",
        # The first one: its series begins with 1.
        fires={**up("trainer"), **closed("_x40 1x60", reason="lost")},
        silent=[
            {**up("trainer"), **closed("_x2 1x100", reason="lost")},
            {**up("trainer"), **closed("0+1x100", reason="no_spread")},
        ],
        labels=_OF_RUN,
    ),
    AlertCase(
        alert="RollstreamGroupsRefused",
        fires={**up("trainer"), **closed("_x40 2x60", reason="overflow")},
        silent=[{**up("trainer"), **closed("0+1x100", reason="too_old"), **closed("0+9x100", "trained")}],
        labels=_OF_RUN,
    ),
    AlertCase(
        alert="RollstreamPolicyLagDrops",
        fires={**closed("0+9x400", "trained"), **closed("0+1x400", reason="too_old")},
        silent=[
            {**closed("0+99x400", "trained"), **closed("0+1x400", reason="too_old")},
            {**closed("100x400", "trained"), **closed("50x400", reason="too_old")},
        ],
        labels=_OF_RUN,
        at="2h",
    ),
)
