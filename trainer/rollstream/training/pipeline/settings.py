"""What `rollstream train` is told: one TOML file with a table `[sft]`, a table `[rl]`, or both."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from rollstream.engines.settings import EngineSettings
from rollstream.process.masking import SECRETS, secrets_in
from rollstream.process.settings.declared import Declarations
from rollstream.process.settings.errors import Sources, explained
from rollstream.process.settings.run_file import RunFile
from rollstream.schemas.bounds import MAX_GROUP_SIZE, MAX_REWARD, MIN_TEMPERATURE
from rollstream.schemas.errors import ConfigurationError
from rollstream.training.learning.settings import LearningSettings

Filter = Literal[
    "check_reward_nonzero_std",
    "check_min_reward",
    "check_response_diversity",
    "check_reasonable_length",
    "check_any_success",
    "check_quality_and_diversity",
]


def _imitating(values: Any) -> Any:
    return {"loss": "nll", "learning_rate": 1e-5, **values} if isinstance(values, dict) else values


class _Table(BaseModel):
    """What SFT and RL have in common."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    dataset: str | None = Field(
        default=None,
        description="File of rows, .jsonl or .parquet, a directory of them, or a data set on the hub, e.g. gsm8k",
    )
    environment: str | None = Field(default=None, description="Built in, or declared in [environments.NAME]")
    split: str | None = Field(default=None, description="Split of the data set; default: train")
    subset: str | None = Field(default=None, description="Configuration of a data set on the hub")
    num_steps: int = Field(ge=1, description="Steps in all, those before a stop included")
    batch_size: int = Field(ge=1, description="Of a step: samples of SFT, groups of RL")
    log_every: int = Field(default=1, ge=1, description="Steps between two lines of metrics.jsonl")
    checkpoint_every: int = Field(default=100, ge=1, description="Steps between two checkpoints that are kept")

    @model_validator(mode="after")
    def _of_a_data_set(self) -> Self:
        for name in ("split", "subset"):
            if self.dataset is None and getattr(self, name) is not None:
                raise ValueError(f"{name} {getattr(self, name)!r} is of a dataset: name one, or leave {name} out")
        return self


class SftTable(_Table):
    """Supervised fine-tuning on the rows of a data set, or on the demonstrations of an environment."""

    max_samples: int = Field(default=10_000, ge=1, description="Samples to learn from, the first ones")
    seed: int = Field(default=1, ge=0, le=2**31, description="Of the environment's tasks; RL has 0, so other tasks")
    max_length: int | None = Field(
        default=None,
        ge=2,
        json_schema_extra={"unit": "tokens"},
        description="Longer samples are left out, and counted; default: what the model takes",
    )
    learning: Annotated[LearningSettings, BeforeValidator(_imitating)] = Field(
        default_factory=lambda: LearningSettings(loss="nll", learning_rate=1e-5),
        description="Optimizer and device; the loss is nll",
    )

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if (self.dataset is None) == (self.environment is None):
            raise ValueError("name either a dataset or an environment with demonstrations")
        if self.learning.loss != "nll":
            raise ValueError(f"learning.loss {self.learning.loss!r} is one of RL: leave it out, SFT has nll")
        _refuse_minibatches(self.learning)
        return self


class RlTable(_Table):
    """GRPO and its kin: an agent answers prompts, an environment scores the answers, and the policy learns of them."""

    environment: str = Field(description="Gives the prompts, and scores the answers")
    dataset: str | None = Field(default=None, description="Prompts instead of the environment's own, which scores them")
    num_prompts: int = Field(default=10_000, ge=1, description="Prompts of an epoch, the first ones")
    seed: int = Field(default=0, ge=0, le=2**31, description="Of the tasks, their order, and the sampling")
    sync_every: int = Field(default=1, ge=1, description="Steps between two updates of the engine's weights")
    n_samples_per_prompt: int = Field(default=8, ge=1, le=MAX_GROUP_SIZE, description="Samples of a group")
    over_sampling_factor: float = Field(
        default=1.0, ge=1, le=100, description="So many times batch_size groups are asked for at the start of a batch"
    )
    filters: tuple[Filter, ...] = Field(default=(), description="Which groups train: each must agree")
    max_resampling: int = Field(default=10, ge=0, description="How often a batch is asked for again if they leave few")
    accept_short_batch: bool = Field(default=False, description="Then train on what they left instead of an error")
    baseline: float = Field(default=0.0, description="Advantage = reward - baseline, for groups of one sample")
    agent: str = Field(default="single_turn", description="Built in, or declared in [agents.NAME]")
    agent_options: dict[str, str] = Field(default_factory=dict, description="What the agent is made with")
    temperature: float | None = Field(
        default=None, ge=MIN_TEMPERATURE, description="Divides the logits, also in training; default: the environment's"
    )
    max_tokens: int | None = Field(default=None, ge=1, description="Of one answer; default: the environment's")
    sample_seconds: float = Field(default=600.0, gt=0, le=86400, description="Deadline of one sample")
    num_scoring_processes: int = Field(default=1, ge=1, le=256, description="Processes that score")
    scoring_seconds: float = Field(default=5.0, gt=0, le=3600, description="Deadline of one score")
    reward_at_timeout: float | None = Field(
        default=None,
        ge=-MAX_REWARD,
        le=MAX_REWARD,
        description="Reward of an answer whose score takes longer; default: another answer is sampled instead of it",
    )
    learning: LearningSettings = Field(
        default_factory=LearningSettings, description="Loss, advantages, optimizer and device"
    )
    engine: EngineSettings = Field(description="Which engine samples; default: transformers, in this process")

    @model_validator(mode="after")
    def _fit(self) -> Self:
        learning, http = self.learning, self.engine.http
        if learning.loss == "nll":
            raise ValueError("learning.loss 'nll' is that of SFT, which knows no rewards: choose another one")
        if learning.kl_reward_coefficient:
            raise ValueError("learning.kl_in 'reward' is for the online trainer: set kl_in to 'loss'")
        if learning.turn_weights:
            raise ValueError("learning.turn_weights are for the online trainer: leave them out")
        _refuse_minibatches(learning)
        if self.engine.kind == "openai_http" and (http.weight_updates == "none" or http.tokenizer_path is None):
            raise ValueError(
                "engine.http needs weight_updates, without which the servers' weights would stay, and tokenizer_path, "
                "without which answers have no tokens: set both"
            )
        return self


class TrainSettings(BaseModel):
    """A whole training: which model, what of it, and where its output goes."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, protected_namespaces=())

    mode: Literal["sft", "rl", "sft+rl"] = Field(description="sft+rl: RL begins with the newest checkpoint of SFT")
    model: str = Field(min_length=1, description="Model to start from: a directory, or a name on the hub")
    output: Path = Field(description="Directory of checkpoints and metrics; one that is begun goes on")
    gpu_ranks: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(),
        description="Numbers of GPUs, as CUDA_VISIBLE_DEVICES has them; default: the first. Several: SFT by torchrun",
    )
    environments: Declarations = Field(default_factory=dict, description="Environments of your own")
    agents: Declarations = Field(default_factory=dict, description="Agents of your own")
    sft: SftTable | None = Field(default=None, description="Supervised fine-tuning")
    rl: RlTable | None = Field(default=None, description="Reinforcement learning")

    @model_validator(mode="before")
    @classmethod
    def _engine_of_the_model(cls, values: Any) -> Any:
        rl = values.get("rl") if isinstance(values, dict) else None
        if not isinstance(rl, dict) or not isinstance(rl.get("engine", {}), dict):
            return values
        engine = rl.get("engine", {})
        if "model_path" in engine:
            raise ValueError("rl.engine.model_path: the engine samples from the model that is trained, leave it out")
        return {**values, "rl": {**rl, "engine": {"kind": "transformers", "model_path": "", **engine}}}

    @model_validator(mode="after")
    def _has_its_tables(self) -> Self:
        for name in self.mode.split("+"):
            if getattr(self, name) is None:
                raise ValueError(f"mode {self.mode!r} needs the table [{name}]: add it, or choose another mode")
        if len(self.gpu_ranks) > 1 and self.mode != "sft":
            raise ValueError(
                f"gpu_ranks {list(self.gpu_ranks)} with mode {self.mode!r}: only SFT is divided over GPUs: name one, "
                "or set mode to 'sft'"
            )
        return self

    @classmethod
    def read(cls, path: Path) -> Self:
        """The settings in a TOML file; raises `ConfigurationError` that names line, value, bound and remedy."""
        file = RunFile.read(path)
        try:
            settings = cls(**file.document)
        except ValidationError as error:
            sources = Sources(file=file, table="", own={}, environment={}, tables={"": list(cls.model_fields)})
            raise ConfigurationError("; ".join(explained(error, cls, sources))) from error
        SECRETS.add(secrets_in(settings.model_dump()))
        return settings


def _refuse_minibatches(learning: LearningSettings) -> None:
    if learning.minibatches > 1:
        raise ValueError(f"learning.minibatches {learning.minibatches}: a step here is one update, leave it out")
