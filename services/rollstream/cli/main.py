"""The command `rollstream` and the table of its commands. A command's module is imported only when it is called.

So `rollstream --help` does not wait for heavy libraries.
"""

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from rollstream.schemas.errors import RollstreamError

COMMANDS: Mapping[str, str] = {
    "demo": "Run the whole loop on this machine, with a tiny model that learns within minutes.",
    "up": "Start Kafka and Redis on this machine, without containers.",
    "down": "Stop what `up` started, and keep the data.",
    "status": "Show topics, lag, processes and versions of a run, live.",
    "doctor": "Check whether this machine is ready for a run.",
    "tail": "Print the newest records of a topic, one on each line.",
    "prompt": "Submit a prompt and print its scored answers.",
    "lineage": "Show where a rollout or a step came from and what was made of it.",
    "topics": "Create, describe or delete a run's topics.",
    "schemas": "Check, register or update the record schemas.",
    "weights": "List, show or roll back weight versions.",
    "dead-letters": "List or replay messages that could not be handled.",
    "evaluate": "Score a weight version on held-out prompts.",
    "sft": "Train a model on an environment's demonstrations, as a start for a run.",
    "bench": "Measure one part, mostly against the same work done without rollstream.",
    "producer": "Run the stage that submits prompts.",
    "generator": "Run the stage that turns prompts into rollouts.",
    "scorer": "Run the stage that gives rollouts their rewards.",
    "trainer": "Run the stage that trains and publishes weight versions.",
}


class LazyGroup(click.Group):
    """A group that knows the names and the one-line help of its commands, and imports a command only to run it.

    `lazy`: name → help. `modules`: name → module whose `command` it is.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, str], modules: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module."""
        if cmd_name not in self._lazy:
            return None
        command = importlib.import_module(self._modules[cmd_name]).command
        if not isinstance(command, click.Command):
            raise TypeError(f"{self._modules[cmd_name]}.command is {command!r}, not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._lazy.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but the error for an unknown name lists the known ones."""
        if args and args[0] not in self._lazy and not args[0].startswith("-"):
            ctx.fail(f"no command {args[0]!r}; there are {', '.join(self._lazy)}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    modules={name: f"rollstream.cli.{name.replace('-', '_')}" for name in COMMANDS},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="rollstream")
def cli() -> None:
    """Online reinforcement learning for language models, in stages that talk only through Kafka."""


def main() -> None:
    """Entry point. An error of this project is printed as one line, and decides the exit code."""
    # The settings may declare code of the user that lies in the directory where the command is called. Python's search
    # path has that directory with `python -m`, but not in a console script.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        cli(prog_name="rollstream")
    except RollstreamError as error:
        click.secho(f"error: {error}", fg="red", err=True)
        raise SystemExit(error.exit_code) from error


if __name__ == "__main__":
    main()
