"""The command `rollstream` and the table of its commands. A command's module is imported only when it is called.

So `rollstream --help` does not wait for heavy libraries.
"""

import importlib
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rollstream.schemas.errors import RollstreamError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# What shells report for a process that SIGINT ended: 128 + 2.
_INTERRUPTED: Final = 130

# A row of the README says what each is for.
SECTIONS: Mapping[str, Mapping[str, str]] = {
    "The whole thing": {
        "demo": "Run the whole loop on this machine, with a tiny model that learns within minutes.",
        "up": "Start Kafka and Redis on this machine, without containers.",
        "down": "Stop what `up` started, and keep the data.",
        "status": "Show reward, lag, processes, versions and topics of a run, live.",
        "doctor": "Check whether this machine is ready for a run.",
    },
    "Stages": {
        "topics": "Create, describe or delete a run's topics.",
        "acls": "Print, apply or check what each stage may do on the cluster.",
        "producer": "Run the stage that submits prompts.",
        "ingest": "Run the server that takes feedback and prompts of clients.",
        "generator": "Run the stage that turns prompts into rollouts.",
        "scorer": "Run the stage that gives rollouts their rewards.",
        "trainer": "Run the stage that trains and publishes weight versions.",
        "probe": "Ask a stage on this machine whether it lives or is ready.",
        "config": "Explain every key of a run's file, and check a file.",
    },
    "Inspecting": {
        "tail": "Print the newest records of a topic, one on each line.",
        "lineage": "Show where a rollout or a step came from and what was made of it.",
        "weights": "List, show or roll back weight versions.",
        "prompt": "Submit a prompt and print its scored answers.",
        "metrics": "List every metric that the stages export to Prometheus.",
        "evaluate": "Score a weight version on held-out prompts.",
    },
    "Repairing": {
        "dead-letters": "List or replay messages that could not be handled.",
        "ledger": "Check the ledger, or repair it where records stop every trainer.",
    },
    "Offline": {
        "collect": "Collect rollouts of a file or an environment, without Kafka.",
        "generate-rollouts": "Generate responses to the prompts of a file, without rewards.",
        "analyze-rewards": "Score the rollouts of a file.",
        "filter-difficulty": "Sort scored problems into buckets of difficulty.",
        "word-count-rollouts": "Collect scored rollouts of word_count from any OpenAI-compatible server.",
        "compare-rollouts": "Compare the rewards of two files, example by example.",
        "verifiers": "Convert rollouts from and to the formats of verifiers and Prime-RL.",
        "gym": "Collect and measure rollouts of NeMo Gym's servers.",
        "rc-actor": "Collect reasoning in cycles from model servers, into streams.",
        "rc-actor-local": "Collect reasoning in cycles, with vLLM servers of its own.",
        "rc-streams": "Write an archive's groups in cycles as streams of PipelineRL's Reasoning Cache.",
        "archive": "Append a run's rollouts, outcomes and steps from its topics to parquet.",
        "replay": "Read an archive back: score it again, or make SFT data of it.",
    },
    "Models and contracts": {
        "sft": "Train a model on an environment's demonstrations, as a start for a run.",
        "train": "Train a model by SFT, RL, or both, in one process and without Kafka.",
        "schemas": "Check, register or update the record schemas.",
    },
}
COMMANDS: Mapping[str, str] = {name: text for section in SECTIONS.values() for name, text in section.items()}


class LazyGroup(click.Group):
    """A group that knows the names and the one-line help of its commands, and imports a command only to run it.

    `sections`: heading → name → help. `modules`: name → module whose `command` it is.
    """

    def __init__(
        self, *args: Any, sections: Mapping[str, Mapping[str, str]], modules: Mapping[str, str], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._sections = sections
        self._lazy = {name: text for section in sections.values() for name, text in section.items()}
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module."""
        if cmd_name not in self._lazy:
            return None
        with ctrl_c_ends_at_once():
            command = importlib.import_module(self._modules[cmd_name]).command
        if not isinstance(command, click.Command):
            raise TypeError(f"{self._modules[cmd_name]}.command is {command!r}, not a click command")
        _add_verbose(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands without importing any of them."""
        for heading, commands in self._sections.items():
            with formatter.section(heading):
                formatter.write_dl(list(commands.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """As click does, without importing any command."""
        from click.shell_completion import CompletionItem

        names = [CompletionItem(name, help=text) for name, text in self._lazy.items() if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse arguments that are no text: none of the records, topics and addresses could hold them."""
        for argument in args:
            if not argument.isascii() and any("\ud800" <= char <= "\udfff" for char in argument):
                from rollstream.schemas.addresses import without_addresses

                ctx.fail(f"the argument {without_addresses(ascii(argument))} is not UTF-8")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """As click does, but no error repeats an address with a password that stands in a wrong place.

        Ctrl-C gives the exit code that a shell reports for it; click's is 1, which is a defect's.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise SystemExit(_INTERRUPTED) from None
        except click.ClickException as error:
            from rollstream.schemas.addresses import without_addresses

            error.message = without_addresses(error.message)  # type: ignore[misc]  # its only way
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but the error for an unknown name lists the known ones."""
        if args and args[0] not in self._lazy and not args[0].startswith("-"):
            ctx.fail(f"no command {args[0]!r}; there are {', '.join(self._lazy)}")
        return super().resolve_command(ctx, args)


@contextmanager
def ctrl_c_ends_at_once() -> Iterator[None]:
    """While libraries are imported: there KeyboardInterrupt ends in tracebacks, some of them of C code."""
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_usual:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if is_usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _be_verbose(_context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        from rollstream.process.logs import be_verbose

        be_verbose()


_VERBOSE = click.Option(
    ["-v", "--verbose"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_be_verbose,
    help="Log more, what the Kafka client says too; an error with its traceback.",
)


def _add_verbose(command: click.Command) -> None:
    """Add `-v` to the command and to those below it: people type it first and last."""
    if _VERBOSE not in command.params:
        command.params.append(_VERBOSE)
    if isinstance(command, click.Group):
        for below in command.commands.values():
            _add_verbose(below)


@click.group(
    cls=LazyGroup,
    sections=SECTIONS,
    modules={name: f"rollstream.cli.{name.replace('-', '_')}" for name in COMMANDS},
    # Options of two words may be written either way: some commands have names that people know with underscores.
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda name: name.replace("_", "-"),
    },
)
@click.version_option(package_name="rollstream")
@click.pass_obj
def cli(is_own_process: bool | None) -> None:
    """Online reinforcement learning for language models, in stages that talk only through Kafka."""
    if is_own_process:
        from rollstream.process.logs import configure_command_logging

        configure_command_logging()


_add_verbose(cli)


def main() -> None:
    """Run the command of the command line."""
    run(cli, "rollstream")


def run(command: click.Command, name: str) -> None:
    """Run a command of this project. An error of the project is one line, and decides the exit code."""
    try:
        # The settings may declare code of the user that lies in the directory where the command is called. Python's
        # search path has that directory with `python -m`, but not in a console script.
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        command(prog_name=name, obj=True)
    except Exception as error:
        from rollstream.process.cause import known_cause

        known = known_cause(error)
        if known is None:
            raise
        _say(known, error)
        raise SystemExit(known.exit_code) from error


def _say(known: RollstreamError, error: Exception) -> None:
    import traceback

    from rollstream.process.logs import is_verbose
    from rollstream.process.masking import SECRETS
    from rollstream.process.terminal import escaped

    if is_verbose():
        trace = "".join(traceback.format_exception(error))
        click.echo(SECRETS.masked(escaped(trace, keep="\n")), err=True)
    text = SECRETS.masked(escaped(str(known), keep="\n"))
    click.secho(f"error: {text}", fg="red", err=True)


if __name__ == "__main__":
    main()
