"""At a glance: is it learning, is anything lost, who waits for whom, what does a token cost?"""

from grafana_foundation_sdk.builders import dashboard

from helm.dashboards.newest_step import PHASES, times_since_step
from helm.dashboards.parts import RUN, Panel, Row, board, lines, number, query, rate, words

_LINEAGE = """\
What a step was made of, and what became of one rollout:

```
rollstream lineage STEP
rollstream lineage ROLLOUT_ID
```

Where the run stands, and its newest versions:

```
rollstream status
rollstream weights list
```
"""


def make() -> dashboard.Dashboard:
    """The dashboard to look at first."""
    return board(
        "overview",
        "Overview",
        "Is it learning, is anything lost, who waits for whom, what does a token cost?",
        [_learning(), _losses(), _waits(), _cost(), _processes()],
    )


def _learning() -> Row:
    return Row(
        "Is it learning?",
        lines(
            "Reward",
            "Mean over the completed samples of all groups that closed since the step before, trained or dropped. "
            "In rewards of the environment.",
            "none",
            query(f"rollstream:reward_mean:step{{{RUN}}}", "mean reward"),
            width=12,
        ),
        lines(
            "Steps",
            "Optimizer steps an hour. Close to 0 while groups are open means that the run stands still.",
            "suffix: steps/h",
            query(
                "3600 * " + rate("rollstream_trainer_ledger_entries_total", matchers=f'{RUN}, kind="step"'),
                "steps an hour",
            ),
            width=6,
        ),
        words("Where a step came from", _LINEAGE, width=6),
        *_newest_step(),
        *_signs(),
    )


def _newest_step() -> list[Panel]:
    return [
        number(
            "Optimizer step",
            "Steps on the surviving branch.",
            "none",
            f"max(rollstream_trainer_step{{{RUN}}})",
            width=3,
        ),
        number(
            "Newest weight version",
            "Versions only grow; a restart or rollback makes one too.",
            "none",
            f"max(rollstream_trainer_weight_version{{{RUN}}})",
            width=3,
        ),
        *times_since_step(width=3),
    ]


def _signs() -> list[Panel]:
    return [
        number(
            "Entropy",
            "Of the policy on the trained tokens of the newest step. Near 0 nothing is explored any more.",
            "suffix: nats",
            f"max(rollstream:entropy:step{{{RUN}}})",
            width=3,
        ),
        number(
            "Groups without spread",
            "Share of the groups of the past hour with an advantage of 0 on all that trains: they teach nothing.",
            "percentunit",
            f"max(rollstream:no_spread:ratio_rate1h{{{RUN}}})",
            bad_from=0.9,
            width=3,
        ),
        number(
            "Cut-off samples",
            "Share of the samples since the step before the newest that ended at their token limit.",
            "percentunit",
            f"max(rollstream:truncated_ratio:step{{{RUN}}})",
            bad_from=0.3,
            width=3,
        ),
        number(
            "Alerts that fire",
            "Alerts of rollstream for this run. Each has a runbook.",
            "none",
            f'count(ALERTS{{{RUN}, alertname=~"Rollstream.+", alertstate="firing"}}) or vector(0)',
            bad_from=1,
            width=3,
        ),
    ]


def _losses() -> Row:
    return Row(
        "Is anything lost?",
        number(
            "Groups lost",
            "In the time shown: groups that lacked samples which no stage would deliver. Must be 0.",
            "suffix: groups",
            f"sum(increase(rollstream:groups_lost:zero_filled{{{RUN}}}[$__range]))",
            bad_from=0.5,
        ),
        number(
            "Groups refused",
            "In the time shown: groups that no trainer could use, whatever the policy answered.",
            "suffix: groups",
            f"sum(increase(rollstream:groups_refused:zero_filled{{{RUN}}}[$__range]))",
            bad_from=0.5,
        ),
        number(
            "Dead letters",
            "In the time shown: messages that could not be handled. `rollstream dead-letters list` shows them.",
            "suffix: letters",
            f"sum(increase(rollstream:dead_letters:zero_filled{{{RUN}}}[$__range]))",
            bad_from=0.5,
        ),
        number(
            "Samples unresolved",
            "Share of samples that infrastructure left without an answer, in the past half hour.",
            "percentunit",
            f'max(rollstream:samples:ratio_rate30m{{{RUN}, status="unresolved"}})',
            bad_from=0.05,
        ),
        number(
            "Rewards that failed",
            "Share of rollouts without a reward for a fault of the environment, in the past half hour.",
            "percentunit",
            f"max(rollstream:reward_failures:ratio_rate30m{{{RUN}}})",
            bad_from=0.02,
        ),
        number(
            "Groups too old",
            "Share of the groups closed in the past hour that were older than max_policy_lag.",
            "percentunit",
            f"max(rollstream:too_old:ratio_rate1h{{{RUN}}})",
            bad_from=0.05,
        ),
    )


def _waits() -> Row:
    return Row(
        "Who waits for whom?",
        lines(
            "Where open groups wait",
            "Groups that are submitted and not closed. The stage at which most of them wait is the one that the "
            "others wait for. Between generators and trainer means: at the scorers, or still without some samples.",
            "suffix: groups",
            query(f"sum(rollstream:groups_at_generators{{{RUN}}})", "at the generators"),
            query(
                f"clamp_min(sum(rollstream:groups_upstream{{{RUN}}})"
                f" - (sum(rollstream:groups_at_generators{{{RUN}}}) or vector(0)), 0)",
                "between generators and trainer",
            ),
            query(f"sum(rollstream_trainer_ready_groups{{{RUN}}})", "complete, wait for a step"),
            stacked=True,
        ),
        lines(
            "Credit",
            "Groups that producers have open, and how many they may have. When both are equal, producers wait for "
            "the trainer, as they should.",
            "suffix: groups",
            query(f"sum(rollstream_producer_outstanding_groups{{{RUN}}})", "open"),
            query(f"sum(rollstream_producer_credit_share_groups{{{RUN}}})", "allowed"),
        ),
        lines(
            "What the trainer does",
            "Shares of the wall time of the newest step, which begins where the training of the step before ends: "
            "without a record to read, held back for groups that it would have made too old, at work (publishing "
            "the step before is its first part). While it is held back it may wait for records too.",
            "percentunit",
            query(_share_of_step("waiting"), "waits for records"),
            query(_share_of_step("waiting_for_late"), "waits for late groups"),
            query(_share_of_step(*PHASES), "works"),
        ),
    )


def _share_of_step(*phases: str) -> str:
    """Of the step's wall time; from one scrape, since of two the one may be of the step before."""
    spent = " + ".join(f"rollstream_trainer_{phase}_seconds{{{RUN}}}" for phase in phases)
    return f"max(({spent}) / (rollstream_trainer_step_seconds{{{RUN}}} > 0))"


def _cost() -> Row:
    return Row(
        "What does a token cost?",
        lines(
            "Tokens",
            "Tokens that generators sample, and that steps train on. The rest is dropped, cut off or on its way.",
            "suffix: tokens/s",
            query(f"sum(rollstream:completion_tokens:rate5m{{{RUN}}})", "sampled"),
            query(f"sum(rollstream:trained_tokens:rate5m{{{RUN}}})", "trained"),
        ),
        lines(
            "Process hours per million trained tokens",
            "Hours of generator and trainer processes. Times the price of the machine or GPU that each has for an "
            "hour, this is the price of a million trained tokens.",
            "h",
            query(
                f'sum by (stage) (up{{{RUN}, stage=~"generator|trainer"}}) / 3600 * 1e6'
                f" / ignoring (stage) group_left () (sum(rollstream:trained_tokens:rate5m{{{RUN}}}) > 0)",
                "{{stage}}",
            ),
            stacked=True,
        ),
        lines(
            "CPU time per trained token",
            "Seconds of CPU of each stage, without child processes such as vLLM's engine.",
            "s",
            query(
                f"sum by (stage) (rollstream:cpu_seconds:rate5m{{{RUN}}})"
                f" / ignoring (stage) group_left () (sum(rollstream:trained_tokens:rate5m{{{RUN}}}) > 0)",
                "{{stage}}",
            ),
            stacked=True,
        ),
    )


def _processes() -> Row:
    return Row(
        "Processes",
        lines(
            "Processes that answer",
            "Of each stage, processes that Prometheus can scrape.",
            "none",
            query(f"sum by (stage) (up{{{RUN}}})", "{{stage}}"),
            width=6,
        ),
        lines(
            "Processes that are ready",
            "Of each stage, processes whose /readyz is fine. One that loads a model or ends is not ready.",
            "none",
            query(f"sum by (stage) (rollstream_process_ready{{{RUN}}})", "{{stage}}"),
            width=6,
        ),
        lines(
            "Memory",
            "Resident memory of each process, without its children.",
            "bytes",
            query(f"process_resident_memory_bytes{{{RUN}}}", "{{stage}} {{instance}}"),
            width=6,
        ),
        lines(
            "Open files",
            "File handles of each process, connections to brokers included.",
            "none",
            query(f"process_open_fds{{{RUN}}}", "{{stage}} {{instance}}"),
            width=6,
        ),
    )
