"""`rollstream generate-rollouts`, also `generate-rollouts`: responses to the prompts of a file, without rewards."""

import click

from rollstream.cli.command_options import options_of
from rollstream.offline.options import GenerateOptions


@click.command("generate-rollouts")
@options_of(GenerateOptions)
def command(options: GenerateOptions) -> None:
    """Generate responses to the prompts of a file, and save them without rewards.

    Called again, the same command goes on where it ended, and asks for what failed. The variable LITELLM_API_KEY is
    sent to the server as the key.
    """
    from rollstream.cli.collecting import stop_on_signals
    from rollstream.offline.presets.generate import generate_rollouts
    from rollstream.process.terminal import say

    raise SystemExit(generate_rollouts(options, stop_on_signals(), say).exit_code)
