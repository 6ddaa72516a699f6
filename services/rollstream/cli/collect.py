"""`rollstream collect`: rollouts from a file, an environment or a topic to files, at once or as rows arrive."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rollstream.cli.collecting import attempt_options
from rollstream.cli.options import FiniteRange, Period, whole

if TYPE_CHECKING:
    from rollstream.offline.continuous.production import Schedule


_OF_PARTS = ("every", "watch", "to", "kind", "remember", "health_port", "health_host", "accept_loss")


@click.command("collect")
@click.argument("source")
@click.option("--output", required=True, type=click.Path(path_type=Path), help=".jsonl, .parquet, or a directory.")
@click.option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), help="TOML file: engine, environments, [kafka]."
)
@click.option("--url", "urls", multiple=True, help="OpenAI-compatible server; may be repeated.")
@click.option("--model", help="Model name on the servers; without --url a model directory, run in this process.")
@click.option("--api-key-variable", help="Environment variable that holds the servers' key.")
@click.option("--environment", help="Environment whose rubric scores; default: the source, if it is one.")
@click.option("--agent", default="single_turn", show_default=True, help="How a task becomes turns.")
@click.option("--split", type=click.Choice(["train", "validate", "evaluate"]), default="train", show_default=True)
@click.option("--num-tasks", type=whole(1), default=100, show_default=True, help="Tasks to take of an environment.")
@click.option("--prompt-key", default="prompt", show_default=True, help="Column with text or a list of messages.")
@click.option("--num-samples", type=whole(1), default=1, show_default=True, help="Samples of each task.")
@click.option("--concurrency", type=whole(1), default=64, show_default=True, help="Most samples in flight.")
@click.option("--temperature", type=FiniteRange(0), help="Default: the environment's, else 1.")
@click.option("--top-p", type=FiniteRange(0, 1, min_open=True), help="Default: the environment's, else 1.")
@click.option("--max-tokens", type=whole(1), help="Most tokens of a model call; default: the environment's, else 256.")
@click.option("--stop", multiple=True, help="Text that ends a response; may be repeated.")
@click.option("--seed", type=whole(0), help="For the tasks of an environment, and for sampling.")
@click.option("--deadline", type=FiniteRange(0.001), default=600.0, show_default=True, help="Seconds of a sample.")
@click.option("--scoring-processes", type=click.IntRange(1, 64), default=1, show_default=True)
@attempt_options
@click.option("--overwrite", is_flag=True, help="Begin anew: remove what an earlier call collected there.")
@click.option("--every", type=Period(), help="Look for new rows so often, e.g. 6h, and write them as parts.")
@click.option("--watch", is_flag=True, help="Look for new rows every 5 s, or as --every says.")
@click.option("--to", help="topic:NAME, which gets each row of the parts too, as JSON.")
@click.option("--format", "kind", type=click.Choice(["jsonl", "parquet", "hf"]), default="jsonl", show_default=True,
              help="Of parts; else the output's name decides.")  # fmt: skip
@click.option("--remember", type=Period(), default="30d", show_default=True,
              help="How long a row is known after it was last met, and after its file was gone.")  # fmt: skip
@click.option("--health-port", type=click.IntRange(0, 65535), help="Serve /metrics, /livez and /readyz; 0: a free one.")
@click.option("--health-host", default="0.0.0.0", show_default=True, help="Address to serve them at.")
@click.option("--accept-loss", is_flag=True, help="Go on although the topic deleted messages that were never read.")
def command(
    config: Path | None, urls: tuple[str, ...], model: str | None, api_key_variable: str | None, **options: Any
) -> None:
    """Ask the tasks of SOURCE, and write the rollouts: a file, hf://OWNER/NAME, an environment's name, or topic:NAME.

    Called again, the same command goes on where it ended, and asks for what failed. With --every, --watch, --to or a
    topic, the output is a directory: each look adds a part with the rows that were never taken before.
    """
    from rollstream.cli.collecting import chosen_engine, cluster_in, declared_in, say, stop_on_signals
    from rollstream.offline.command import CollectOptions, run_collect

    parts = {name: options.pop(name) for name in _OF_PARTS}
    engine = chosen_engine(
        config, urls, model, api_key_variable, concurrency=options["concurrency"], deadline=options["deadline"]
    )
    chosen = CollectOptions(engine=engine, **declared_in(config), **options)
    stop = stop_on_signals()
    if not (parts["every"] or parts["watch"] or parts["to"] or chosen.source.startswith("topic:")):
        if parts["health_port"] is not None:
            raise click.UsageError(
                "--health-port goes with --every, --watch, --to or a topic: one collection just ends"
            )
        raise SystemExit(run_collect(chosen, stop, say).exit_code)
    from rollstream.offline.continuous.run import ContinuousOptions, run_continuous
    from rollstream.offline.continuous.watch import HealthPlace

    port = parts["health_port"]
    exit_code = run_continuous(
        ContinuousOptions(
            collect=chosen, schedule=_schedule(parts["every"], parts["watch"], parts["remember"]), kind=parts["kind"],
            to=parts["to"], cluster=cluster_in(config), accept_loss=parts["accept_loss"],
            health=None if port is None else HealthPlace(host=parts["health_host"], port=port),
        ),
        stop, say,
    )  # fmt: skip
    is_endless = parts["every"] or parts["watch"]
    raise SystemExit(exit_code if not stop.is_asked else 0 if is_endless else 130)


def _schedule(every: float | None, watch: bool, remember: float) -> "Schedule":
    from rollstream.offline.continuous.production import Schedule
    from rollstream.offline.continuous.run import WATCH_SECONDS

    seconds = every if every is not None or not watch else WATCH_SECONDS
    return Schedule(every_seconds=seconds, waits_first=not watch, remember_days=remember / 86400)
