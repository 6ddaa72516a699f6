"""`rollstream collect`: rollouts from a file, an environment or a topic to files, at once or as rows arrive."""

import click

from rollstream.cli.command_options import options_of
from rollstream.offline.options import CollectOptions


@click.command("collect")
@options_of(CollectOptions)
def command(options: CollectOptions) -> None:
    """Ask the tasks of SOURCE, and write the rollouts: a file, hf://OWNER/NAME, an environment's name, or topic:NAME.

    Called again, the same command goes on where it ended, and asks for what failed. With --every, --watch, --to or a
    topic, the output is a directory: each look adds a part with the rows that were never taken before.
    """
    from rollstream.cli.collecting import job_of, stop_on_signals
    from rollstream.process.terminal import say

    job, stop = job_of(options), stop_on_signals()
    if not options.comes_in_parts:
        raise SystemExit(job.run(stop, say).exit_code)
    from rollstream.offline.continuous.run import run_continuous

    exit_code = run_continuous(job, stop, say)
    is_endless = options.every or options.watch
    raise SystemExit(exit_code if not stop.is_asked else 0 if is_endless else 130)
