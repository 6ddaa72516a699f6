"""The options of the Gym commands, each a key of the command line: `+input_jsonl_fpath=tasks.jsonl`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field, ValidationError

from rollstream.offline.options import MAX_CONCURRENCY
from rollstream.process.settings.options import CommandOptions
from rollstream.process.settings.overrides import overridden
from rollstream.schemas.bounds import MAX_GROUP_SIZE, MAX_REWARD
from rollstream.schemas.errors import ConfigurationError

DEFAULT: Final = "_default"
"""The agents that a mapping of repeats does not name."""
_MAX_SHOWN: Final = 5

M = TypeVar("M", bound=CommandOptions)
Repeats = Annotated[int, Field(ge=1, le=MAX_GROUP_SIZE)]
Reward = Annotated[float, Field(ge=-MAX_REWARD, le=MAX_REWARD)]


class HeadServer(CommandOptions):
    """Where the head server of `ng_run` listens, which knows the addresses of all others."""

    host: str = Field(default="127.0.0.1", max_length=253, description="Its host.")
    port: int = Field(default=11000, ge=1, le=65535, description="Its port.")


class GymCollectOptions(CommandOptions):
    """Options of `ng_collect_rollouts`; null is the default."""

    input_jsonl_fpath: Path = Field(description="Tasks: JSONL rows with responses_create_params.")
    output_jsonl_fpath: Path = Field(description="Rollouts, .jsonl; other files are named after it.")
    agent_name: str | None = Field(default=None, max_length=200, description="Agent of rows without an agent_ref.")
    limit: int | None = Field(default=None, ge=1, description="Take the first so many rows; null: all.")
    num_repeats: Repeats | Mapping[str, Repeats] | None = Field(
        default=None, description="Rollouts of each row; or a mapping from agent to that, with _default."
    )
    num_repeats_add_seed: bool = Field(default=False, description="Set seed to the number of the rollout.")
    num_samples_in_parallel: int | None = Field(
        default=None, ge=1, le=MAX_CONCURRENCY, description="Most rollouts in flight; null: 64."
    )
    responses_create_params: Mapping[str, Any] = Field(
        default_factory=dict, description="Set in each row's own; a nested value is replaced as a whole."
    )
    prompt_config: Path | None = Field(
        default=None, description="YAML with `system` and `user`, whose {fields} make the input of rows without one."
    )
    resume_from_cache: bool = Field(default=True, description="Go on with what is there; false: begin anew.")
    disable_aggregation: bool = Field(default=False, description="Write no aggregate metrics.")
    agent_url: str | None = Field(
        default=None, max_length=2000, description="Address of the agent's server; default: the head server knows it."
    )
    head_server: HeadServer = Field(default_factory=HeadServer, description="Where the addresses are asked for.")
    rollout_seconds: float = Field(default=3600.0, gt=0, le=7 * 86400, description="Seconds of one rollout.")
    start_seconds: float = Field(default=30.0, gt=0, le=3600, description="Seconds to wait for servers that start.")
    max_attempts: int = Field(default=3, ge=1, le=254, description="Attempts at a rollout, over all calls.")
    retry_failed: bool = Field(default=False, description="Ask what failed so often as if it never was asked.")
    fail_over: float = Field(default=0.5, ge=0, le=1, description="Exit with 70 if a larger share failed.")
    success_threshold: Reward = Field(default=1.0, description="Smallest reward of a success.")


class ProfileOptions(CommandOptions):
    """Options of `ng_reward_profile`."""

    rollouts_jsonl_fpath: Path = Field(description="Rollouts that ng_collect_rollouts wrote.")
    materialized_inputs_jsonl_fpath: Path | None = Field(
        default=None, description="Which rollouts there should be; default: the file beside the rollouts."
    )
    allow_partial_rollouts: bool = Field(default=False, description="Profile although rollouts are missing.")


class AggregateOptions(CommandOptions):
    """Options of `ng_aggregate_rollouts`."""

    input_glob: str = Field(min_length=1, max_length=4000, description="Files of rollouts, e.g. shards/*.jsonl.")
    output_jsonl_fpath: Path = Field(description="All their rollouts in one file, and its metrics beside it.")


class ReverifyOptions(CommandOptions):
    """Options of `rollstream gym reverify`."""

    rollouts_jsonl_fpath: Path = Field(description="Rollouts that ng_collect_rollouts wrote.")
    output_jsonl_fpath: Path = Field(description="The same with new rewards; with force its name gets unsafe_.")
    resources_server_name: str = Field(default="", max_length=200, description="The server that verifies.")
    resources_server_url: str | None = Field(
        default=None, max_length=2000, description="Its address; default: the head server knows it."
    )
    head_server: HeadServer = Field(default_factory=HeadServer, description="Where the address is asked for.")
    force: bool = Field(default=False, description="Ask a server that does not say that it verifies without a session.")
    judge_failed_only: bool = Field(default=False, description="Ask for rollouts without a reward alone.")
    num_samples_in_parallel: int = Field(default=64, ge=1, le=MAX_CONCURRENCY, description="Most in flight.")
    verify_seconds: float = Field(default=600.0, gt=0, le=7 * 86400, description="Seconds of one verdict.")
    start_seconds: float = Field(default=30.0, gt=0, le=3600, description="Seconds to wait for a server that starts.")


class ConvertOptions(CommandOptions):
    """Options of `rollstream gym convert`."""

    input_fpath: Path = Field(description="Rows of verl, GSM8K or verifiers: JSONL, parquet or a directory.")
    output_jsonl_fpath: Path = Field(description="Rows for ng_collect_rollouts.")
    agent_name: str | None = Field(default=None, max_length=200, description="Write this agent into each row.")


class FilterOptions(CommandOptions):
    """Options of `rollstream gym filter` and `rollstream gym export-sft`."""

    rollouts_jsonl_fpath: Path = Field(description="Rollouts that ng_collect_rollouts wrote.")
    output_jsonl_fpath: Path = Field(description="What is kept of them.")
    minimum_reward: Reward = Field(default=1.0, description="Smallest reward that is kept.")


class PairOptions(CommandOptions):
    """Options of `rollstream gym export-dpo`."""

    rollouts_jsonl_fpath: Path = Field(description="Rollouts that ng_collect_rollouts wrote.")
    output_jsonl_fpath: Path = Field(description="Pairs of chosen and rejected.")
    minimum_difference: float = Field(default=0.1, gt=0, le=2 * MAX_REWARD, description="Of the rewards of a pair.")


class PrepareOptions(CommandOptions):
    """Options of `ng_prepare_data`."""

    config_paths: tuple[Path, ...] = Field(
        min_length=1, description="YAML files of servers, whose agents name datasets."
    )
    output_dirpath: Path = Field(description="Where the rows of each type go, and their metrics.")
    mode: Literal["train_preparation", "example_validation"] = Field(
        description="Take the types train and validation, or example."
    )


def from_words(model: type[M], words: Sequence[str]) -> M:
    """The options that the words of a command line give. Raises `ConfigurationError` that names each mistake."""
    values = overridden(words, model.model_fields)
    try:
        # Values come from YAML: a path is text there, and a whole number may stand for a float.
        return model.model_validate(values, strict=False)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, one['loc'])) or 'options'}: {_said(one['type'], one['msg'], model)}"
            for one in error.errors(include_url=False, include_input=False, include_context=False)[:_MAX_SHOWN]
        ]
        raise ConfigurationError("; ".join(problems)) from error


def _said(kind: str, message: str, model: type[CommandOptions]) -> str:
    if kind == "missing":
        return "it is required: write +KEY=VALUE"
    return f"unknown; known are {', '.join(model.model_fields)}" if kind == "extra_forbidden" else message
