"""`rollstream gym`, also `ng_…`: NeMo Gym's commands, with its grammar: `+key=value`, `++key=value`, `~key`."""

from collections.abc import Callable
from typing import TypeVar

import click

from rollstream.process.terminal import say

Command = TypeVar("Command", bound=Callable[..., None])


@click.group("gym")
def command() -> None:
    """Collect and measure rollouts of NeMo Gym's servers: `+key=value` sets an option, `null` is its default."""


def _of_words(decorated: Command) -> Command:
    return click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[+KEY=VALUE]...")(decorated)


@command.command("collect-rollouts")
@_of_words
def collect_rollouts(words: tuple[str, ...]) -> None:
    """Ask an agent's server for rollouts: +agent_name, +input_jsonl_fpath, +output_jsonl_fpath, +limit, +num_repeats.

    Also +num_samples_in_parallel and +responses_create_params.KEY. Called again, the same command goes on.
    """
    from rollstream.cli.collecting import stop_on_signals
    from rollstream.gym.collecting import collect_rollouts as collect
    from rollstream.gym.options import GymCollectOptions, from_words

    raise SystemExit(collect(from_words(GymCollectOptions, words), stop_on_signals(), say))


@command.command("reward-profile")
@_of_words
def reward_profile(words: tuple[str, ...]) -> None:
    """Write the rewards' mean, std, min and max of each task: +rollouts_jsonl_fpath, +allow_partial_rollouts."""
    from rollstream.gym.options import ProfileOptions, from_words
    from rollstream.gym.profile import profile_rewards

    profile_rewards(from_words(ProfileOptions, words), say)


@command.command("aggregate-rollouts")
@_of_words
def aggregate_rollouts(words: tuple[str, ...]) -> None:
    """Join shards of rollouts and write their metrics: +input_glob, +output_jsonl_fpath."""
    from rollstream.gym.options import AggregateOptions, from_words
    from rollstream.gym.profile import aggregate_rollouts as aggregate

    aggregate(from_words(AggregateOptions, words), say)


@command.command("prepare-data")
@_of_words
def prepare_data(words: tuple[str, ...]) -> None:
    """Check, measure and collate datasets: +config_paths, +output_dirpath, +mode."""
    from rollstream.gym.options import PrepareOptions, from_words
    from rollstream.gym.prepare import prepare_data as run

    run(from_words(PrepareOptions, words), say)


@command.command("convert")
@_of_words
def convert(words: tuple[str, ...]) -> None:
    """Write rows of verl, GSM8K or verifiers as input rows: +input_fpath, +output_jsonl_fpath, +agent_name."""
    from rollstream.gym.convert import convert_rows as run
    from rollstream.gym.options import ConvertOptions, from_words

    run(from_words(ConvertOptions, words), say)


@command.command("filter")
@_of_words
def filter_(words: tuple[str, ...]) -> None:
    """Keep rollouts by their reward: +rollouts_jsonl_fpath, +output_jsonl_fpath, +minimum_reward."""
    from rollstream.gym.exports import filter_rollouts as run
    from rollstream.gym.options import FilterOptions, from_words

    run(from_words(FilterOptions, words), say)


@command.command("export-sft")
@_of_words
def export_sft(words: tuple[str, ...]) -> None:
    """Write good rollouts as conversations: +rollouts_jsonl_fpath, +output_jsonl_fpath, +minimum_reward."""
    from rollstream.gym.exports import export_sft as run
    from rollstream.gym.options import FilterOptions, from_words

    run(from_words(FilterOptions, words), say)


@command.command("export-dpo")
@_of_words
def export_dpo(words: tuple[str, ...]) -> None:
    """Write pairs of rollouts: +rollouts_jsonl_fpath, +output_jsonl_fpath, +minimum_difference."""
    from rollstream.gym.exports import export_dpo as run
    from rollstream.gym.options import PairOptions, from_words

    run(from_words(PairOptions, words), say)


@command.command("reverify")
@_of_words
def reverify(words: tuple[str, ...]) -> None:
    """Give stored rollouts new rewards, without a model: +rollouts_jsonl_fpath, +resources_server_name, +force."""
    from rollstream.cli.collecting import stop_on_signals
    from rollstream.gym.options import ReverifyOptions, from_words
    from rollstream.gym.reverify import reverify as run

    raise SystemExit(run(from_words(ReverifyOptions, words), stop_on_signals(), say))


@command.command("run")
@_of_words
def run(words: tuple[str, ...]) -> None:
    """Start model, agent and resources servers, until Ctrl-C: "+config_paths=[FILE,FILE]", and +KEY=VALUE over them."""
    from rollstream.cli.collecting import stop_on_signals
    from rollstream.gym.servers.running import run_servers

    run_servers(words, stop_on_signals(), say)


@command.command("status")
@_of_words
def status(words: tuple[str, ...]) -> None:
    """Say which servers of `ng_run` answer: +head_server.port."""
    from rollstream.gym.options import from_words
    from rollstream.gym.servers.options import StatusOptions
    from rollstream.gym.servers.status import show_status

    raise SystemExit(0 if show_status(from_words(StatusOptions, words), say) else 70)


@command.command("dump-config")
@_of_words
def dump_config(words: tuple[str, ...]) -> None:
    """Print the configuration that `ng_run` with the same words has, keys and passwords hidden."""
    import yaml

    from rollstream.gym.servers.config import merged, without_secrets

    for line in yaml.safe_dump(without_secrets(merged(words)), sort_keys=False, allow_unicode=True).splitlines():
        say(line)
