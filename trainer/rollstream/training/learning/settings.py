"""`LearningSettings`: how the policy learns from a step's samples, `[trainer.learning]` in the run's file.

What a loss needs is in `objective_settings.py`.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollstream.schemas.bounds import MAX_SAMPLE_TOKENS
from rollstream.training.learning.objective_settings import ObjectiveSettings

AdvantageName = Literal["group_mean", "rloo", "reinforce_plus_plus", "constant"]
TurnName = Annotated[str, Field(min_length=1, max_length=128)]
TurnWeight = Annotated[float, Field(ge=0, le=1e3, allow_inf_nan=False)]


class AdvantageSettings(BaseModel):
    """How good a sample was, by the rewards of its group and of the step's whole batch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    advantages: AdvantageName = Field(
        default="group_mean",
        description="What a reward is compared with: group_mean: the mean of its group; rloo: that of the group's "
        "other samples; reinforce_plus_plus: group_mean, then normalized over the batch; constant: baseline. A group "
        "of one sample is compared with the step's other groups of one of its environment, except by constant",
    )
    scale_advantages: Literal["none", "group", "batch"] = Field(
        default="none",
        description="Divide advantages by the standard deviation of the rewards of a group, or of a batch",
    )
    baseline: float = Field(
        default=0.0, allow_inf_nan=False, description="What advantages=constant subtracts from each reward"
    )

    @model_validator(mode="after")
    def _own_scale(self) -> Self:
        if self.baseline and self.advantages != "constant":
            raise ValueError(
                f"baseline {self.baseline} with advantages {self.advantages!r}, which has one of its own: leave "
                "baseline out, or set advantages to 'constant'"
            )
        if self.scale_advantages != "none" and self.advantages == "reinforce_plus_plus":
            raise ValueError(
                f"scale_advantages {self.scale_advantages!r} with advantages 'reinforce_plus_plus', which normalizes "
                "over the batch: leave scale_advantages out"
            )
        if self.scale_advantages != "none" and self.advantages == "constant":
            raise ValueError(
                f"scale_advantages {self.scale_advantages!r} with advantages 'constant' divides by about 0 where all "
                "rewards are equal: leave scale_advantages out, or choose other advantages"
            )
        return self


class LearningSettings(ObjectiveSettings, AdvantageSettings):
    """Loss, advantages, optimizer and device of a training."""

    reference_path: Path | None = Field(
        default=None,
        description="Directory of the model that kl_coefficient measures from; default: the one that training starts "
        "from",
    )
    turn_weights: dict[TurnName, TurnWeight] = Field(
        default_factory=dict,
        max_length=64,
        description="Turn type, or type/number, e.g. reasoning/3 → factor of the advantage of such turns, default 1; "
        "at 0 their tokens do not train, and no normalization counts them",
    )
    minibatches: int = Field(default=1, ge=1, description="Optimizer updates per step, each on its share of samples")
    tokens_per_microbatch: int | None = Field(
        default=None, ge=1, description="Padded tokens of one forward pass; default: 1024 on a CPU, 16384 on a GPU"
    )
    share_prompts: bool | None = Field(
        default=None,
        description="Compute a prompt once for the samples of its group, where the model can and it pays; default: on "
        "a CPU, where it was measured",
    )
    max_sample_tokens: int | None = Field(
        default=None,
        ge=2,
        description="Longest sample that is trained, prompt included; the group of a longer one is dropped as "
        "out_of_bounds; default: what the model's config says",
    )
    max_rollout_tokens: int | None = Field(
        default=None,
        ge=2,
        le=MAX_SAMPLE_TOKENS,
        description="Most tokens of all samples that the turns of a rollout make, prompts included; the group of a "
        "longer one is dropped as untrainable; default: 2^20, and max_sample_tokens where a loss is of whole rollouts "
        "(gspo, the corrections of sequences), whose samples are in one forward pass",
    )
    learning_rate: float = Field(default=1e-6, ge=0, allow_inf_nan=False, description="AdamW's, after warm-up")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="How the learning rate goes on after warm-up, down to final_learning_rate"
    )
    schedule_steps: int | None = Field(
        default=None,
        ge=1,
        description="Optimizer updates, warm-up included, after which final_learning_rate is reached; with a schedule "
        "that is not constant",
    )
    final_learning_rate: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="At the end of a schedule that is not constant"
    )
    beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW's decay of gradients")
    beta2: float = Field(default=0.99, gt=0, lt=1, description="AdamW's decay of squared gradients")
    adam_epsilon: float = Field(
        default=1e-8, gt=0, allow_inf_nan=False, description="AdamW adds it to the root of the squared gradients"
    )
    weight_decay: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="AdamW's decoupled weight decay; not of norms, biases and embeddings",
    )
    warmup_steps: int = Field(default=10, ge=0, description="Optimizer updates over which the learning rate rises")
    max_grad_norm: float = Field(default=1.0, gt=0, description="Gradients are scaled down to this norm")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto takes the GPU where there is one")
    dtype: Literal["float32", "bfloat16", "float64"] = Field(
        default="float32",
        description="Of the forward pass and of published weights; parameters stay float32. float64, parameters "
        "included, is for comparing gradients, and refused by the trainer",
    )
    threads: int | None = Field(
        default=None, ge=1, le=4096, description="CPU threads of torch; default: torch's own choice"
    )
    seed: int = Field(default=0, ge=0, description="Seed of the order of samples in minibatches")

    @model_validator(mode="after")
    def _referenced(self) -> Self:
        if self.reference_path is not None and not self.kl_coefficient:
            raise ValueError(
                "a reference_path with kl_coefficient 0, so that it is never used: leave reference_path out, or set "
                "kl_coefficient"
            )
        return self

    @model_validator(mode="after")
    def _scheduled(self) -> Self:
        if (self.schedule == "constant") != (self.schedule_steps is None):
            raise ValueError(
                f"schedule {self.schedule!r} with schedule_steps {self.schedule_steps}: a constant learning rate has "
                "no schedule_steps, the other schedules need them"
            )
        if self.schedule_steps is not None and self.schedule_steps <= self.warmup_steps:
            raise ValueError(
                f"schedule_steps {self.schedule_steps} must be above warmup_steps {self.warmup_steps}: the learning "
                "rate falls between both"
            )
        return self
