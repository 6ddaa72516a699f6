"""What a run of `analyze-rewards` is asked for, from its options."""

import os
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from rollstream.environments.pool.pool import PoolBounds
from rollstream.offline.options import ScoresOptions
from rollstream.offline.scores.columns import data_source_of
from rollstream.offline.scores.functions import RewardFunction, reward_function
from rollstream.rows.conversation import Row
from rollstream.rows.hub import is_hub_name
from rollstream.rows.write import Kind, kind_of
from rollstream.schemas.errors import ConfigurationError

_LOAD_SECONDS: Final = 60.0
_SAMPLE_SECONDS: Final = 10.0
_SANDBOX_SECONDS: Final = 60.0
"""Ten tests of a program that each end at the sandbox's own limit take 40 s."""
_MAX_PROCESSES: Final = 64


class ScoresRequest(ScoresOptions):
    """The options of the command, and what follows from them."""

    output: Path

    @cached_property
    def function(self) -> RewardFunction:
        """What scores; raises `ConfigurationError` where the options that choose it contradict."""
        return reward_function(self.reward_fn, path=self.path, name=self.name, sandbox_url=self.sandbox_url)

    @cached_property
    def bounds(self) -> PoolBounds:
        """How many processes score, and how long each may take."""
        seconds = self.sample_seconds or (_SANDBOX_SECONDS if self.sandbox_url else _SAMPLE_SECONDS)
        return PoolBounds(
            num_processes=self.num_processes or min(len(os.sched_getaffinity(0)), _MAX_PROCESSES),
            sample_seconds=seconds,
            load_seconds=_LOAD_SECONDS,
            # At least one sample of a batch gets its verdict, also where it is the first and loads its environment.
            batch_seconds=2 * (_LOAD_SECONDS + seconds),
        )

    @property
    def kind(self) -> Kind:
        """The format of the output."""
        return kind_of(self.output, may_be_directory=False)

    def source_of(self, fields: Row) -> str:
        """The data source of a row; empty if it has none."""
        return self.data_source or data_source_of(fields)

    def compared(self) -> dict[str, Any]:
        """What decides about the scores, so that a run which goes on must have it in common with the beginning."""
        return {
            "--reward_fn": self.function.choice,
            "--name": self.function.name,
            "--data_source": self.data_source,
            "--sample_seconds": self.bounds.sample_seconds,
        }


def scores_request(options: ScoresOptions) -> ScoresRequest:
    """The request of the command's options; raises `ConfigurationError` where they contradict."""
    rollouts = options.rollouts
    output = output_beside(rollouts) if options.output is None else options.output
    kind_of(output, may_be_directory=False)
    if output.resolve() == rollouts.resolve():
        raise ConfigurationError(
            f"{rollouts} would be replaced by its own scores: name the rollouts that were generated, or another file "
            "with --output"
        )
    return ScoresRequest(**{**dict(options), "output": output})


def output_beside(rollouts: Path) -> Path:
    """Where the result goes: `rollouts.parquet` gives `rollouts_with_rewards.parquet`, JSONL gives JSONL.

    Raises `ConfigurationError` for rollouts on the hub.
    """
    if is_hub_name(rollouts):
        raise ConfigurationError(f"{rollouts} is on the hub, so nothing can lie beside it: name one with --output")
    suffix = ".jsonl" if rollouts.suffix == ".jsonl" else ".parquet"
    stem = rollouts.name if rollouts.is_dir() else rollouts.stem.removesuffix("_with_rewards")
    return rollouts.with_name(f"{stem}_with_rewards{suffix}")
