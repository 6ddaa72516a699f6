"""`SftSettings`: how a model is trained by supervised fine-tuning (SFT) on demonstrations or rollouts."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from rollstream.process.settings.declared import Declarations


class SftSettings(BaseModel):
    """The options of `rollstream sft`."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    model_path: Path = Field(description="Model directory to start from")
    output: Path = Field(description="Model directory to write")
    environment: str | None = Field(
        default=None, description="Name of the environment; with rollouts only what measures until_accuracy"
    )
    environments: Declarations = Field(default_factory=dict, description="Environments that are not built in")
    until_accuracy: float | None = Field(
        default=None, description="Stop at this mean reward of sampled answers to prompts of the split validate"
    )
    max_steps: int = Field(default=1000, ge=1, description="Stop after this many optimizer steps")
    epochs: int | None = Field(
        default=None, ge=1, description="Passes over the rollouts, if max_steps allows them; default: without end"
    )
    check_every: int = Field(default=5, ge=1, description="Steps between two checks of the accuracy")
    num_validation_prompts: int = Field(default=256, ge=1, description="Prompts of one check")
    batch_size: int = Field(default=64, ge=1, description="Demonstrations per step")
    learning_rate: float = Field(default=1e-3, gt=0, description="AdamW, constant after warm-up")
    warmup_steps: int = Field(default=30, ge=0, description="Steps over which the learning rate rises")
    max_grad_norm: float = Field(default=1.0, gt=0, description="Gradients are scaled down to this norm")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto takes the GPU where there is one")
    threads: int | None = Field(default=None, ge=1, description="CPU threads of torch; default: torch's own choice")
    seed: int = Field(default=0, ge=0, description="Seed of the demonstrations and of sampling")
