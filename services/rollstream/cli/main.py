"""The one command: nouns for the stages, verbs for people; a command's module is imported when it is called."""

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from rollstream.schemas.errors import RollstreamError

COMMANDS: Mapping[str, str] = {
    "demo": "Run the whole loop on this machine until the reward has visibly risen.",
    "up": "Start Kafka and Redis on this machine, without containers.",
    "down": "Stop what `up` started; the data stays.",
    "status": "Show topics, lag, fleet and versions of a run, live.",
    "doctor": "Check memory, disk, Java, ports and GPU.",
    "tail": "Print a topic, decoded, one line a record.",
    "prompt": "Submit a prompt and print its scored answers.",
    "lineage": "Trace a rollout or a step through the topics.",
    "topics": "Create, describe or delete a run's topics.",
    "schemas": "Check, register or update the record schemas.",
    "weights": "List, show or roll back weight versions.",
    "dead-letters": "List or replay messages that could not be handled.",
    "evaluate": "Score a weight version on held-out prompts.",
    "sft": "Warm a model up on an environment's demonstrations.",
    "bench": "Measure a part against its bare counterpart.",
    "producer": "Run the stage that submits prompts.",
    "generator": "Run the stage that turns prompts into rollouts.",
    "scorer": "Run the stage that annotates rollouts with rewards.",
    "trainer": "Run the stage that trains and publishes weight versions.",
}


class LazyGroup(click.Group):
    """A group that knows the names and one-line helps of its commands, and imports one only to run it.

    `lazy`: name → help. `modules`: name → module whose `command` it is.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, str], modules: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
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
        """Write the table without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._lazy.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click, with the names in the refusal of an unknown one."""
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
    """Entry point: what this project raises is printed as one sentence and decides the exit code."""
    # Dotted paths name a user's own code, which lies where the command is called; a console script leaves that out.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        cli(prog_name="rollstream")
    except RollstreamError as error:
        click.secho(f"error: {error}", fg="red", err=True)
        raise SystemExit(error.exit_code) from error


if __name__ == "__main__":
    main()
