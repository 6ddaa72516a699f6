"""What supervised fine-tuning (SFT) on demonstrations or rollouts is told."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from rollstream.process.settings.base import RUN_FILE
from rollstream.process.settings.declared import Declarations
from rollstream.process.settings.options import EXISTING, FILE, CommandOptions
from rollstream.training.learning.settings import LearningSettings


class _Training(CommandOptions):
    """What people choose of the training itself."""

    output: Path = Field(description="Model directory to write.")
    environment: str | None = Field(
        default=None, description="Environment with demonstrations; with --rollouts, what measures the accuracy."
    )
    epochs: int | None = Field(default=None, ge=1, description="Passes over the rollouts; default: until --max-steps.")
    until_accuracy: float | None = Field(
        default=None, ge=0, le=1, description="Stop at this accuracy of sampled answers to validation tasks."
    )
    max_steps: int = Field(default=1000, ge=1, description="Stop after this many steps.")
    batch_size: int = Field(default=64, ge=1, description="Demonstrations per step.")


class SftOptions(_Training):
    """Options of `rollstream sft`."""

    model: Path | None = Field(default=None, description="Model directory to start from.")
    tiny_model: bool = Field(
        default=False, description="Start from a new tiny model with random weights (1 M parameters)."
    )
    learning_rate: float = Field(default=1e-3, gt=0, description="AdamW, constant after warm-up.")
    threads: int | None = Field(default=None, ge=1, le=4096, description="CPU threads; default: torch's own choice.")
    dtype: Literal["float32", "bfloat16"] = Field(default="float32", description="Of the forward pass and the output.")
    seed: int = Field(default=0, ge=0, description="For weights, order and sampling.")
    rollouts: Path | None = Field(
        default=None,
        json_schema_extra=EXISTING,
        description="Train on the answers of rollouts instead: JSONL, parquet or a directory of `datasets`.",
    )
    min_reward: float | None = Field(
        default=None, description="Least reward of a rollout; default: any, but it must have one."
    )
    config: Path | None = Field(
        default=None,
        json_schema_extra=FILE,
        description=f"A run's {RUN_FILE}, where environments of your own are declared; without it there are the "
        "built-in ones.",
    )

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if (self.model is None) != self.tiny_model:
            raise ValueError("name a model directory with --model, or take --tiny-model")
        lacks_environment = self.environment is None
        if self.rollouts is None and (lacks_environment or self.min_reward is not None or self.epochs is not None):
            raise ValueError("name --environment, or --rollouts, which --min-reward and --epochs are for")
        if self.rollouts is not None and lacks_environment != (self.until_accuracy is None):
            raise ValueError("beside --rollouts, --environment and --until-accuracy need each other")
        return self

    def settings(self, model_path: Path, environments: Declarations) -> "SftSettings":
        """The settings of the training from this model."""
        chosen = self.model_dump(include={*_Training.model_fields})
        learning = imitating(**self.model_dump(include={"learning_rate", "threads", "dtype", "seed"}))
        return SftSettings(model_path=model_path, environments=environments, learning=learning, **chosen)


class SftSettings(_Training):
    """How a model is trained. With rollouts the environment only measures `until_accuracy`, on its split validate."""

    model_config = ConfigDict(protected_namespaces=())

    model_path: Path = Field(description="Model directory to start from")
    environments: Declarations = Field(default_factory=dict, description="Environments that are not built in")
    check_every: int = Field(default=5, ge=1, description="Steps between two checks of the accuracy")
    num_validation_prompts: int = Field(default=256, ge=1, description="Prompts of one check")
    learning: LearningSettings = Field(description="Loss, optimizer and device")


def imitating(**fields: Any) -> LearningSettings:
    """What `LearningSettings` are by default for demonstrations: their tokens are imitated, after a short warm-up."""
    return LearningSettings(**{"loss": "nll", "learning_rate": 1e-3, "warmup_steps": 30, "beta2": 0.999, **fields})
