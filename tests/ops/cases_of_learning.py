"""When the alerts on learning, generators, scoring and the bus fire."""

from tests.ops.rule_tests import RUN, AlertCase, closed, instance, samples, series, step_gauge, steps, up

_OF_RUN = {"run": RUN}
_OF_GENERATOR = {**_OF_RUN, "stage": "generator", "instance": instance("generator")}
_LAG = "rollstream_generator_policy_lag_steps"
_STALE = "rollstream_generator_stale_since_timestamp_seconds"
_LOADS = "rollstream_generator_weight_loads_total"
_TOKENS = "rollstream_generator_completion_tokens_total"
_SCORED = series("rollstream_scorer_rollouts_total", "scorer", "0+100x100", topic="rollouts", status="completed")


def _fleet(tokens: str, in_flight: str) -> dict[str, str]:
    """A busy generator, and one with these figures."""
    return {
        **samples("0+50x100", number=1),
        **series(_TOKENS, "generator", "0+9000x100", number=1),
        **series("rollstream_bus_in_flight_records", "generator", "30x100", number=1, group="math.generators"),
        **series(_TOKENS, "generator", tokens),
        **series("rollstream_bus_in_flight_records", "generator", in_flight, group="math.generators"),
    }


def _behind(steps_behind: str, bound: str = "2x100") -> dict[str, str]:
    return {
        **series(_LAG, "generator", steps_behind),
        **series("rollstream_generator_max_policy_lag_steps", "generator", bound),
    }


def _batches(in_10: str, in_5: str) -> dict[str, str]:
    bucket = "rollstream_scorer_batch_seconds_bucket"
    return {
        **series(bucket, "scorer", in_5, le="5.0"),
        **series(bucket, "scorer", in_10, le="10.0"),
        **series(bucket, "scorer", in_10, le="+Inf"),
        **series(bucket, "scorer", "0x100" if in_5 == "0x100" else "0+9x100", le="2.5"),
    }


CASES = (
    AlertCase(
        alert="RollstreamNonFiniteSteps",
        fires={**up("trainer"), **closed("_x40 8x60", reason="non_finite")},
        silent=[{**up("trainer"), **closed("0+1x100", reason="no_spread")}],
        labels=_OF_RUN,
    ),
    AlertCase(
        alert="RollstreamNoSpread",
        fires={**closed("0+1x400", "trained"), **closed("0+19x400", reason="no_spread")},
        silent=[{**closed("0+5x400", "trained"), **closed("0+5x400", reason="no_spread")}],
        labels=_OF_RUN,
        at="3h",
    ),
    AlertCase(
        alert="RollstreamRewardDropped",
        fires={**steps(), **step_gauge("reward_mean", "0.7x72 0.3x100")},
        silent=[
            {**steps(), **step_gauge("reward_mean", "0.7x72 0.6x100")},
            # After a restart the gauge is 0 until the first step.
            {**steps("0+1x72 _x20 1+1x80"), **step_gauge("reward_mean", "0.7x72 0x20 0.7x80")},
            {**steps("72x400"), **step_gauge("reward_mean", "0.7x72 0.3x100")},
        ],
        labels=_OF_RUN,
        at="8h",
        interval="5m",
    ),
    AlertCase(
        alert="RollstreamTruncationHigh",
        # After a restart the gauge is 0 until the first step, which is no good sign.
        fires={**steps("0+1x60 _x40 1+1x300"), **step_gauge("truncated_ratio", "0.5x60 0x40 0.5x300")},
        silent=[
            {**steps(), **step_gauge("truncated_ratio", "0.1x400")},
            # The figures of a step hours ago; so in the next cases.
            {**steps("9x400"), **step_gauge("truncated_ratio", "0.5x400")},
        ],
        labels=_OF_RUN,
        at="2h",
    ),
    AlertCase(
        alert="RollstreamEntropyCollapsed",
        fires={**steps(), **step_gauge("entropy", "0.3x10 0.001x390")},
        silent=[
            {**steps(), **step_gauge("entropy", "0.2x400")},
            {**steps("9x400"), **step_gauge("entropy", "0.001x400")},
            # A trainer that has made no step yet.
            {**up("trainer"), **step_gauge("entropy", "0x400")},
        ],
        labels=_OF_RUN,
        at="80m",
    ),
    AlertCase(
        alert="RollstreamMismatchKlHigh",
        fires={**steps(), **up("generator"), **step_gauge("mismatch_kl_lag_0", "0.1x400")},
        silent=[
            {**steps(), **up("generator"), **step_gauge("mismatch_kl_lag_0", "0.002x400")},
            {**steps("9x400"), **up("generator"), **step_gauge("mismatch_kl_lag_0", "0.1x400")},
            # It trains on the rollouts of another run, whose policy is another one.
            {**steps(), **step_gauge("mismatch_kl_lag_0", "0.1x400")},
        ],
        labels=_OF_RUN,
        at="2h",
    ),
    AlertCase(
        alert="RollstreamGradNormHigh",
        fires={**steps(), **step_gauge("grad_norm", "0.5x60 50x100")},
        silent=[
            {**steps(), **step_gauge("grad_norm", "0.5x60 2x100")},
            {**steps("60x400"), **step_gauge("grad_norm", "0.5x60 50x100")},
        ],
        labels=_OF_RUN,
        at="5h45m",
        interval="5m",
    ),
    AlertCase(
        alert="RollstreamGeneratorBehind",
        fires=_behind("0x10 3x90"),
        silent=[
            _behind("2x100"),
            _behind("0x40 7x5 0x60"),
            # That run allows more.
            _behind("3x100", bound="4x100"),
        ],
        labels=_OF_GENERATOR,
    ),
    AlertCase(
        alert="RollstreamGeneratorBehind",
        fires=_behind("-1x100"),
        silent=[_behind("0x100")],
        labels=_OF_GENERATOR,
    ),
    AlertCase(
        alert="RollstreamWeightsStale",
        fires=series(_STALE, "generator", "0x20 1200x80"),
        # promtool's clock begins at 0; 0 means that nothing newer is there.
        silent=[series(_STALE, "generator", "0x100"), series(_STALE, "generator", "60+60x100")],
        labels=_OF_GENERATOR,
    ),
    AlertCase(
        alert="RollstreamWeightLoadsFail",
        fires=series(_LOADS, "generator", "0x30 1+1x70", outcome="failed"),
        silent=[
            series(_LOADS, "generator", "0+1x100", outcome="applied"),
            series(_LOADS, "generator", "0x50 1x50", outcome="failed"),
        ],
        labels={**_OF_RUN, "instance": instance("generator")},
    ),
    AlertCase(
        alert="RollstreamGeneratorIdle",
        fires=_fleet(tokens="0x100", in_flight="0x100"),
        silent=[
            # Its samples take longer than the window.
            _fleet(tokens="0x100", in_flight="2x100"),
            # Its prompts end between two scrapes.
            _fleet(tokens="0+10x100", in_flight="0x100"),
            # Nobody has anything to do.
            {
                **series(_TOKENS, "generator", "5x100"),
                **samples("5x100"),
                **series("rollstream_bus_in_flight_records", "generator", "0x100", group="math.generators"),
            },
        ],
        labels={**_OF_RUN, "instance": instance("generator")},
    ),
    AlertCase(
        alert="RollstreamSamplesUnresolved",
        fires={**samples("0+9x100"), **samples("0+1x100", "unresolved")},
        silent=[
            {**samples("0+99x100"), **samples("0+1x100", "unresolved"), **samples("0+50x100", "failed")},
            {**samples("9x100"), **samples("9x100", "unresolved")},
        ],
        labels={**_OF_RUN, "status": "unresolved"},
    ),
    AlertCase(
        alert="RollstreamSamplesFailed",
        fires={**samples("0+9x100"), **samples("0+1x100", "failed")},
        silent=[{**samples("0+99x100"), **samples("0+1x100", "failed"), **samples("0+50x100", "unresolved")}],
        labels={**_OF_RUN, "status": "failed"},
    ),
    AlertCase(
        alert="RollstreamRewardFailures",
        fires={**_SCORED, **series("rollstream_scorer_failures_total", "scorer", "0+5x100", code="timeout")},
        silent=[
            # The generator's fault: the scorer passes it on.
            {**_SCORED, **series("rollstream_scorer_failures_total", "scorer", "0+5x100", code="deadline")},
            {**_SCORED, **series("rollstream_scorer_failures_total", "scorer", "0+1x100", code="bad_reward")},
        ],
        labels=_OF_RUN,
    ),
    AlertCase(
        alert="RollstreamRewardFailures",
        # The first ones, all between two scrapes.
        fires={
            **up("scorer"),
            **_SCORED,
            **series("rollstream_scorer_failures_total", "scorer", "_x40 400x60", code="crash"),
        },
        silent=[
            {
                **up("scorer"),
                **_SCORED,
                **series("rollstream_scorer_failures_total", "scorer", "_x40 9x60", code="crash"),
            }
        ],
        labels=_OF_RUN,
    ),
    AlertCase(
        alert="RollstreamScoringSlow",
        # As where batches end at a deadline of 8 s.
        fires=_batches(in_10="0+10x100", in_5="0x100"),
        silent=[_batches(in_10="0+10x100", in_5="0+10x100"), _batches(in_10="7x100", in_5="0x100")],
        labels=_OF_RUN,
    ),
    AlertCase(
        alert="RollstreamDeadLetters",
        fires={
            **up("generator"),
            **series(
                "rollstream_bus_dead_letters_total",
                "generator",
                "_x40 1x60",
                topic="math.prompts",
                reason="unreadable",
            ),
        },
        silent=[
            up("generator"),
            # Written before this process was scraped for the last half hour.
            {
                **up("scorer"),
                **series(
                    "rollstream_bus_dead_letters_total", "scorer", "4x100", topic="math.rollouts", reason="unreadable"
                ),
            },
            # A scrape fails: that brings no letters.
            {
                **up("scorer", values="1x40 0x5 1x60"),
                **series(
                    "rollstream_bus_dead_letters_total",
                    "scorer",
                    "4x40 stale _x4 4x60",
                    topic="math.rollouts",
                    reason="poison",
                ),
            },
        ],
        labels={**_OF_RUN, "stage": "generator"},
    ),
    AlertCase(
        alert="RollstreamHandlerFailures",
        fires=series("rollstream_bus_handler_failures_total", "generator", "0+1x100", topic="math.prompts"),
        silent=[series("rollstream_bus_handler_failures_total", "generator", "0x50 1x50", topic="math.prompts")],
        labels={**_OF_RUN, "stage": "generator"},
    ),
    AlertCase(
        alert="RollstreamHandlerFailures",
        # The first thirty, all between two scrapes: their series begins with 30.
        fires={
            **up("generator"),
            **series("rollstream_bus_handler_failures_total", "generator", "_x50 30x50", topic="math.prompts"),
        },
        silent=[
            # Counted before this process was scraped for the last quarter of an hour.
            {
                **up("generator"),
                **series("rollstream_bus_handler_failures_total", "generator", "30x100", topic="math.prompts"),
            },
            # A scrape fails: that brings no failures.
            {
                **up("generator", values="1x50 0x3 1x60"),
                **series("rollstream_bus_handler_failures_total", "generator", "30x50 stale _x2 30x60", topic="p"),
            },
        ],
        labels={**_OF_RUN, "stage": "generator"},
    ),
    AlertCase(
        alert="RollstreamStrangersPrompts",
        fires={
            **series("rollstream_producer_strangers_prompts_total", "producer", "3x100"),
            **series("process_start_time_seconds", "producer", "600x100"),
        },
        silent=[
            # Found more than an hour ago.
            {
                **series("rollstream_producer_strangers_prompts_total", "producer", "3x100"),
                **series("process_start_time_seconds", "producer", "-1800x100"),
            },
            {
                **series("rollstream_producer_strangers_prompts_total", "producer", "0x100"),
                **series("process_start_time_seconds", "producer", "600x100"),
            },
        ],
        labels={**_OF_RUN, "stage": "producer", "instance": instance("producer")},
        at="40m",
    ),
    AlertCase(
        alert="RollstreamPartitionUnderReplicated",
        fires={'kafka_topic_partition_under_replicated_partition{topic="math.scored", partition="1"}': "0x20 1x80"},
        silent=[
            {'kafka_topic_partition_under_replicated_partition{topic="math.scored", partition="1"}': "0x100"},
            {'kafka_topic_partition_under_replicated_partition{topic="orders", partition="1"}': "1x100"},
        ],
        labels={"topic": "math.scored"},
    ),
)
