"""`rollstream rc-actor-local`: the Reasoning Cache actor with vLLM servers that it starts and ends."""

import click

from rollstream.process.terminal import say


@click.command()
@click.option("--config-name", default="test_rc", show_default=True, help="conf/NAME.yaml here, else a packaged file.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[KEY=VALUE]...")
def command(config_name: str, words: tuple[str, ...]) -> None:
    """Start vLLM on port 8080 and up, wait, run the actor, and end all: output_dir=…, model_path=…, world.replicas=2.

    vllm_config.vllm_kwargs.NAME=VALUE is an option of vLLM.
    """
    from rollstream.cli.collecting import stop_on_signals
    from rollstream.rc_actor.local import run_locally

    raise SystemExit(run_locally(config_name, words, stop_on_signals(), say))
