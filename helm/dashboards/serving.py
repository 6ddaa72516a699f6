"""What clients get, what is recorded of it, what they say of it, and how much of that trains."""

from grafana_foundation_sdk.builders import dashboard

from helm.dashboards.parts import RUN, Row, board, lines, number, percentiles, query, rate, rates

_FOR_EACH = "{{instance}}"


def make() -> dashboard.Dashboard:
    """Answers, records, the two HTTP servers, feedback."""
    return board(
        "serving",
        "Serving",
        "Generators that answer clients, ingest, and the producer of feedback. Without `serve.enabled` and without "
        "these processes it is empty.",
        [_answers(), _records(), _servers(), _feedback(), _training()],
    )


def _answers() -> Row:
    return Row(
        "Answers",
        lines(
            "Time to first token",
            "From a call, read and rendered, to the first token of its first choice, with the wait for a place.",
            "s",
            *percentiles("rollstream_serve_time_to_first_token_seconds"),
        ),
        lines(
            "Time per token",
            "Of each choice: from its first token to its last, divided by the tokens after the first.",
            "s",
            *percentiles("rollstream_serve_time_per_token_seconds"),
        ),
        lines(
            "Choices in the engine",
            "Waiting: for a place in the engine. The chart scales by these, since hardly any call waits in vLLM.",
            "suffix: choices",
            query(f"sum(rollstream_serve_running_calls{{{RUN}}})", "answered"),
            query(f"sum(rollstream_serve_waiting_calls{{{RUN}}})", "waiting"),
        ),
        lines(
            "Requests by route and code",
            "429: the rate of a key. 503: no room, or nothing can be answered or recorded now.",
            "suffix: requests/s",
            rates("rollstream_http_requests_total", "route", "code", matchers=f'{RUN}, server="generator"'),
        ),
        lines(
            "Can answer",
            "1 while clients can be answered. The training lane may be away meanwhile: it is made anew.",
            "none",
            query(f"rollstream_serve_ready{{{RUN}}}", f"{_FOR_EACH} answers"),
            query(f"rollstream_generator_training_lane_ready{{{RUN}}}", f"{_FOR_EACH} training lane"),
        ),
        lines(
            "Asked again, and training lanes made anew",
            "Asked again: an update came before a choice's first token, and its client sees nothing of it. Made anew: "
            "after an error of the bus.",
            "none",
            query(rate("rollstream_serve_taken_back_total"), "asked again a second"),
            query(rate("rollstream_serve_training_lane_restarts_total"), "lanes made anew a second"),
        ),
    )


def _records() -> Row:
    return Row(
        "Records",
        lines(
            "Answered and recorded",
            "Choices, by what was recorded. Unrecorded: the spool or its disk was full, or the hook raised.",
            "suffix: choices/s",
            rates("rollstream_serve_answers_total", "outcome"),
            stacked=True,
        ),
        lines(
            "Share that may train",
            "Of what is recorded in full: with consent, sampled from the policy alone, and with tokens.",
            "percentunit",
            query(
                f"{rate('rollstream_serve_may_train_total')} / "
                + rate("rollstream_serve_answers_total", matchers=f'{RUN}, outcome="recorded"'),
                "may train",
            ),
        ),
        lines(
            "Spool",
            "Answers on the generators' disks that Kafka has not confirmed.",
            "suffix: records",
            query(f"rollstream_serve_spool_records{{{RUN}}}", _FOR_EACH),
        ),
        lines(
            "Spool, share of its bound",
            "From seven eighths on no new calls are taken, unless the settings say so.",
            "percentunit",
            query(f"rollstream_serve_spool_bytes{{{RUN}}} / rollstream_serve_spool_limit_bytes{{{RUN}}}", _FOR_EACH),
        ),
        lines(
            "Age of the oldest in the spool",
            "How long it has waited for the broker.",
            "s",
            query(
                f"time() - (rollstream_serve_spool_oldest_timestamp_seconds{{{RUN}}} > 0)",
                _FOR_EACH,
            ),
        ),
        lines(
            "Published from the spool",
            "Answers that Kafka has confirmed. Hooks that raised and damaged spools beside them.",
            "none",
            query(rate("rollstream_serve_published_total"), "published a second"),
            query(rate("rollstream_serve_hook_failures_total"), "hooks that raised a second"),
            query(rate("rollstream_serve_spool_damaged_total"), "damaged spools a second"),
        ),
    )


def _servers() -> Row:
    return Row(
        "HTTP servers",
        lines(
            "Refused or cut",
            "Requests and connections that took too much time, bytes or places, had no key, or came too often.",
            "suffix: requests/s",
            rates("rollstream_http_refused_total", "server", "reason"),
        ),
        lines(
            "Connections and calls",
            "Open connections, and calls in work.",
            "none",
            query(f"sum by (server) (rollstream_http_connections{{{RUN}}})", "connections of {{server}}"),
            query(f"sum by (server) (rollstream_http_calls_in_work{{{RUN}}})", "calls of {{server}}"),
        ),
        lines(
            "Bodies in memory",
            "Bytes of the bodies of calls in work.",
            "bytes",
            query(f"sum by (server) (rollstream_http_bodies_bytes{{{RUN}}})", "{{server}}"),
        ),
        lines(
            "Ingest: confirmed",
            "Records that the broker confirmed, and what came again. Each was answered with 202.",
            "suffix: records/s",
            query(rate("rollstream_ingest_accepted_total", "kind"), "{{kind}}"),
            query(rate("rollstream_ingest_repeated_total", "kind"), "{{kind}} again"),
        ),
        lines(
            "Ingest: refused",
            "Requests that were not taken, by why. not_confirmed: the broker did not answer in time.",
            "suffix: requests/s",
            rates("rollstream_ingest_refused_total", "reason"),
        ),
        lines(
            "Prompts of clients",
            "What the producer of ingested prompts made of them.",
            "suffix: prompts/s",
            rates("rollstream_producer_ingested_prompts_total", "outcome"),
            stacked=True,
        ),
    )


def _feedback() -> Row:
    return Row(
        "Feedback",
        lines(
            "Feedback and its answers",
            "Feedback that was read, that found its answer, and that changes no reward.",
            "suffix: records/s",
            query(rate("rollstream_feedback_read_total"), "read"),
            query(rate("rollstream_feedback_matched_total"), "found its answer"),
            query(rate("rollstream_feedback_ignored_total"), "changes nothing"),
            query(rate("rollstream_feedback_unmatched_total"), "given up"),
        ),
        lines(
            "Why feedback does not count",
            "Ignored or given up, by why. Each that is given up is a dead letter.",
            "suffix: records/s",
            query(rate("rollstream_feedback_ignored_total", "reason"), "ignored: {{reason}}"),
            query(rate("rollstream_feedback_unmatched_total", "reason"), "given up: {{reason}}"),
        ),
        lines(
            "Delay of feedback",
            "From an answer to the feedback on it.",
            "s",
            *percentiles("rollstream_feedback_delay_seconds"),
        ),
        lines(
            "What became of answers",
            "Answers that are done with: trained, or why not.",
            "suffix: answers/s",
            rates("rollstream_feedback_answers_total", "outcome"),
            stacked=True,
        ),
        lines(
            "Answers in the store",
            "Waiting: for feedback. Settled: they have a reward, and wait for room in the share.",
            "suffix: answers",
            query(f"sum(rollstream_feedback_waiting_answers{{{RUN}}})", "waiting"),
            query(f"sum(rollstream_feedback_settled_answers{{{RUN}}})", "settled"),
        ),
        lines(
            "Store, share of its bound",
            "When it is full the oldest answers are left out, counted as overflow.",
            "percentunit",
            query(
                f"rollstream_feedback_store_bytes{{{RUN}}} / rollstream_feedback_store_limit_bytes{{{RUN}}}", _FOR_EACH
            ),
        ),
    )


def _training() -> Row:
    return Row(
        "Training on answers",
        number(
            "Records behind",
            "Records of feedback and serve-scored that the producer has not read.",
            "suffix: records",
            f"sum(rollstream_feedback_behind_records{{{RUN}}})",
            bad_from=10_000,
        ),
        number(
            "Stores begun anew",
            "Stores that were made again from the topics within the time of the dashboard.",
            "suffix: stores",
            f"sum(increase(rollstream_feedback_store_rebuilt_total{{{RUN}}}[$__range]))",
        ),
        lines(
            "Groups of one published",
            "Answers with their reward, put on scored.",
            "suffix: groups/s",
            query(rate("rollstream_feedback_published_total"), "published"),
        ),
        lines(
            "Cycles whose states train",
            "Answers to clients that the producer of states has read, by what became of the states of their cycles.",
            "suffix: answers/s",
            rates("rollstream_states_rollouts_total", "outcome"),
            stacked=True,
        ),
        lines(
            "Share of answers to clients in a step",
            "Of the trained samples of the newest step.",
            "percentunit",
            query(f"max(rollstream_trainer_served_ratio{{{RUN}}})", "of a step"),
        ),
        lines(
            "Reward of answers, and versions",
            "Mean reward of the trained groups of one. The newest version stands beside it, so that its course can be "
            "read against the versions.",
            "none",
            query(f"max(rollstream_trainer_ones_reward_mean{{{RUN}}})", "reward"),
            query(f"max(rollstream_trainer_weight_version{{{RUN}}})", "newest version"),
        ),
        lines(
            "Policy lag of answers",
            "Optimizer steps between the weights that answered and those that train, at most max_served_lag.",
            "suffix: steps",
            query(f"max(rollstream_trainer_served_policy_lag_mean{{{RUN}}})", "mean"),
            query(f"max(rollstream_trainer_served_policy_lag_max{{{RUN}}})", "most"),
        ),
    )
