"""What each generator does, with which weights, and what fails there."""

from grafana_foundation_sdk.builders import dashboard

from helm.dashboards.parts import RUN, Row, board, buckets, lines, query, variable

_ONE = f'{RUN}, instance=~"$generator"'


def make() -> dashboard.Dashboard:
    """Throughput, weights, failures: of all generators or of some."""
    chosen = variable("generator", "Generator", f'label_values(up{{{RUN}, stage="generator"}}, instance)', multi=True)
    return board(
        "generators",
        "Generators",
        "What each generator does, with which weights, and what fails there. Fleet means stand beside the least and "
        "the most, so that one sick engine is seen.",
        [_throughput(), _weights(), _failures()],
        more_variables=[chosen],
    )


def _throughput() -> Row:
    tokens = f"rate(rollstream_generator_completion_tokens_total{{{_ONE}}}[$__rate_interval])"
    return Row(
        title="Throughput",
        panels=[
            lines(
                "Tokens of all generators",
                "Tokens sampled. They count when their sample ends.",
                "suffix: tokens/s",
                query(f"sum({tokens})", "all"),
            ),
            lines(
                "Tokens of one generator",
                "Least, mean and most among the generators. One that stays far below the mean is sick or idle.",
                "suffix: tokens/s",
                query(f"min({tokens})", "least"),
                query(f"avg({tokens})", "mean"),
                query(f"max({tokens})", "most"),
            ),
            lines("Tokens by generator", "The same for each.", "suffix: tokens/s", query(tokens, "{{instance}}")),
            lines(
                "Samples",
                "Samples that ended, by status. Failed: the prompt can't be asked. Unresolved: infrastructure failed.",
                "suffix: samples/s",
                query(
                    f"sum by (status) (rate(rollstream_generator_samples_total{{{_ONE}}}[$__rate_interval]))",
                    "{{status}}",
                ),
                stacked=True,
            ),
            lines(
                "Prompts in hand",
                "Prompts that each generator has taken and not finished.",
                "suffix: prompts",
                query(f"rollstream_bus_in_flight_records{{{_ONE}}}", "{{instance}}"),
            ),
            lines(
                "Tokens in hand",
                "Most tokens that the prompts in hand may take, which `max_tokens_in_flight` bounds.",
                "suffix: tokens",
                query(f"rollstream_bus_in_flight_weight{{{_ONE}}}", "{{instance}}"),
            ),
        ],
    )


def _weights() -> Row:
    stall = f"sum by (le) (rate(rollstream_generator_weight_stall_seconds_bucket{{{_ONE}}}[$__rate_interval]))"
    return Row(
        title="Weights",
        panels=[
            lines(
                "Weight versions",
                "Version that each generator generates with, and the newest one.",
                "none",
                query(f"rollstream_generator_weight_version{{{_ONE}}}", "{{instance}}"),
                query(f"max(rollstream_trainer_weight_version{{{RUN}}})", "newest"),
            ),
            lines(
                "Steps behind the newest version",
                "Optimizer steps. Above max_policy_lag a generator takes no prompts; -1: its version is not on the way "
                "to the newest.",
                "suffix: steps",
                query(f"rollstream_generator_policy_lag_steps{{{_ONE}}}", "{{instance}}"),
            ),
            lines(
                "Time since a newer version was there",
                "0 while the generator has the newest version.",
                "s",
                query(
                    f"(time() - (rollstream_generator_stale_since_timestamp_seconds{{{_ONE}}} > 0))"
                    f" or 0 * rollstream_generator_stale_since_timestamp_seconds{{{_ONE}}}",
                    "{{instance}}",
                ),
            ),
            lines(
                "Loads of weights",
                "Versions that generators loaded, failed to load, or skipped since a newer one was there.",
                "suffix: loads/s",
                query(
                    f"sum by (outcome) (rate(rollstream_generator_weight_loads_total{{{_ONE}}}[$__rate_interval]))",
                    "{{outcome}}",
                ),
            ),
            lines(
                "Stall at an update",
                "How long generation stood still for an update.",
                "s",
                query(f"histogram_quantile(0.5, {stall})", "median"),
                query(f"histogram_quantile(0.95, {stall})", "95th percentile"),
            ),
            buckets(
                "Stalls at updates",
                "How many updates stalled for how long.",
                "s",
                f"sum by (le) (increase(rollstream_generator_weight_stall_seconds_bucket{{{_ONE}}}[$__rate_interval]))",
            ),
        ],
    )


def _failures() -> Row:
    return Row(
        title="Failures",
        panels=[
            lines(
                "Samples that did not complete, by why",
                "The codes are explained in the runbooks RollstreamSamplesFailed and RollstreamSamplesUnresolved.",
                "suffix: samples/s",
                query(
                    f"sum by (code) (rate(rollstream_generator_failures_total{{{_ONE}}}[$__rate_interval]))", "{{code}}"
                ),
            ),
            lines(
                "Engine errors",
                "Model calls that the engine did not resolve. They are tried again.",
                "suffix: errors/s",
                query(f"rate(rollstream_generator_engine_errors_total{{{_ONE}}}[$__rate_interval])", "{{instance}}"),
            ),
            lines(
                "Share of samples by status",
                "Over half an hour, of all generators of the run.",
                "percentunit",
                query(f"rollstream:samples:ratio_rate30m{{{RUN}}}", "{{status}}"),
            ),
        ],
    )
