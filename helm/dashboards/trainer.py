"""Where the trainer's time goes, and how learning behaves."""

from grafana_foundation_sdk.builders import dashboard

from helm.dashboards.newest_step import PHASES, times_since_step
from helm.dashboards.parts import RUN, Panel, Row, board, lines, number, query, rate, words

_LINEAGE = """\
The rollouts that a step trained on, with their versions and rewards:

```
rollstream lineage STEP
```

What the step reports, and whether its version survived:

```
rollstream weights show VERSION
```

Go back to an older version, while no trainer runs:

```
rollstream weights rollback VERSION
```
"""


def make() -> dashboard.Dashboard:
    """Time, optimization, on- and off-policy numbers of the newest step."""
    return board(
        "trainer",
        "Trainer",
        "Where the trainer's time goes, and how learning behaves. Figures are those of the newest step.",
        [_state(), _time(), _optimization(), _policies()],
    )


def _state() -> Row:
    return Row(
        "State",
        *times_since_step(width=6),
        number(
            "Restarts and rollbacks",
            "Since the run began. A trainer that ends in order leaves a restart too, if it made steps.",
            "none",
            f"sum(rollstream:interruptions{{{RUN}}})",
            width=6,
        ),
        number(
            "Rollbacks",
            "Of these, how often somebody went back to an older version.",
            "none",
            f'sum(rollstream:interruptions{{{RUN}, kind="rollback"}})',
            width=6,
        ),
    )


def _time() -> Row:
    return Row(
        "Time",
        lines(
            "Time of a step",
            "Seconds of the newest step without waiting, by what they were spent on.",
            "s",
            *(query(f"rollstream_trainer_{name}_seconds{{{RUN}}}", legend) for name, legend in PHASES.items()),
            stacked=True,
        ),
        lines(
            "Time between steps",
            "Wall time since the step before. Of it, without a record to read, and held back for late groups.",
            "s",
            query(f"rollstream_trainer_step_seconds{{{RUN}}}", "all"),
            query(f"rollstream_trainer_waiting_seconds{{{RUN}}}", "waits for records"),
            query(f"rollstream_trainer_waiting_for_late_seconds{{{RUN}}}", "waits for late groups"),
        ),
        lines(
            "Tokens of the newest step",
            "Tokens generated for the groups that closed since the step before, and trained tokens, by the wall "
            "time between both.",
            "suffix: tokens/s",
            query(f"rollstream_trainer_generated_tokens_per_second{{{RUN}}}", "generated"),
            query(f"rollstream_trainer_trained_tokens_per_second{{{RUN}}}", "trained"),
        ),
        lines(
            "Trained tokens",
            "Tokens in the loss of committed steps. Steps that a restart or rollback cuts are counted too.",
            "suffix: tokens/s",
            query(rate("rollstream_trainer_trained_tokens_total"), "trained"),
            query(rate("rollstream_trainer_generated_tokens_total"), "of closed groups"),
        ),
        lines(
            "Step",
            "Optimizer steps on the surviving branch. It goes back at a rollback, or at a restart that cuts steps.",
            "none",
            query(f"max(rollstream_trainer_step{{{RUN}}})", "step"),
        ),
        words("From a step to its rollouts", _LINEAGE),
    )


def _optimization() -> Row:
    return Row(
        "Optimization",
        _of_step(
            "Loss",
            "Mean over the updates of the step. Its sign and size say little by themselves.",
            "none",
            loss="loss",
        ),
        _of_step(
            "Gradient norm",
            "Before it is scaled down to max_grad_norm. A growth over many steps often comes before a collapse.",
            "none",
            grad_norm="norm",
        ),
        _of_step("Learning rate", "Of the newest step.", "none", learning_rate="learning rate"),
        _of_step(
            "Entropy over time",
            "On the trained tokens. Near 0 samples of a group become equal and nothing is learned. Beside it what a "
            "bonus for it takes off the loss.",
            "suffix: nats",
            entropy="entropy",
            entropy_bonus="bonus",
        ),
        _of_step(
            "Clipped tokens",
            "Share of the tokens whose importance ratio was clipped. With one minibatch a step and "
            'old = "proximal" nothing is.',
            "percentunit",
            clip_fraction_low="below",
            clip_fraction_high="above",
        ),
        _of_step(
            "Dropped and flat groups",
            "Of the groups that closed since the step before: those not trained on, and those without an advantage "
            "on anything that trains, mostly since all rewards are equal.",
            "percentunit",
            dropped_ratio="dropped",
            zero_std_ratio="without spread",
        ),
        lines(
            "Missing samples",
            "Share of the samples without a reward in groups that closed since the step before, by their failure. "
            "The others of a group train without them: if wrong answers fail to be scored more often than right "
            "ones, their advantages are wrong.",
            "percentunit",
            query(f"rollstream_trainer_missing_ratio{{{RUN}}} > 0", "{{code}}"),
            stacked=True,
        ),
    )


def _policies() -> Row:
    return Row(
        "Sampling policy against trained policy",
        _of_step(
            "Mismatch KL",
            "At policy lag 0 it compares the engine's probabilities with the trainer's and should be about 0. "
            "Above lag 0 it also shows how far the policy has moved. Beside it the KL from a reference model.",
            "suffix: nats",
            mismatch_kl_lag_0="lag 0",
            mismatch_kl_lagged="lag above 0",
            kl="from the reference model",
        ),
        _of_step(
            "Importance weights",
            "Proximal ÷ behavior probability of the tokens, at most importance_cap. 1 means no difference.",
            "none",
            importance_weight_mean="mean",
            importance_weight_max="most",
        ),
        _of_step(
            "Effective samples and capped weights",
            "Share of the tokens that count after weighting, and share of those whose weight was capped or set to 0.",
            "percentunit",
            effective_sample_size_ratio="effective",
            importance_weight_capped_ratio="capped",
            importance_weight_masked_ratio="set to 0",
        ),
    )


def _of_step(title: str, description: str, unit: str, **legends: str) -> Panel:
    queries = (query(f"rollstream_trainer_{name}{{{RUN}}}", legend) for name, legend in legends.items())
    return lines(title, description, unit, *queries)
