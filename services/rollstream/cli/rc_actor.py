"""`rollstream rc-actor`, also `python -m rollstream.rc_actor`: the Reasoning Cache actor against model servers."""

import logging

import click

from rollstream.process.terminal import say


@click.command()
@click.option("--config-name", default="test_rc", show_default=True, help="conf/NAME.yaml here, else a packaged file.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[KEY=VALUE]...")
def command(config_name: str, words: tuple[str, ...]) -> None:
    """Collect reasoning in cycles: output_dir=… me.llm_urls=http://a:8000/v1+http://b:8000/v1 model_path=…

    Groups go to output_dir/streams, or to Kafka. Called again, the same command goes on.
    """
    from rollstream.cli.collecting import stop_on_signals
    from rollstream.rc_actor.actor import run_actor
    from rollstream.rc_actor.reading import read_settings

    # For log_each_n_secs and debug.mode.
    logging.getLogger("rollstream.rc_actor").setLevel(logging.INFO)
    raise SystemExit(run_actor(read_settings(config_name, words), stop_on_signals(), say))
