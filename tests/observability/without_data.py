"""What the dashboards and rules ask for in vain on a run of some minutes on one machine, and why.

A test compares it with what Prometheus answers: an entry that has data there must go, and so must one that nothing asks
for any more. Selectors are written without what says which run and which processes. What an expression asks for in vain
explains why the expression has no data; other expressions without data need an entry of their own.
"""

from typing import Final

_EXPORTER: Final = "of Kafka's exporter, which is not part of the stack"
_NO_CURRICULUM: Final = "no producer has a curriculum"
_NO_CLIENTS: Final = "nobody is answered over HTTP, and no feedback is taken"
_NO_TOOLS: Final = "no set of tools is declared"
_NO_FAULT: Final = "counted from the first fault of its kind on, which this run does not have"
_TOPICS = (
    "[a-z0-9-]+[.](((eval|serve)-)?(prompts|rollouts|scored)|ingest-prompts|feedback|producers|weights|weights-applied|"
    "ledger|dead-letters)"
)
_REFUSED = (
    "conflict|expired|no_consent|no_tokens|not_plain|out_of_bounds|overflow|tokenizer_mismatch|unknown_version|"
    "unsupported_sampling|untrainable"
)

_OF_SERVING: Final = (
    "rollstream_feedback_answers_total",
    "rollstream_feedback_behind_records",
    "rollstream_feedback_ignored_total",
    "rollstream_feedback_matched_total",
    "rollstream_feedback_published_total",
    "rollstream_feedback_read_total",
    "rollstream_feedback_settled_answers",
    "rollstream_feedback_store_bytes",
    "rollstream_feedback_store_limit_bytes",
    "rollstream_feedback_store_rebuilt_total",
    "rollstream_feedback_unmatched_total",
    "rollstream_feedback_waiting_answers",
    "rollstream_http_bodies_bytes",
    "rollstream_http_calls_in_work",
    "rollstream_http_connections",
    "rollstream_http_refused_total",
    "rollstream_ingest_accepted_total",
    "rollstream_ingest_refused_total",
    "rollstream_ingest_repeated_total",
    "rollstream_producer_ingested_prompts_total",
    "rollstream_states_rollouts_total",
    "rollstream_serve_answers_total",
    "rollstream_serve_hook_failures_total",
    "rollstream_serve_may_train_total",
    "rollstream_serve_published_total",
    "rollstream_serve_ready",
    "rollstream_serve_running_calls",
    "rollstream_serve_spool_bytes",
    "rollstream_serve_spool_damaged_total",
    "rollstream_serve_spool_limit_bytes",
    "rollstream_serve_spool_oldest_timestamp_seconds",
    "rollstream_serve_spool_records",
    "rollstream_serve_taken_back_total",
    "rollstream_serve_training_lane_restarts_total",
    "rollstream_serve_waiting_calls",
)

SELECTORS: Final[dict[str, str]] = {
    **dict.fromkeys(
        (
            "rollstream_tools_call_seconds_bucket",
            "rollstream_tools_calls_total",
            "rollstream_tools_open_sessions",
            'rollstream_tools_sessions_total{outcome!="closed"}',
        ),
        _NO_TOOLS,
    ),
    **dict.fromkeys(
        (
            *_OF_SERVING,
            'rollstream_http_requests_total{server="generator"}',
            'rollstream_http_requests_total{server="generator", code=~"5.."}',
            'rollstream_serve_answers_total{outcome="recorded"}',
            'rollstream_serve_answers_total{outcome="unrecorded"}',
            "rollstream_feedback_delay_seconds_bucket",
            "rollstream_serve_time_per_token_seconds_bucket",
            "rollstream_serve_time_to_first_token_seconds_bucket",
        ),
        _NO_CLIENTS,
    ),
    **dict.fromkeys(
        (
            "kafka_brokers",
            "kafka_consumergroup_current_offset",
            "kafka_consumergroup_lag",
            "kafka_consumergroup_members",
            "kafka_topic_partition_current_offset",
            "kafka_topic_partition_in_sync_replica",
            "kafka_topic_partition_oldest_offset",
            "kafka_topic_partition_under_replicated_partition",
            f'kafka_topic_partition_under_replicated_partition{{topic=~"{_TOPICS}"}}',
            "kafka_topic_partitions",
        ),
        _EXPORTER,
    ),
    **dict.fromkeys(
        (
            "rollstream_evaluate_evaluations_total",
            "rollstream_evaluate_pass_at_k_ratio",
            "rollstream_evaluate_prompts",
            "rollstream_evaluate_reward",
            "rollstream_evaluate_reward_high",
            "rollstream_evaluate_reward_low",
            "rollstream_evaluate_skipped_evaluations_total",
            "rollstream_evaluate_weight_version",
        ),
        "of `rollstream evaluate --follow`, which nobody calls",
    ),
    **dict.fromkeys(("rollstream_producer_pool_prompts_total", "rollstream_producer_pool_tasks"), _NO_CURRICULUM),
    "rollstream_tracing_dropped_spans_total": _NO_FAULT,
    'rollstream_trainer_groups_total{reason="lost"}': _NO_FAULT,
    'rollstream_trainer_groups_total{reason="non_finite"}': _NO_FAULT,
    'rollstream_trainer_groups_total{reason="too_old"}': _NO_FAULT,
    f'rollstream_trainer_groups_total{{reason=~"{_REFUSED}"}}': _NO_FAULT,
}

MAY_HAVE_DATA: Final = ('rollstream_trainer_groups_total{reason="too_old"}', "trainer / Missing samples")
"""Of these selectors and expressions, those that have data where the machine has other work."""

EXPRESSIONS: Final[dict[str, str]] = {"trainer / Missing samples": _NO_FAULT}

_NOTHING_WRONG: Final = "counted from a fault on that this run does not have"
_NO_SETTING: Final = "of settings that no stage of this run has"
_NO_COLLECTOR: Final = "no collector of traces is configured"
_BY_CHANCE: Final = "0 wherever the stages keep up with each other and the policy hardly changes"
AT_REST: Final[dict[str, str]] = {
    **dict.fromkeys(
        (
            *(f"rollstream_tools_call_seconds_{part}" for part in ("bucket", "count", "sum")),
            "rollstream_tools_calls_total",
            "rollstream_tools_open_sessions",
            "rollstream_tools_sessions_total",
        ),
        _NO_TOOLS,
    ),
    **dict.fromkeys(
        (
            *_OF_SERVING,
            *(
                f"{histogram}_{part}"
                for histogram in (
                    "rollstream_feedback_delay_seconds",
                    "rollstream_serve_time_per_token_seconds",
                    "rollstream_serve_time_to_first_token_seconds",
                )
                for part in ("bucket", "count", "sum")
            ),
            "rollstream_trainer_ones_reward_mean",
            "rollstream_trainer_served_policy_lag_max",
            "rollstream_trainer_served_policy_lag_mean",
            "rollstream_trainer_served_ratio",
            "rollstream_http_requests_total",
        ),
        _NO_CLIENTS,
    ),
    **dict.fromkeys(("rollstream_producer_pool_prompts_total", "rollstream_producer_pool_tasks"), _NO_CURRICULUM),
    **dict.fromkeys(
        (
            "rollstream_generator_deadline_cuts_total",
            "rollstream_scorer_rewards_at_timeout_total",
            "rollstream_trainer_entropy_bonus",
            "rollstream_trainer_importance_weight_masked_ratio",
            "rollstream_trainer_kl",
        ),
        _NO_SETTING,
    ),
    **dict.fromkeys(
        (
            "rollstream_bus_handler_failures_total",
            "rollstream_generator_engine_errors_total",
            "rollstream_generator_given_back_tokens_total",
            "rollstream_generator_progress_total",
            "rollstream_generator_resumed_samples_total",
            "rollstream_generator_turns_begun_anew_total",
            "rollstream_producer_ghost_groups_total",
            "rollstream_producer_refused_progress_total",
            "rollstream_producer_flat_groups",
            "rollstream_producer_strangers_prompts_total",
            "rollstream_trainer_unreadable_prompts_total",
        ),
        _NOTHING_WRONG,
    ),
    **dict.fromkeys(
        ("rollstream_tracing_dropped_spans_total", "rollstream_tracing_exported_spans_total"), _NO_COLLECTOR
    ),
    **dict.fromkeys(
        (
            "rollstream_bus_paused_ratio",
            "rollstream_generator_policy_lag_steps",
            "rollstream_generator_stale_since_timestamp_seconds",
            "rollstream_trainer_clip_fraction_high",
            "rollstream_trainer_clip_fraction_low",
            "rollstream_trainer_duplicate_records_total",
            "rollstream_trainer_importance_weight_capped_ratio",
            "rollstream_trainer_mismatch_kl_lag_0",
            "rollstream_trainer_missing_ratio",
            "rollstream_trainer_waiting_for_late_seconds",
            "rollstream_trainer_waiting_seconds",
        ),
        _BY_CHANCE,
    ),
}
"""Metrics that may stay 0, or have no series, on that run, and why. All others move."""

MOVES_IN: Final[dict[str, str]] = {
    "rollstream_bus_commits_total": "generator",
    "rollstream_bus_consumed_records_total": "generator, scorer",
    "rollstream_bus_consumer_lag_records": "generator, scorer, trainer",
    "rollstream_bus_dead_letters_total": "scorer",
    "rollstream_bus_in_flight_records": "generator",
    "rollstream_bus_in_flight_weight": "generator",
    "rollstream_bus_oldest_unfinished_timestamp_seconds": "generator",
    "rollstream_bus_published_records_total": "generator, scorer",
    "rollstream_bus_rebalances_total": "generator",
    "rollstream_process_ready": "generator, producer, scorer, trainer",
}
"""Metrics of several stages, and those in which they move."""
