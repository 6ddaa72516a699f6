"""Shows the loop: while it runs a live table on a terminal, a line every 10 s elsewhere; at its end a picture."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rollstream.local.demo.watch import LoopState
from rollstream.local.keep_alive import StageState
from rollstream.local.supervisor import StageStatus, Supervisor
from rollstream.schemas.ledger import LedgerEntry

_LINE_EVERY_SECONDS = 10.0
_WIDTH = 40
_BARS = "▁▂▃▄▅▆▇█"
_COLORS = {StageState.RUNNING: "green", StageState.WAITING: "yellow", StageState.FINISHED: "blue"}


class View:
    """A live table; lines if the output is no terminal."""

    def __init__(self, console: Console, supervisor: Supervisor, num_steps: int) -> None:
        self._console = console
        self._supervisor = supervisor
        self._num_steps = num_steps
        self._next_line = 0.0
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, state: LoopState) -> None:
        if self._live:
            bar = ProgressBar(total=self._num_steps, completed=state.step, width=60)
            tables = _progress(state, self._num_steps), _stages(self._supervisor.statuses())
            self._live.update(Group(bar, *tables), refresh=True)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_EVERY_SECONDS
            self._console.print(plain_line(state, self._num_steps), highlight=False, soft_wrap=True)


def plain_line(state: LoopState, num_steps: int) -> str:
    """The state of the loop in one line, for logs."""
    recent = state.rewards[-5:]
    reward = sum(recent) / len(recent) if recent else float("nan")
    lag = state.metric("policy_lag_mean")
    return (
        f"step {state.step}/{num_steps}  reward {reward:.3f}  lag {lag if lag is not None else float('nan'):.1f}  "
        f"version {state.version_published} published, {state.version_applied} applied  "
        f"groups {state.groups_trained} trained, {state.groups_dropped} dropped"
    )


def _sparkline(values: Sequence[float]) -> str:
    """Values between 0 and 1 as bars, at most `_WIDTH`; each bar is the mean of neighboring values."""
    if not values:
        return ""
    size = -(-len(values) // _WIDTH)
    chunks = [values[start : start + size] for start in range(0, len(values), size)]
    means = [min(1.0, max(0.0, sum(chunk) / len(chunk))) for chunk in chunks]
    return "".join(_BARS[min(len(_BARS) - 1, int(mean * len(_BARS)))] for mean in means)


def _progress(state: LoopState, num_steps: int) -> Table:
    table = Table(show_header=False, box=None)
    recent = state.rewards[-5:]
    reward = f"{sum(recent) / len(recent):.3f}" if recent else "-"
    table.add_row("step", f"{state.step} of {num_steps}")
    table.add_row("reward", f"{reward}  {_sparkline(state.rewards)}")
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


def draw(steps: Sequence[LedgerEntry], path: Path) -> None:
    """Draw reward, policy lag and tokens/s of the surviving steps, given in their order."""
    import matplotlib

    # A backend that needs no screen.
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 1, figsize=(8, 8), sharex=True, constrained_layout=True)
    panels = (
        ("reward_mean", "reward (mean of the step)", "tab:green"),
        ("policy_lag_mean", "policy lag (optimizer steps)", "tab:orange"),
        ("generated_tokens_per_second", "completion tokens/s", "tab:blue"),
    )
    numbers = [entry.step for entry in steps]
    for axis, (metric, label, color) in zip(axes, panels, strict=True):
        values = [entry.metrics.get(metric, float("nan")) for entry in steps]
        axis.plot(numbers, values, color=color, linewidth=1)
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    axes[1].plot(numbers, [entry.metrics.get("policy_lag_max", float("nan")) for entry in steps], "k:", linewidth=1)
    axes[-1].set_xlabel("optimizer step")
    figure.suptitle("rollstream demo")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
