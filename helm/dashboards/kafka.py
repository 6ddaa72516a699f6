"""What Kafka's exporter says of the run's topics and groups. Without an exporter these panels are empty."""

from grafana_foundation_sdk.builders import dashboard

from helm.dashboards.parts import Row, board, lines, number, query, variable

_TOPICS = 'topic=~"$run[.].+", topic=~"$topic"'
_GROUPS = 'consumergroup=~"$run[.].+"'


def make() -> dashboard.Dashboard:
    """Brokers, lag, topics."""
    chosen = variable("topic", "Topic", 'label_values(kafka_topic_partitions{topic=~"$run[.].+"}, topic)', multi=True)
    return board(
        "kafka",
        "Kafka",
        "What Kafka's exporter says of the run's topics and groups. Without an exporter these panels are empty.",
        [_cluster(), _lag(), _topics()],
        more_variables=[chosen],
    )


def _cluster() -> Row:
    return Row(
        "Cluster",
        number("Brokers", "Brokers that the exporter sees.", "none", "max(kafka_brokers)", width=8),
        number(
            "Partitions that lack replicas",
            "Of the run's topics. With three brokers and one of them gone everything goes on; with two gone not.",
            "none",
            f"sum(kafka_topic_partition_under_replicated_partition{{{_TOPICS}}})",
            bad_from=1,
            width=8,
        ),
        number("Partitions", "Of the run's topics.", "none", f"sum(kafka_topic_partitions{{{_TOPICS}}})", width=8),
    )


def _lag() -> Row:
    return Row(
        "Consumer groups",
        lines(
            "Lag by group",
            "Records behind what each group committed. The trainer commits for monitors alone.",
            "suffix: records",
            query(
                f"sum by (consumergroup, topic) (kafka_consumergroup_lag{{{_GROUPS}}})", "{{consumergroup}} {{topic}}"
            ),
        ),
        lines(
            "Pace of groups",
            "Offsets that each group commits.",
            "suffix: records/s",
            query(
                "sum by (consumergroup, topic) "
                f"(rate(kafka_consumergroup_current_offset{{{_GROUPS}}}[$__rate_interval]))",
                "{{consumergroup}} {{topic}}",
            ),
        ),
        lines(
            "Members of groups",
            "Some exporters know no members of groups with the newer protocol.",
            "none",
            query(f"max by (consumergroup) (kafka_consumergroup_members{{{_GROUPS}}})", "{{consumergroup}}"),
        ),
    )


def _topics() -> Row:
    return Row(
        "Topics",
        lines(
            "Records written",
            "By topic. Ends of the trainer's transactions count on `weights` and `ledger`.",
            "suffix: records/s",
            query(
                f"sum by (topic) (rate(kafka_topic_partition_current_offset{{{_TOPICS}}}[$__rate_interval]))",
                "{{topic}}",
            ),
        ),
        lines(
            "Records kept",
            "Newest minus oldest offset of the partitions.",
            "suffix: records",
            query(
                f"sum by (topic) (kafka_topic_partition_current_offset{{{_TOPICS}}}"
                f" - kafka_topic_partition_oldest_offset{{{_TOPICS}}})",
                "{{topic}}",
            ),
        ),
        lines(
            "Replicas in sync",
            "Least of the partitions of a topic.",
            "none",
            query(f"min by (topic) (kafka_topic_partition_in_sync_replica{{{_TOPICS}}})", "{{topic}}"),
        ),
    )
