"""What each offline command is told: one model a command. The command line is made of it."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from rollstream.process.settings.options import ARGUMENT, DIRECTORY, EXISTING, FILE, TIME, CommandOptions
from rollstream.rows.write import Kind
from rollstream.schemas.bounds import MAX_GROUP_SIZE, MAX_SAMPLE_TOKENS, MAX_TEMPERATURE, MIN_TEMPERATURE

MAX_CONCURRENCY: Final = 10_000
MAX_REWARD: Final = 1e9
_DAY: Final = 86400.0

Three = tuple[float, float, float]


def _not_too_cold(temperature: float) -> float:
    if 0 < temperature < MIN_TEMPERATURE:
        raise ValueError(
            f"{temperature:g} is not 0 and below {MIN_TEMPERATURE:g}: raise it, or take 0, which is greedy"
        )
    return temperature


def _in_order(values: Three, *, highest: float, ascending: bool) -> Three:
    in_order = list(values) == sorted(set(values), reverse=not ascending)
    if not in_order or not all(0 <= value <= highest for value in values):
        order = "ascending" if ascending else "descending"
        raise ValueError(f"expected three different numbers from 0 to {highest:g}, {order}")
    return values


Count = Annotated[int, Field(ge=1)]
NumSamples = Annotated[int, Field(ge=1, le=MAX_GROUP_SIZE)]
Concurrency = Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)]
MaxTokens = Annotated[int, Field(ge=1, le=MAX_SAMPLE_TOKENS)]
Temperature = Annotated[float, Field(ge=0, le=MAX_TEMPERATURE), AfterValidator(_not_too_cold)]
TopP = Annotated[float, Field(gt=0, le=1)]
PassThreshold = Annotated[float, Field(ge=-MAX_REWARD, le=MAX_REWARD)]
Time = Annotated[float, Field(json_schema_extra=TIME)]
Percentiles = Annotated[Three, AfterValidator(partial(_in_order, highest=100, ascending=True))]
PassRates = Annotated[Three, AfterValidator(partial(_in_order, highest=100, ascending=False))]
MeanRewards = Annotated[Three, AfterValidator(partial(_in_order, highest=1, ascending=False))]


class AskingOptions(CommandOptions):
    """What all commands that ask have in common."""

    max_attempts: int = Field(
        default=3, ge=1, le=254, description="Attempts at a sample, over all calls of the command."
    )
    retry_failed: bool = Field(default=False, description="Ask what failed so often as if it never was asked.")
    fail_over: float = Field(
        default=0.5, ge=0, le=1, description="Exit with 70 if a larger share of the samples has no response; 1: never."
    )
    overwrite: bool = Field(default=False, description="Begin anew: remove what an earlier call collected there.")


class SamplesOptions(AskingOptions):
    """What `collect` and each of its collections have in common."""

    num_samples: NumSamples = Field(default=1, description="Samples of each task.")
    concurrency: Concurrency = Field(default=64, description="Most samples in flight.")


class CollectOptions(SamplesOptions):
    """Options of `collect`. None: the environment's own value, or the default of whoever needs it."""

    source: str = Field(json_schema_extra=ARGUMENT, description="A file, hf://OWNER/NAME, an environment, topic:NAME.")
    output: Path = Field(description=".jsonl, .parquet, or a directory.")
    config: Path | None = Field(
        default=None, json_schema_extra=FILE, description="TOML file: engine, environments, [kafka]."
    )
    url: tuple[str, ...] = Field(default=(), description="OpenAI-compatible server; may be repeated.")
    model: str | None = Field(
        default=None, description="Model name on the servers; without --url a model directory, run in this process."
    )
    api_key_variable: str | None = Field(default=None, description="Environment variable that holds the servers' key.")
    environment: str | None = Field(
        default=None, description="Environment whose rubric scores; default: the source, if it is one."
    )
    agent: str = Field(default="single_turn", description="How a task becomes turns.")
    split: Literal["train", "validate", "evaluate"] = Field(default="train", description="Tasks of an environment.")
    num_tasks: Count = Field(default=100, description="Tasks to take of an environment.")
    prompt_key: str = Field(default="prompt", description="Column with text or a list of messages.")
    temperature: Temperature | None = Field(default=None, description="Default: the environment's, else 1.")
    top_p: TopP | None = Field(default=None, description="Default: the environment's, else 1.")
    max_tokens: MaxTokens | None = Field(
        default=None, description="Most tokens of a model call; default: the environment's, else 256."
    )
    stop: tuple[str, ...] = Field(default=(), description="Text that ends a response; may be repeated.")
    seed: int | None = Field(default=None, ge=0, description="For the tasks of an environment, and for sampling.")
    deadline: float = Field(
        default=600.0, ge=0.001, description="Seconds of a sample; then it keeps its tokens so far, if it has any."
    )
    scoring_processes: int = Field(default=1, ge=1, le=64, description="Processes that score.")
    every: Time | None = Field(
        default=None, description="Look for new rows so often, e.g. 6h, and write them as parts."
    )
    watch: bool = Field(default=False, description="Look for new rows every 5 s, or as --every says.")
    to: str | None = Field(default=None, description="topic:NAME, which gets each row of the parts too, as JSON.")
    format: Kind = Field(default="jsonl", description="Of parts; else the output's name decides.")
    remember: Time = Field(
        default=30 * _DAY, description="How long a row is known after it was last met, and after its file was gone."
    )
    health_port: int | None = Field(
        default=None, ge=0, le=65535, description="Serve /metrics, /livez and /readyz; 0: a free one."
    )
    health_host: str = Field(default="0.0.0.0", description="Address to serve them at.")
    accept_loss: bool = Field(
        default=False, description="Go on although the topic deleted messages that were never read."
    )

    @property
    def comes_in_parts(self) -> bool:
        """Whether the output is a directory of parts, to which each look adds one."""
        return bool(self.every or self.watch or self.to or self.source.startswith("topic:"))

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.model is None and (self.url or self.api_key_variable is not None):
            raise ValueError("--url and --api-key-variable go with --model, the name that the servers know")
        if self.model is None and self.config is None:
            raise ValueError("name an engine: --model, with --url for one that runs elsewhere, or --config")
        if self.health_port is not None and not self.comes_in_parts:
            raise ValueError("--health-port goes with --every, --watch, --to or a topic: one collection just ends")
        return self


class GenerateOptions(AskingOptions):
    """Options of `generate-rollouts`."""

    separator: ClassVar[Literal["-", "_"]] = "_"

    model_path: str = Field(description="Model directory, or name on the Hugging Face hub.")
    data_path: Path = Field(description="Prompts: parquet, JSONL, directory, or hf://OWNER/NAME.")
    use_vllm: bool = Field(default=False, description="Ask a server instead of loading the model into this process.")
    vllm_base_url: str = Field(
        default="http://localhost:8000/v1", description="The server; several with commas share the requests."
    )
    vllm_model_name: str | None = Field(
        default=None, description="Model name on the server.  [default: same as model_path]"
    )
    vllm_max_concurrent: Concurrency = Field(default=100, description="Most requests in flight at the servers.")
    num_samples: NumSamples = Field(default=8, description="Responses for each prompt.")
    temperature: Temperature = Field(default=0.7, description="Sampling temperature.")
    top_p: TopP = Field(default=0.9, description="Nucleus bound.")
    max_tokens: MaxTokens = Field(default=512, description="Most tokens of a response.")
    batch_size: Count = Field(default=8, description="Prompts in process at a time; servers need no batches.")
    prompt_key: str = Field(default="prompt", description="Column with the prompt: text, or a list of messages.")
    trust_remote_code: bool = Field(default=False, description="Accepted; code beside the weights is never run here.")
    output_path: Path | None = Field(default=None, description="File to write.  [default: ./rollouts.parquet]")
    output_format: Literal["parquet", "jsonl"] | None = Field(
        default=None, description="Its format.  [default: parquet]"
    )


class WordCountOptions(AskingOptions):
    """Options of `word-count-rollouts`."""

    num_examples: int = Field(default=20, ge=1, le=1_000_000, description="Rollouts to generate.")
    model: str = Field(default="claude-sonnet", description="Name that the server knows the model by.")
    base_url: str = Field(
        default="http://localhost:8000",
        json_schema_extra={"variable": "API_BASE_URL"},
        description="Server, with or without /v1.",
    )
    output: Path | None = Field(
        default=None,
        description="Directory of `datasets`, with the same rows as .jsonl beside it; or a .jsonl or .parquet file.  "
        "[default: rollouts; with --mock rollouts_mock]",
    )
    mock: bool = Field(default=False, description="Take scripted answers; no server is asked.")
    concurrency: Concurrency = Field(default=2, description="Most requests in flight.")
    temperature: Temperature = Field(default=1.0, description="0 is greedy.")
    max_tokens: MaxTokens = Field(default=256, description="Most tokens of an answer.")
    environment: str = Field(default="", description="package.module.Class of an environment of your own.")
    user_id: str = Field(default="rollstream", description="Who asks, for the column `metadata`.")


class ScoresOptions(CommandOptions):
    """Options of `analyze-rewards`."""

    separator: ClassVar[Literal["-", "_"]] = "_"

    rollouts: Path = Field(description="File that generate-rollouts wrote.")
    reward_fn: Literal["auto", "ifeval", "math", "custom"] = Field(
        default="auto", description="auto: by each row's data source; custom: your own, whose path follows."
    )
    path: str | None = Field(
        default=None,
        json_schema_extra={**ARGUMENT, "metavar": "[PACKAGE.MODULE.FUNCTION]"},
        description="Your own reward function.",
    )
    output: Path | None = Field(default=None, description="Default: NAME_with_rewards beside the rollouts.")
    name: str | None = Field(
        default=None, description="Column of the rewards is reward_NAME; default: the reward function's."
    )
    data_source: str | None = Field(default=None, description="Data source of all rows, instead of their own column.")
    pass_threshold: PassThreshold | None = Field(
        default=None, description="Smallest reward that passes; default: the function's own."
    )
    sandbox_url: str | None = Field(
        default=None, description="Service that runs the programs of code data sets; without it they are not scored."
    )
    num_processes: int | None = Field(
        default=None, ge=1, le=64, description="Processes that score; default: one a core."
    )
    sample_seconds: float | None = Field(
        default=None,
        gt=0,
        description="A row whose scoring takes longer has no reward; default: 10, with a sandbox 60.",
    )


class Strategy(StrEnum):
    """How problems are divided."""

    PERCENTILE = "percentile"
    PASS_RATE = "pass_rate"
    MEAN_REWARD = "mean_reward"
    ADAPTIVE = "adaptive"


class DifficultyOptions(CommandOptions):
    """Options of `filter-difficulty`."""

    separator: ClassVar[Literal["-", "_"]] = "_"

    data_path: Path = Field(description="File that analyze-rewards wrote.")
    bucketing_strategy: Annotated[Strategy, Field(strict=False)] = Field(
        default=Strategy.PERCENTILE, description="percentile: quarters by score; adaptive: four clusters of the score."
    )
    output_dir: Path | None = Field(
        default=None, json_schema_extra=DIRECTORY, description="Default: where the data is."
    )
    percentiles: Percentiles = Field(default=(25.0, 50.0, 75.0), description="Where buckets end, %.")
    pass_rate_thresholds: PassRates = Field(
        default=(80.0, 50.0, 20.0), description="From which pass rate on, in %, a problem is easy, medium, hard."
    )
    mean_reward_thresholds: MeanRewards = Field(
        default=(0.75, 0.5, 0.25), description="From which mean reward on, 0 to 1, a problem is easy, medium, hard."
    )
    pass_threshold: PassThreshold | None = Field(
        default=None, description="Smallest reward that passes; default: each source's own."
    )
    # One sample tells next to nothing.
    min_samples: Count = Field(default=2, description="With fewer a problem is `unknown`.")
    id_column: str | None = Field(
        default=None, description="Column that says which problem a row is of; default: its prompt, hashed."
    )

    @property
    def folder(self) -> Path:
        """Where the files go."""
        return self.output_dir or self.data_path.parent


class CompareOptions(CommandOptions):
    """Options of `compare-rollouts`."""

    before: Path = Field(json_schema_extra={**ARGUMENT, **EXISTING}, description="Rollouts before.")
    after: Path = Field(json_schema_extra={**ARGUMENT, **EXISTING}, description="Rollouts after.")
    by: Literal["auto", "example_id", "prompt"] = Field(
        default="auto",
        description="What tells that rows are of the same example. auto: example_id if both files have it, else the "
        "prompt.",
    )
    limit: int = Field(default=50, ge=0, description="Most examples to show.")
    output: Path | None = Field(default=None, description="Write all examples here: .jsonl or .parquet.")


class ImportOptions(CommandOptions):
    """Options of `verifiers import`."""

    run: Path = Field(json_schema_extra={**ARGUMENT, **EXISTING}, description="Directory of the run, or its rows.")
    output: Path = Field(json_schema_extra=ARGUMENT, description=".jsonl, .parquet, or a directory.")


class ExportOptions(CommandOptions):
    """Options of `verifiers export`. Empty: as the imported run said."""

    rollouts: Path = Field(json_schema_extra={**ARGUMENT, **EXISTING}, description="Rollouts to export.")
    outputs: Path = Field(default=Path("outputs"), description="Directory of all runs.")
    env_id: str = Field(default="", description="Name of the environment; default: the imported run's.")
    model: str = Field(default="", description="Name of the model; default: the imported run's.")
    run_id: str = Field(default="", description="Name of the run; default: the imported run's, else a new one.")
    zero_for_failed: bool = Field(
        default=False,
        description="Reward 0.0 where there is none, as verifiers writes; else null. An imported row stays as it was.",
    )


class SftExportOptions(CommandOptions):
    """Options of `verifiers export-sft`."""

    rollouts: Path = Field(json_schema_extra={**ARGUMENT, **EXISTING}, description="Rollouts to learn from.")
    output: Path = Field(json_schema_extra=ARGUMENT, description=".jsonl or .parquet.")
    layout: Literal["prompt-completion", "messages"] = Field(
        default="prompt-completion", description="Columns of the rows."
    )
    min_reward: float | None = Field(
        default=None, description="Least reward of a row; default: any, but it must have one."
    )
