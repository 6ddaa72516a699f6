"""The live table of the demo, and the table that it ends with."""

from collections.abc import Sequence

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rollstream.local.demo.summary import Summary
from rollstream.local.demo.watch import LoopState
from rollstream.local.supervisor import StageState, StageStatus

_BARS = "▁▂▃▄▅▆▇█"
_COLORS = {StageState.RUNNING: "green", StageState.WAITING: "yellow", StageState.FINISHED: "blue"}


def live_table(state: LoopState, stages: Sequence[StageStatus], num_steps: int) -> Group:
    """Progress, the loop's figures and the four processes."""
    return Group(
        ProgressBar(total=num_steps, completed=state.step, width=60), _figures(state, num_steps), _stages(stages)
    )


def plain_line(state: LoopState, num_steps: int) -> str:
    """The same in one line, for logs."""
    recent = state.rewards[-5:]
    reward = sum(recent) / len(recent) if recent else float("nan")
    lag = state.metric("policy_lag_mean")
    return (
        f"step {state.step}/{num_steps}  reward {reward:.3f}  lag {lag if lag is not None else float('nan'):.1f}  "
        f"version {state.version_published} published, {state.version_applied} applied  "
        f"groups {state.groups_trained} trained, {state.groups_dropped} dropped"
    )


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Values between 0 and 1 as bars, averaged into at most `width` of them."""
    if not values:
        return ""
    size = -(-len(values) // width)
    chunks = [values[start : start + size] for start in range(0, len(values), size)]
    means = [min(1.0, max(0.0, sum(chunk) / len(chunk))) for chunk in chunks]
    return "".join(_BARS[min(len(_BARS) - 1, int(mean * len(_BARS)))] for mean in means)


def final_table(summary: Summary) -> Table:
    """What the run did."""
    table = Table(title="What happened", show_header=False, title_justify="left")
    rows = {
        "held-out accuracy (greedy)": f"{summary.eval_before:.3f} → {summary.eval_after:.3f}",
        "training reward (first, last tenth)": f"{summary.reward_first:.3f} → {summary.reward_last:.3f}",
        "optimizer steps": f"{summary.steps} ({summary.steps_per_minute:.1f} a minute)",
        "groups": f"{summary.groups_submitted} submitted = {summary.groups_trained} trained + "
        f"{sum(summary.groups_dropped.values())} dropped + {summary.groups_in_flight} in flight",
        "dropped because": ", ".join(f"{reason} {count}" for reason, count in summary.groups_dropped.items()) or "-",
        "lost / trained twice": f"{summary.groups_lost} / {summary.rollouts_trained_twice}",
        "policy lag (mean, max)": f"{summary.policy_lag_mean:.2f}, {summary.policy_lag_max}",
        "weight versions": f"{summary.weight_versions_published} published, {summary.weight_versions_applied} applied",
        "rollouts across an update": str(summary.rollouts_with_two_versions),
        "completion tokens/s": f"{summary.tokens_per_second:.0f}",
        "dead letters": str(summary.dead_letters),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _figures(state: LoopState, num_steps: int) -> Table:
    table = Table(show_header=False, box=None)
    recent = state.rewards[-5:]
    reward = f"{sum(recent) / len(recent):.3f}" if recent else "-"
    table.add_row("step", f"{state.step} of {num_steps}")
    table.add_row("reward", f"{reward}  {sparkline(state.rewards)}")
    table.add_row("policy lag", _number(state.metric("policy_lag_mean"), ".2f"))
    table.add_row("tokens/s", _number(state.metric("generated_tokens_per_second"), ".0f"))
    table.add_row("weight version", f"{state.version_published} published, {state.version_applied} applied")
    table.add_row("groups", f"{state.groups_trained} trained, {state.groups_dropped} dropped")
    return table


def _stages(stages: Sequence[StageStatus]) -> Table:
    table = Table(box=None)
    for title in ("stage", "state", "pid", "restarts", "log"):
        table.add_column(title)
    for stage in stages:
        state = Text(stage.state.value, style=_COLORS.get(stage.state, "red"))
        table.add_row(stage.name, state, str(stage.pid or "-"), str(stage.restarts), str(stage.log))
    return table


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
