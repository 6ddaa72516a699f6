"""What the demo tells a person around the run: what will happen, what happened, and what to try next."""

import logging
from pathlib import Path

from rich.console import Console

from rollstream.environments import sort_digits
from rollstream.local.demo.conduct import DemoResult, run_demo
from rollstream.local.demo.options import DemoOptions
from rollstream.local.demo.table import final_table
from rollstream.local.doctor import list_gpus


def show_demo(demo: DemoOptions) -> None:
    """Run the demo with its story on the terminal; its own log goes to `<run_dir>/logs/demo.log`."""
    _log_to(demo.run_dir / "logs" / "demo.log")
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
    console.print(final_table(result.summary))
    if demo.kill:
        console.print(
            f"{demo.kill} was killed in mid-run: {result.summary.groups_lost} groups lost, "
            f"{result.summary.rollouts_trained_twice} rollouts trained twice"
        )
    _say_what_next(demo, result, console)


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
        console.print(
            f"\nKafka and Redis still run; stop them: {command} down --run-dir {demo.run_dir}", soft_wrap=True
        )


def _log_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=path, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", force=True
    )
