"""How the policy learns from a step's samples: `LearningSettings`, `[trainer.learning]` in the run's file.

`ObjectiveSettings` is the part of it that a loss needs.
"""

from math import inf
from typing import Annotated, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

PolicyLossName = Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "ppo"]
LossName = Literal[PolicyLossName, "nll"]
"""`nll` is supervised fine-tuning's: it imitates the tokens, whatever their reward."""
Normalization = Literal["dapo", "grpo", "dr_grpo"]

TurnName = Annotated[str, Field(min_length=1, max_length=128)]
TurnWeight = Annotated[float, Field(ge=0, le=1e3, allow_inf_nan=False)]

DEFAULT_IMPORTANCE_CAP = 2.0
_OWN_NORMALIZATION: dict[LossName, Normalization] = {
    "grpo": "grpo",
    "dr_grpo": "dr_grpo",
    "dapo": "dapo",
    "gspo": "grpo",
    "cispo": "dapo",
    "ppo": "dapo",
    "nll": "dapo",
}
_OWN_CLIP: dict[LossName, tuple[float, float]] = {
    "grpo": (0.2, 0.2),
    "dr_grpo": (0.2, 0.2),
    "dapo": (0.2, 0.28),
    "gspo": (3e-4, 4e-4),
    "cispo": (1.0, 4.0),
    "ppo": (0.2, 0.2),
    "nll": (1.0, inf),
}
"""clip_low and clip_high of each loss, as its paper trains.

PPO section 6.1. DeepSeekMath names no range, Dr. GRPO's code has PPO's. DAPO section 4.1. GSPO section 5.1, where the
ratio is that of a sequence. MiniMax-M1 has no lower bound and names no upper one: a ratio of at most 5 is from ScaleRL
(arXiv 2510.13786), which trains with CISPO.
"""


class ObjectiveSettings(BaseModel):
    """What the loss of a token is, and how much the token counts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    loss: LossName = Field(
        default="dapo",
        description="Surrogate, normalization and clip bounds of this paper; scaling by std is a separate setting",
    )
    normalization: Normalization | None = Field(
        default=None,
        description="dapo: mean over tokens; grpo: mean of sequence means; dr_grpo: sum ÷ all max_tokens; "
        "default: the loss's own",
    )
    clip_low: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="The importance ratio is clipped below 1 - clip_low; default: the loss's own: 0.2, gspo 0.0003; "
        "cispo has no lower bound and ignores it",
    )
    clip_high: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="The importance ratio is clipped above 1 + clip_high; default: the loss's own: dapo 0.28, gspo "
        "0.0004, cispo 4, the others 0.2",
    )
    old: Literal["proximal", "behavior"] = Field(
        default="proximal",
        description="Denominator of the importance ratio: the policy before the step, or the one that sampled; with "
        "proximal and one minibatch the ratio is 1, so nothing is clipped",
    )
    importance_cap: float | None = Field(
        default=None,
        gt=0,
        description="Bound of the importance weight proximal / behavior, default 2; not with old=behavior",
    )

    @model_validator(mode="after")
    def _correct_once(self) -> Self:
        if self.old == "behavior" and self.importance_cap is not None:
            raise ValueError(
                f"importance_cap {self.importance_cap} with old='behavior' corrects for lag twice: "
                "leave importance_cap out, or set old='proximal'"
            )
        return self

    @model_validator(mode="after")
    def _own_options(self) -> Self:
        if self.loss != "nll":
            return self
        for name in ("clip_low", "clip_high", "old", "importance_cap"):
            value = getattr(self, name)
            if value != ObjectiveSettings.model_fields[name].default:
                raise ValueError(
                    f"{name} {value!r} with loss 'nll', which has no importance ratio: leave {name} out, or choose "
                    f"one of {', '.join(get_args(PolicyLossName))}"
                )
        return self

    @property
    def resolved_clip(self) -> tuple[float, float]:
        low, high = _OWN_CLIP[self.loss]
        return self.clip_low or low, self.clip_high or high

    @property
    def compares_sequences(self) -> bool:
        """Whether the loss of a token depends on all tokens of its rollout that train."""
        return self.loss == "gspo"

    @property
    def resolved_normalization(self) -> Normalization:
        return self.normalization or _OWN_NORMALIZATION[self.loss]

    @property
    def resolved_importance_cap(self) -> float | None:
        """The cap in force; None where no weight is applied."""
        has_weight = self.old == "proximal" and self.loss != "nll"
        return (self.importance_cap or DEFAULT_IMPORTANCE_CAP) if has_weight else None


class LearningSettings(ObjectiveSettings):
    """Loss, optimizer and device of a training."""

    scale_advantages_by_std: bool = Field(
        default=False, description="Divide reward - group mean by the group's standard deviation"
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
