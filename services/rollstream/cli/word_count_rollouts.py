"""`rollstream word-count-rollouts`, also `word-count-rollouts`: scored rollouts of `word_count` through any server."""

import click

from rollstream.cli.command_options import options_of
from rollstream.offline.options import WordCountOptions


@click.command("word-count-rollouts")
@options_of(WordCountOptions)
def command(options: WordCountOptions) -> None:
    """Ask a model to count words, score its answers, write them as rollouts, and print their statistics.

    What was not answered is asked again by the same command. The variable LITELLM_API_KEY is sent as the key.
    """
    from rollstream.cli.collecting import stop_on_signals
    from rollstream.offline.presets.word_count import collect_word_count
    from rollstream.process.terminal import say

    raise SystemExit(collect_word_count(options, stop_on_signals(), say))
