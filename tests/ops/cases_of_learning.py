"""When the alerts on learning, generators, scoring and the bus fire."""

from tests.ops.rule_tests import case, closed, instance, samples, series, step_gauge, steps, up

_OF_GENERATOR = {"stage": "generator", "instance": instance("generator")}
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
    case(
        "RollstreamNonFiniteSteps",
        {**up("trainer"), **closed("_x40 8x60", reason="non_finite")},
        {**up("trainer"), **closed("0+1x100", reason="no_spread")},
    ),
    case(
        "RollstreamNoSpread",
        {**closed("0+1x400", "trained"), **closed("0+19x400", reason="no_spread")},
        {**closed("0+5x400", "trained"), **closed("0+5x400", reason="no_spread")},
        at="3h",
    ),
    case(
        "RollstreamRewardDropped",
        {**steps(), **step_gauge("reward_mean", "0.7x72 0.3x100")},
        {**steps(), **step_gauge("reward_mean", "0.7x72 0.6x100")},
        # After a restart the gauge is 0 until the first step.
        {**steps("0+1x72 _x20 1+1x80"), **step_gauge("reward_mean", "0.7x72 0x20 0.7x80")},
        {**steps("72x400"), **step_gauge("reward_mean", "0.7x72 0.3x100")},
        at="8h",
        interval="5m",
    ),
    case(
        "RollstreamTruncationHigh",
        # After a restart the gauge is 0 until the first step, which is no good sign.
        {**steps("0+1x60 _x40 1+1x300"), **step_gauge("truncated_ratio", "0.5x60 0x40 0.5x300")},
        {**steps(), **step_gauge("truncated_ratio", "0.1x400")},
        # The figures of a step hours ago; so in the next cases.
        {**steps("9x400"), **step_gauge("truncated_ratio", "0.5x400")},
        at="2h",
    ),
    case(
        "RollstreamEntropyCollapsed",
        {**steps(), **step_gauge("entropy", "0.3x10 0.001x390")},
        {**steps(), **step_gauge("entropy", "0.2x400")},
        {**steps("9x400"), **step_gauge("entropy", "0.001x400")},
        # A trainer that has made no step yet.
        {**up("trainer"), **step_gauge("entropy", "0x400")},
        at="80m",
    ),
    case(
        "RollstreamMismatchKlHigh",
        {**steps(), **up("generator"), **step_gauge("mismatch_kl_lag_0", "0.1x400")},
        {**steps(), **up("generator"), **step_gauge("mismatch_kl_lag_0", "0.002x400")},
        {**steps("9x400"), **up("generator"), **step_gauge("mismatch_kl_lag_0", "0.1x400")},
        # It trains on the rollouts of another run, whose policy is another one.
        {**steps(), **step_gauge("mismatch_kl_lag_0", "0.1x400")},
        at="2h",
    ),
    case(
        "RollstreamGradNormHigh",
        {**steps(), **step_gauge("grad_norm", "0.5x60 50x100")},
        {**steps(), **step_gauge("grad_norm", "0.5x60 2x100")},
        {**steps("60x400"), **step_gauge("grad_norm", "0.5x60 50x100")},
        at="5h45m",
        interval="5m",
    ),
    case(
        "RollstreamGeneratorBehind",
        _behind("0x10 3x90"),
        _behind("2x100"),
        _behind("0x40 7x5 0x60"),
        # That run allows more.
        _behind("3x100", bound="4x100"),
        **_OF_GENERATOR,
    ),
    case("RollstreamGeneratorBehind", _behind("-1x100"), _behind("0x100"), **_OF_GENERATOR),
    case(
        "RollstreamWeightsStale",
        series(_STALE, "generator", "0x20 1200x80"),
        # promtool's clock begins at 0; 0 means that nothing newer is there.
        series(_STALE, "generator", "0x100"),
        series(_STALE, "generator", "60+60x100"),
        **_OF_GENERATOR,
    ),
    case(
        "RollstreamWeightLoadsFail",
        series(_LOADS, "generator", "0x30 1+1x70", outcome="failed"),
        series(_LOADS, "generator", "0+1x100", outcome="applied"),
        series(_LOADS, "generator", "0x50 1x50", outcome="failed"),
        instance=instance("generator"),
    ),
    case(
        "RollstreamGeneratorIdle",
        _fleet(tokens="0x100", in_flight="0x100"),
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
        instance=instance("generator"),
    ),
    case(
        "RollstreamSamplesUnresolved",
        {**samples("0+9x100"), **samples("0+1x100", "unresolved")},
        {**samples("0+99x100"), **samples("0+1x100", "unresolved"), **samples("0+50x100", "failed")},
        {**samples("9x100"), **samples("9x100", "unresolved")},
        status="unresolved",
    ),
    case(
        "RollstreamSamplesFailed",
        {**samples("0+9x100"), **samples("0+1x100", "failed")},
        {**samples("0+99x100"), **samples("0+1x100", "failed"), **samples("0+50x100", "unresolved")},
        status="failed",
    ),
    case(
        "RollstreamRewardFailures",
        {**_SCORED, **series("rollstream_scorer_failures_total", "scorer", "0+5x100", code="timeout")},
        # The generator's fault: the scorer passes it on.
        {**_SCORED, **series("rollstream_scorer_failures_total", "scorer", "0+5x100", code="deadline")},
        {**_SCORED, **series("rollstream_scorer_failures_total", "scorer", "0+1x100", code="bad_reward")},
    ),
    case(
        "RollstreamRewardFailures",
        # The first ones, all between two scrapes.
        {
            **up("scorer"),
            **_SCORED,
            **series("rollstream_scorer_failures_total", "scorer", "_x40 400x60", code="crash"),
        },
        {**up("scorer"), **_SCORED, **series("rollstream_scorer_failures_total", "scorer", "_x40 9x60", code="crash")},
    ),
    case(
        "RollstreamScoringSlow",
        # As where batches end at a deadline of 8 s.
        _batches(in_10="0+10x100", in_5="0x100"),
        _batches(in_10="0+10x100", in_5="0+10x100"),
        _batches(in_10="7x100", in_5="0x100"),
    ),
    case(
        "RollstreamDeadLetters",
        {
            **up("generator"),
            **series(
                "rollstream_bus_dead_letters_total", "generator", "_x40 1x60", topic="math.prompts", reason="unreadable"
            ),
        },
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
        stage="generator",
    ),
    case(
        "RollstreamHandlerFailures",
        series("rollstream_bus_handler_failures_total", "generator", "0+1x100", topic="math.prompts"),
        series("rollstream_bus_handler_failures_total", "generator", "0x50 1x50", topic="math.prompts"),
        stage="generator",
    ),
    case(
        "RollstreamHandlerFailures",
        # The first thirty, all between two scrapes: their series begins with 30.
        {
            **up("generator"),
            **series("rollstream_bus_handler_failures_total", "generator", "_x50 30x50", topic="math.prompts"),
        },
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
        stage="generator",
    ),
    case(
        "RollstreamStrangersPrompts",
        {
            **series("rollstream_producer_strangers_prompts_total", "producer", "3x100"),
            **series("process_start_time_seconds", "producer", "600x100"),
        },
        # Found more than an hour ago.
        {
            **series("rollstream_producer_strangers_prompts_total", "producer", "3x100"),
            **series("process_start_time_seconds", "producer", "-1800x100"),
        },
        {
            **series("rollstream_producer_strangers_prompts_total", "producer", "0x100"),
            **series("process_start_time_seconds", "producer", "600x100"),
        },
        stage="producer",
        instance=instance("producer"),
        at="40m",
    ),
    case(
        "RollstreamPartitionUnderReplicated",
        {'kafka_topic_partition_under_replicated_partition{topic="math.scored", partition="1"}': "0x20 1x80"},
        {'kafka_topic_partition_under_replicated_partition{topic="math.scored", partition="1"}': "0x100"},
        {'kafka_topic_partition_under_replicated_partition{topic="orders", partition="1"}': "1x100"},
        run="",
        topic="math.scored",
    ),
)
