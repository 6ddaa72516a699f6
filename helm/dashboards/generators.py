"""What each generator does, with which weights, and what fails there."""

from grafana_foundation_sdk.builders import dashboard

from helm.dashboards.parts import RUN, Panel, Row, board, buckets, lines, percentiles, query, rate, rates, variable

_ONE = f'{RUN}, instance=~"$generator"'
_NEEDED = "vLLM exports this only with `vllm_metrics = true` in `[generator.engine]`."


def make() -> dashboard.Dashboard:
    """Throughput, weights, failures: of all generators or of some."""
    chosen = variable("generator", "Generator", f'label_values(up{{{RUN}, stage="generator"}}, instance)', multi=True)
    return board(
        "generators",
        "Generators",
        "What each generator does, with which weights, and what fails there. Fleet means stand beside the least and "
        "the most, so that one sick engine is seen.",
        [_throughput(), _weights(), _failures(), _vllm()],
        more_variables=[chosen],
    )


def _throughput() -> Row:
    tokens = f"rate(rollstream_generator_completion_tokens_total{{{_ONE}}}[$__rate_interval])"
    return Row(
        "Throughput",
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
            rates("rollstream_generator_samples_total", "status", matchers=_ONE),
            stacked=True,
        ),
        lines(
            "Prompts in hand",
            "Prompts that each generator has taken and not finished.",
            "suffix: prompts",
            query(f"rollstream_bus_in_flight_records{{{_ONE}}}", "{{instance}}"),
        ),
        lines(
            "Samples or tokens in hand",
            "Samples in hand that have not ended, at most about 1.5 times those that the engine runs side by side. "
            "Where `max_tokens_in_flight` is set: the tokens that they may have, which it bounds.",
            "none",
            query(f"rollstream_bus_in_flight_weight{{{_ONE}}}", "{{instance}}"),
        ),
    )


def _weights() -> Row:
    return Row(
        "Weights",
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
            query(f"max(rollstream_generator_max_policy_lag_steps{{{RUN}}})", "max_policy_lag"),
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
        *_loads(),
    )


def _loads() -> list[Panel]:
    return [
        lines(
            "Loads of weights",
            "Versions that generators loaded, failed to load, or skipped since a newer one was there.",
            "suffix: loads/s",
            rates("rollstream_generator_weight_loads_total", "outcome", matchers=_ONE),
            width=6,
        ),
        lines(
            "Time to load weights",
            "From a new version's turn to generation with it: its files are fetched, checked and loaded. The stall "
            "is only the last part of it.",
            "s",
            *percentiles("rollstream_generator_weight_load_seconds", matchers=_ONE),
            width=6,
        ),
        lines(
            "Stall at an update",
            "How long generation stood still for an update.",
            "s",
            *percentiles("rollstream_generator_weight_stall_seconds", matchers=_ONE),
            width=6,
        ),
        buckets(
            "Stalls at updates",
            "How many updates stalled for how long.",
            "s",
            "rollstream_generator_weight_stall_seconds",
            matchers=_ONE,
            width=6,
        ),
    ]


def _failures() -> Row:
    return Row(
        "Failures",
        lines(
            "Samples that did not complete, by why",
            "The codes are explained in the runbooks RollstreamSamplesFailed and RollstreamSamplesUnresolved. "
            "Those that were cut at their deadline are completed, with the tokens so far.",
            "suffix: samples/s",
            rates("rollstream_generator_failures_total", "code", matchers=_ONE),
            query(rate("rollstream_generator_deadline_cuts_total", matchers=_ONE), "cut at the deadline"),
        ),
        lines(
            "Engine errors",
            "Model calls that the engine did not resolve. They are tried again.",
            "suffix: errors/s",
            query(f"rate(rollstream_generator_engine_errors_total{{{_ONE}}}[$__rate_interval])", "{{instance}}"),
        ),
        *_agents(),
        lines(
            "Share of samples by status",
            "Over half an hour, of all generators of the run.",
            "percentunit",
            query(f"rollstream:samples:ratio_rate30m{{{RUN}}}", "{{status}}"),
        ),
    )


def _agents() -> list[Panel]:
    """What is of samples with several turns, and of their tools."""
    return [
        lines(
            "Turns begun anew",
            "Turns of agents that do not go on from the tokens that were sampled, so that each begins a training "
            "sample: `template` does not write the conversation so, `renderer` does not by the rules of the model's "
            "family, `history`: the agent asked with another one. Name a renderer if `template` is frequent.",
            "suffix: turns/s",
            rates("rollstream_generator_turns_begun_anew_total", "reason", matchers=_ONE),
        ),
        lines(
            "Progress kept",
            "Records of how far samples of several turns, and long ones, have come, by what is kept. `too_large`: what "
            "does not fit in a record is not kept, and is sampled again if its generator dies.",
            "suffix: records/s",
            rates("rollstream_generator_progress_total", "kind", matchers=_ONE),
        ),
        lines(
            "Samples gone on with",
            "Samples that another generator had begun before it ended. `went_on`: from where it was; `diverged`: from "
            "their start, since their agent asked something else. Beside them the tokens that were not sampled again.",
            "suffix: /s",
            rates("rollstream_generator_resumed_samples_total", "outcome", matchers=_ONE),
            query(rate("rollstream_generator_given_back_tokens_total", matchers=_ONE), "tokens given back"),
        ),
        lines(
            "Calls of tools",
            "By set and how they ended. `mistake`: of the model or the tool itself, which the model is told. `failed`: "
            "the tools did not answer, and the sample is unresolved.",
            "suffix: calls/s",
            query(
                f"sum by (tools, outcome) (rate(rollstream_tools_calls_total{{{_ONE}}}[$__rate_interval]))",
                "{{tools}} {{outcome}}",
            ),
        ),
        lines(
            "Duration of calls of tools",
            "95th percentile, with repetitions.",
            "s",
            query(
                "histogram_quantile(0.95, sum by (le, tools) "
                f"(rate(rollstream_tools_call_seconds_bucket{{{_ONE}}}[$__rate_interval])))",
                "{{tools}}",
            ),
        ),
        lines(
            "Sessions of tools",
            "Open now, and those a second that were not closed or not opened: a server may hold the former still.",
            "none",
            query(f"sum by (tools) (rollstream_tools_open_sessions{{{_ONE}}})", "{{tools}} open"),
            query(
                f'sum by (tools, outcome) (rate(rollstream_tools_sessions_total{{{_ONE}, outcome!="closed"}}'
                "[$__rate_interval]))",
                "{{tools}} {{outcome}}",
            ),
        ),
    ]


def _vllm() -> Row:
    kept = f"rate(vllm:prefix_cache_hits_total{{{_ONE}}}[$__rate_interval])"
    asked = f"rate(vllm:prefix_cache_queries_total{{{_ONE}}}[$__rate_interval])"
    return Row(
        "vLLM's own metrics",
        _percentiles("Time to first token", "From a request to its first token.", "time_to_first_token_seconds"),
        _percentiles("Time between tokens", "Between two tokens of one request.", "inter_token_latency_seconds"),
        _percentiles(
            "Time in vLLM's queue",
            "What a request waits inside vLLM. Nearly 0: the generator gives it what it can start at once.",
            "request_queue_time_seconds",
        ),
        lines(
            "KV cache in use",
            f"Share of its blocks, mean and most of the generators. A full one preempts requests. {_NEEDED}",
            "percentunit",
            query(f"avg(vllm:kv_cache_usage_perc{{{_ONE}}})", "mean"),
            query(f"max(vllm:kv_cache_usage_perc{{{_ONE}}})", "most"),
            width=6,
        ),
        lines(
            "Requests inside vLLM",
            f"Requests that vLLM computes, and those that wait in its queue. {_NEEDED}",
            "suffix: requests",
            query(f"sum(vllm:num_requests_running{{{_ONE}}})", "running"),
            query(f"sum(vllm:num_requests_waiting{{{_ONE}}})", "waiting"),
            width=6,
        ),
        lines(
            "Preempted requests",
            f"Requests whose KV cache was given to others: their tokens so far are computed again. {_NEEDED}",
            "suffix: requests/s",
            query(f"sum(rate(vllm:num_preemptions_total{{{_ONE}}}[$__rate_interval]))", "preempted"),
            width=6,
        ),
        lines(
            "Prompt tokens found in the cache",
            f"Share of the prompt tokens that samples of one prompt compute only once. {_NEEDED}",
            "percentunit",
            query(f"sum({kept}) / (sum({asked}) > 0)", "found"),
            width=6,
        ),
    )


def _percentiles(title: str, description: str, histogram: str) -> Panel:
    return lines(title, f"{description} {_NEEDED}", "s", *percentiles(f"vllm:{histogram}", matchers=_ONE))
