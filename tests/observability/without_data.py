"""What the dashboards and rules ask for in vain on a run of some minutes on one machine, and why.

A test compares it with what Prometheus answers: an entry that has data there must go, and so must one that nothing asks
for any more. Selectors are written without what says which run and which processes. What an expression asks for in vain
explains why the expression has no data; other expressions without data need an entry of their own.
"""

from typing import Final

_EXPORTER: Final = "of Kafka's exporter, which is not part of the stack"
_NO_FAULT: Final = "counted from the first fault of its kind on, which this run does not have"
_TOPICS = "[a-z0-9-]+[.]((eval-)?(prompts|rollouts|scored)|producers|weights|weights-applied|ledger|dead-letters)"
_REFUSED = (
    "conflict|expired|no_tokens|out_of_bounds|overflow|tokenizer_mismatch|unknown_version|unsupported_sampling|"
    "untrainable"
)

SELECTORS: Final[dict[str, str]] = {
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
    "rollstream_tracing_dropped_spans_total": _NO_FAULT,
    'rollstream_trainer_groups_total{reason="lost"}': _NO_FAULT,
    'rollstream_trainer_groups_total{reason="non_finite"}': _NO_FAULT,
    'rollstream_trainer_groups_total{reason="too_old"}': _NO_FAULT,
    f'rollstream_trainer_groups_total{{reason=~"{_REFUSED}"}}': _NO_FAULT,
}

EXPRESSIONS: Final[dict[str, str]] = {}
