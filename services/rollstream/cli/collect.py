"""`rollstream collect`: rollouts from a file or an environment to a file, without Kafka."""

from pathlib import Path
from typing import Any

import click

from rollstream.cli.options import FiniteRange, whole


@click.command("collect")
@click.argument("source")
@click.option("--output", required=True, type=click.Path(path_type=Path), help=".jsonl, .parquet, or a directory.")
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="TOML file with [generator.engine].")
@click.option("--url", "urls", multiple=True, help="OpenAI-compatible server instead; may be repeated.")
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
@click.option("--max-attempts", type=click.IntRange(1, 254), default=3, show_default=True, help="At a failed sample.")
@click.option("--overwrite", is_flag=True, help="Begin anew: remove what an earlier call collected there.")
def command(
    config: Path | None, urls: tuple[str, ...], model: str | None, api_key_variable: str | None, **options: Any
) -> None:
    """Ask the tasks of SOURCE, a file or an environment's name, and write the rollouts to a file.

    Called again, the same command goes on where it ended, and asks for what failed.
    """
    from rollstream.cli.collecting import chosen_engine, declared_in, say, stop_on_signals
    from rollstream.collect.command import CollectOptions, run_collect

    engine = chosen_engine(config, urls, model, api_key_variable, concurrency=options["concurrency"])
    chosen = CollectOptions(engine=engine, **declared_in(config), **options)
    raise SystemExit(run_collect(chosen, stop_on_signals(), say).exit_code)
