"""Shows the demo on a terminal: its progress, then a table of what happened, and what to try next."""

import logging
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rollstream.environments import sort_digits
from rollstream.local.demo.conduct import DemoResult, run_demo
from rollstream.local.demo.options import DemoOptions
from rollstream.local.demo.summary import RunSummary
from rollstream.local.doctor import list_gpus
from rollstream.local.run_file import refuse_used
from rollstream.process.heap import expect_many_objects


def show_demo(demo: DemoOptions) -> None:
    """Run the demo and print its progress. Its own log goes to `<run_dir>/logs/demo.log`.

    Raises `ConfigurationError` if the directory is that of another run.
    """
    refuse_used(demo.run_dir)
    _log_to(demo.run_dir / "logs" / "demo.log")
    # The facts of the run, at its end.
    expect_many_objects()
    console = Console()
    for gpu in list_gpus():
        console.print(
            f"[yellow]{gpu} is not used by the default install:[/] `uv sync --no-group cpu --group gpu`, "
            "then `uv run --no-sync rollstream demo`"
        )
    try:
        result = run_demo(demo, console)
    except KeyboardInterrupt:
        console.print(f"\nstopped; nothing runs any more. Logs: {demo.run_dir / 'logs'}")
        raise SystemExit(130) from None
    console.print(_final_table(result.summary))
    if demo.kill:
        console.print(
            f"{demo.kill} was killed during the run: {result.summary.groups_lost} groups lost, "
            f"{result.summary.rollouts_trained_twice} rollouts trained twice"
        )
    _say_what_next(demo, result, console)


def _final_table(summary: RunSummary) -> Table:
    table = Table(title="What happened", show_header=False, title_justify="left")
    rows = {
        "mean held-out reward (greedy)": f"{summary.eval_before:.3f} → {summary.eval_after:.3f}",
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


def _say_what_next(demo: DemoOptions, result: DemoResult, console: Console) -> None:
    config = f"--config {result.config}"
    command = "uv run --no-sync rollstream"
    console.print(f"\n{demo.run_dir / 'reward.png'}, {demo.run_dir / 'summary.json'}\n\nTry next:", highlight=False)
    for line in (
        f"{command} lineage {result.a_rollout} {config}",
        f"{command} tail scored {config}",
        f"edit the reward: {Path(sort_digits.__file__)}",
    ):
        console.print(f"  {line}", highlight=False, soft_wrap=True)
    if demo.keep_up:
        console.print(f"\nTo stop Kafka and Redis: {command} down --run-dir {demo.run_dir}", soft_wrap=True)


def _log_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=path, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", force=True
    )
