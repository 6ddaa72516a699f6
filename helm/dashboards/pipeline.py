"""How records and groups go through the stages, and what goes wrong on the way."""

from grafana_foundation_sdk.builders import dashboard

from helm.dashboards.parts import RUN, Row, board, buckets, lines, percentiles, query, rate, rates


def make() -> dashboard.Dashboard:
    """Records, groups, faults."""
    return board(
        "pipeline",
        "Pipeline",
        "How records and groups go through the stages, and what goes wrong on the way.",
        [_records(), _backlog(), _groups(), _faults()],
    )


def _records() -> Row:
    return Row(
        "Records",
        lines(
            "Published",
            "Records that generators and scorers published and the broker confirmed, by topic.",
            "suffix: records/s",
            rates("rollstream_bus_published_records_total", "topic"),
        ),
        lines(
            "Consumed",
            "Records that generators and scorers took from a topic. Above what was published: delivered again.",
            "suffix: records/s",
            rates("rollstream_bus_consumed_records_total", "topic"),
        ),
        lines(
            "Submitted prompts",
            "Prompts that each producer put on the topic.",
            "suffix: prompts/s",
            query(f"rate(rollstream_producer_prompts_submitted_total{{{RUN}}}[$__rate_interval])", "{{instance}}"),
        ),
    )


def _backlog() -> Row:
    return Row(
        "What waits",
        lines(
            "Lag of stages",
            "Records behind what a stage committed, those in hand included. Credit bounds it for training. The "
            "trainer commits no further than its oldest open group.",
            "suffix: records",
            query(f"sum by (stage, topic) (rollstream_bus_consumer_lag_records{{{RUN}}})", "{{stage}} {{topic}}"),
        ),
        lines(
            "Lag of stages in time",
            "How long generators and scorers need for what waits, at the pace of now.",
            "s",
            query(
                f'sum by (topic) (rollstream:consumer_lag_records{{{RUN}, stage=~"generator|scorer"}})'
                f" / ({rate('rollstream_bus_consumed_records_total', 'topic')} > 0)",
                "{{topic}}",
            ),
        ),
        lines(
            "Oldest record in hand",
            "For how long the record is handled that takes longest. A bound ends the process.",
            "s",
            query(f"time() - (rollstream_bus_oldest_unfinished_timestamp_seconds{{{RUN}}} > 0)", "{{instance}}"),
        ),
        lines(
            "Size of topics",
            "Records that the topics hold. `weights` and `ledger` are kept for ever.",
            "suffix: records",
            query(f"max by (topic) (rollstream_trainer_topic_records{{{RUN}}})", "{{topic}}"),
        ),
        lines(
            "Full backlog",
            "Share of the generators that fetch nothing, since what they have waits for room. Usual when "
            "generators are what the others wait for.",
            "percentunit",
            query(f"avg(rollstream_bus_paused_ratio{{{RUN}}})", "generators"),
        ),
        lines(
            "Rollouts in a batch",
            "Rollouts that scorers take at once.",
            "suffix: rollouts",
            query(" / ".join(rate(f"rollstream_scorer_batch_rollouts_{part}") for part in ("sum", "count")), "mean"),
        ),
    )


def _groups() -> Row:
    return Row(
        "Groups",
        lines(
            "Closed groups",
            "Groups that the trainer trained on or dropped.",
            "suffix: groups/s",
            rates("rollstream_trainer_groups_total", "outcome"),
            stacked=True,
        ),
        lines(
            "Age of trained groups",
            "From the submission of a prompt to the end of the step that trained on its group.",
            "s",
            *percentiles("rollstream_trainer_group_age_seconds"),
        ),
        buckets(
            "Ages of trained groups", "How many groups had which age.", "s", "rollstream_trainer_group_age_seconds"
        ),
        lines(
            "Open groups",
            "Groups that the trainer knows and has not closed; of these complete ones, which wait for a step.",
            "suffix: groups",
            query(f"sum(rollstream_trainer_open_groups{{{RUN}}})", "open"),
            query(f"sum(rollstream_trainer_ready_groups{{{RUN}}})", "complete"),
        ),
        lines(
            "Samples of incomplete groups",
            "What they take in the trainer's memory. Above `incomplete_bytes` the oldest group is dropped.",
            "bytes",
            query(f"sum(rollstream_trainer_incomplete_bytes{{{RUN}}})", "bytes"),
        ),
        lines(
            "Ledger entries",
            "Entries that the trainer committed, by kind.",
            "suffix: entries/s",
            rates("rollstream_trainer_ledger_entries_total", "kind"),
        ),
    )


def _faults() -> Row:
    return Row(
        "Faults",
        lines(
            "Dead letters",
            "Messages that could not be handled since each process started, by topic and reason.",
            "suffix: letters",
            query(f"sum by (topic, reason) (rollstream_bus_dead_letters_total{{{RUN}}})", "{{topic}} {{reason}}"),
        ),
        lines(
            "Handlers that raised",
            "Readable records whose handler raised. More than 20 a minute end a process.",
            "suffix: records/s",
            rates("rollstream_bus_handler_failures_total", "topic"),
        ),
        lines(
            "Records that changed nothing",
            "Records that the trainer read after their sample or group was there.",
            "suffix: records/s",
            query(rate("rollstream_trainer_duplicate_records_total"), "duplicates"),
        ),
        lines(
            "Commits of offsets",
            "Commits of the generators by how they ended. A few fail while partitions move.",
            "suffix: commits/s",
            rates("rollstream_bus_commits_total", "outcome"),
        ),
        lines(
            "Partitions that moved",
            "Partitions assigned to, revoked from and lost by generators.",
            "suffix: partitions/s",
            rates("rollstream_bus_rebalances_total", "event"),
        ),
        lines(
            "Prompts passed over",
            "Since each process started: prompts in a producer's name that its source does not give, prompts that "
            "the trainer can't read, and of what strangers wrote on `producers` the records that can't be true and "
            "the groups that nobody submitted.",
            "suffix: passed over",
            query(f"sum(rollstream_producer_strangers_prompts_total{{{RUN}}})", "of strangers"),
            query(f"sum(rollstream_producer_refused_progress_total{{{RUN}}})", "untrue progress"),
            query(f"sum(rollstream_producer_ghost_groups_total{{{RUN}}})", "ghost groups"),
            query(f"sum(rollstream_trainer_unreadable_prompts_total{{{RUN}}})", "unreadable"),
        ),
        lines(
            "Spans",
            "Spans of traces that the collector took, and those that it did not get, by why. None without "
            "an endpoint in `[tracing]`.",
            "suffix: spans/s",
            query(rate("rollstream_tracing_exported_spans_total"), "exported"),
            rates("rollstream_tracing_dropped_spans_total", "reason"),
        ),
    )
