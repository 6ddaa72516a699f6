"""What is trained on: rewards, lengths, lag, and why groups and rollouts are not used; and what evaluations found."""

from grafana_foundation_sdk.builders import dashboard

from helm.dashboards.parts import RUN, Row, board, buckets, lines, percentiles, query, rate, rates


def make() -> dashboard.Dashboard:
    """Rewards, samples, groups, scoring, tasks, evaluations."""
    return board(
        "quality",
        "Data quality",
        "What is trained on: rewards, lengths, lag, and why groups and rollouts are not used.",
        [_rewards(), _groups(), _scoring(), _tasks(), _evaluations()],
    )


def _rewards() -> Row:
    return Row(
        "Rewards and answers",
        lines(
            "Mean reward",
            "Over the completed samples of all groups that closed since the step before, trained or dropped. In "
            "rewards of the environment.",
            "none",
            query(f"rollstream:reward_mean:step{{{RUN}}}", "mean"),
        ),
        lines(
            "Reward functions",
            "Mean of each reward function of the rubric, before its weight, over the same samples.",
            "none",
            query(f"rollstream_trainer_reward_component{{{RUN}}}", "{{component}}"),
        ),
        lines(
            "Completion length",
            "Mean tokens of a completed sample. A length that grows while the reward does not is repetition.",
            "suffix: tokens",
            query(f"rollstream_trainer_completion_tokens_mean{{{RUN}}}", "mean"),
        ),
        lines(
            "Cut-off samples",
            "Share of completed samples that ended at their token limit. Their tokens are not trained on.",
            "percentunit",
            query(f"rollstream_trainer_truncated_ratio{{{RUN}}}", "cut off"),
        ),
        lines(
            "Slowest samples",
            "99th percentile of the time that a completed sample took to generate.",
            "s",
            query(f"rollstream_trainer_rollout_seconds_p99{{{RUN}}}", "99th percentile"),
        ),
        lines(
            "Share of closed groups",
            "Over an hour: groups with an advantage of 0 on all that trains, and groups that were too old.",
            "percentunit",
            query(f"rollstream:no_spread:ratio_rate1h{{{RUN}}}", "without spread"),
            query(f"rollstream:too_old:ratio_rate1h{{{RUN}}}", "too old"),
        ),
    )


def _groups() -> Row:
    return Row(
        "Groups and policy lag",
        lines(
            "Closed groups by outcome",
            "Groups trained on, and groups dropped by reason. The runbook RollstreamGroupsRefused has them.",
            "suffix: groups/s",
            rates("rollstream_trainer_groups_total", "outcome", "reason"),
            width=12,
            stacked=True,
        ),
        lines(
            "Policy lag of samples",
            "Optimizer steps between the weights that sampled and those that are trained, of the newest step.",
            "suffix: steps",
            query(f"rollstream_trainer_policy_lag_mean{{{RUN}}}", "mean"),
            query(f"rollstream_trainer_policy_lag_max{{{RUN}}}", "most"),
            query(f"rollstream_trainer_served_policy_lag_mean{{{RUN}}}", "mean of answers to clients"),
            query(f"rollstream_trainer_served_policy_lag_max{{{RUN}}}", "most of answers to clients"),
            width=12,
        ),
        buckets(
            "Policy lag of tokens",
            "How many trained tokens had which policy lag.",
            "suffix: steps",
            "rollstream_trainer_token_policy_lag_steps",
            width=12,
        ),
        lines(
            "Policy lag of tokens, percentiles",
            "Optimizer steps.",
            "suffix: steps",
            *percentiles("rollstream_trainer_token_policy_lag_steps"),
            width=12,
        ),
        lines(
            "Answers to clients among the trained samples",
            "Share of the newest step.",
            "percentunit",
            query(f"rollstream_trainer_served_ratio{{{RUN}}}", "served"),
            width=12,
        ),
        lines(
            "Reward of groups of one",
            "Mean over the newest step with any. It is what feedback said, if they are answers to clients.",
            "none",
            query(f"rollstream_trainer_ones_reward_mean{{{RUN}}}", "reward"),
            width=12,
        ),
    )


def _scoring() -> Row:
    return Row(
        "Scoring",
        lines(
            "Rollouts by status",
            "Rollouts that scorers handled. Failed and unresolved ones of generators are passed on.",
            "suffix: rollouts/s",
            rates("rollstream_scorer_rollouts_total", "topic", "status"),
            stacked=True,
        ),
        lines(
            "Rollouts without a reward, by why",
            "The codes are explained in the runbooks RollstreamRewardFailures, RollstreamSamplesFailed and "
            "RollstreamSamplesUnresolved. Those of reward_at_timeout took too long; the settings give them a reward.",
            "suffix: rollouts/s",
            rates("rollstream_scorer_failures_total", "code"),
            query(rate("rollstream_scorer_rewards_at_timeout_total"), "reward_at_timeout"),
        ),
        lines(
            "Time to score a batch",
            "From taking a batch to the broker's confirmation of all its results.",
            "s",
            *percentiles("rollstream_scorer_batch_seconds"),
        ),
    )


def _tasks() -> Row:
    return Row(
        "Tasks",
        lines(
            "Tasks by pool",
            "Of producers with a curriculum: tasks by how hard their latest group was. A task is in the pool unseen "
            "until a group of it has closed.",
            "suffix: tasks",
            query(f"rollstream_producer_pool_tasks{{{RUN}}}", "{{pool}}"),
            stacked=True,
        ),
        lines(
            "Prompts by pool",
            "Prompts that producers with a curriculum submit, by the pool that their task was in.",
            "suffix: prompts/s",
            rates("rollstream_producer_pool_prompts_total", "pool"),
            stacked=True,
        ),
        lines(
            "Groups without spread in a row",
            "Of each producer, since the last of its groups that trained. At most_flat_groups it ends.",
            "suffix: groups",
            query(f"rollstream_producer_flat_groups{{{RUN}}}", "{{instance}}"),
        ),
    )


def _evaluations() -> Row:
    return Row(
        "Evaluations",
        lines(
            "Evaluated reward",
            "Mean reward on held-out prompts, with its 95 % interval, of the newest version that rollstream evaluate "
            "--follow has evaluated.",
            "none",
            query(f"rollstream_evaluate_reward{{{RUN}}}", "mean"),
            query(f"rollstream_evaluate_reward_low{{{RUN}}}", "lower end"),
            query(f"rollstream_evaluate_reward_high{{{RUN}}}", "upper end"),
        ),
        lines(
            "pass@k",
            "Probability that at least one of k samples passes, on the same prompts.",
            "percentunit",
            query(f"rollstream_evaluate_pass_at_k_ratio{{{RUN}}}", "pass@{{k}}"),
        ),
        lines(
            "Evaluated prompts by status",
            "Only completed ones count. Failed ones are too long, or their version was gone before its turn came.",
            "suffix: prompts",
            query(f"rollstream_evaluate_prompts{{{RUN}}}", "{{status}}"),
            stacked=True,
        ),
        lines(
            "Evaluated version",
            "The newest version that was evaluated.",
            "none",
            query(f"rollstream_evaluate_weight_version{{{RUN}}}", "version"),
            width=12,
        ),
        lines(
            "Evaluations made and skipped",
            "Versions are skipped that come due while another one is evaluated.",
            "suffix: evaluations/s",
            query(rate("rollstream_evaluate_evaluations_total"), "made"),
            query(rate("rollstream_evaluate_skipped_evaluations_total"), "skipped"),
            width=12,
        ),
    )
