"""`ObjectiveSettings`: what a loss needs, and which options fit each other. The rest is in `settings.py`."""

from math import inf
from typing import Final, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

PolicyLossName = Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "ppo", "reinforce"]
LossName = Literal[PolicyLossName, "nll"]
"""`nll` is supervised fine-tuning's: it imitates the tokens, whatever their reward."""
Normalization = Literal["dapo", "grpo", "dr_grpo"]
Correction = Literal["none", "token", "sequence", "icepop", "mask_sequence"]

_OWN_NORMALIZATION: dict[LossName, Normalization] = {
    "grpo": "grpo",
    "dr_grpo": "dr_grpo",
    "dapo": "dapo",
    "gspo": "grpo",
    "cispo": "dapo",
    "ppo": "dapo",
    "reinforce": "dapo",
    "nll": "dapo",
}
_OWN_CLIP: dict[LossName, tuple[float, float]] = {
    "grpo": (0.2, 0.2),
    "dr_grpo": (0.2, 0.2),
    "dapo": (0.2, 0.28),
    "gspo": (3e-4, 4e-4),
    "cispo": (1.0, 4.0),
    "ppo": (0.2, 0.2),
    "reinforce": (1.0, inf),
    "nll": (1.0, inf),
}
"""clip_low and clip_high of each loss, as its paper trains; (1, infinity) bounds nothing.

PPO section 6.1. DeepSeekMath names no range, Dr. GRPO's code has PPO's. DAPO section 4.1. GSPO section 5.1, where the
ratio is that of a sequence. MiniMax-M1 has no lower bound and names no upper one: a ratio of at most 5 is from ScaleRL
(arXiv 2510.13786), which trains with CISPO.
"""
_OWN_IMPORTANCE: dict[Correction, tuple[float, float]] = {
    "none": (0.0, inf),
    "token": (0.0, 2.0),
    "sequence": (0.0, 3.0),
    "icepop": (0.5, 5.0),
    "mask_sequence": (0.0, 3.0),
}
"""importance_floor and importance_cap of each correction; `corrections.py` names the papers.

IcePop's are its paper's. Those of sequences are TRL's `vllm_importance_sampling_clip_max`, without a floor.
"""
_CLIPPED: Final = ("grpo", "dr_grpo", "dapo", "gspo", "ppo")
_POLICY: Final = get_args(PolicyLossName)
_TAKEN_BY: Final[dict[str, tuple[str, ...]]] = {
    "clip_low": _CLIPPED,
    "clip_high": (*_CLIPPED, "cispo"),
    "dual_clip": _CLIPPED,
    "old": (*_CLIPPED, "cispo"),
    "correction": _POLICY,
    "importance_floor": _POLICY,
    "importance_cap": _POLICY,
    "kl_coefficient": _POLICY,
    "entropy_coefficient": _POLICY,
}
"""Which losses take an option that not all take."""
_FLOORED: Final = ("icepop", "mask_sequence")


class ObjectiveSettings(BaseModel):
    """What the loss of a token is, and how much the token counts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    loss: LossName = Field(
        default="dapo",
        description="Surrogate, normalization and clip bounds of this paper; advantages are a separate setting",
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
        "not with cispo and reinforce",
    )
    clip_high: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="The importance ratio is clipped above 1 + clip_high; default: the loss's own: dapo 0.28, gspo "
        "0.0004, cispo 4, the others 0.2; not with reinforce",
    )
    dual_clip: float | None = Field(
        default=None,
        gt=1,
        allow_inf_nan=False,
        description="Bound of the importance ratio of bad samples too, e.g. 3; default: none; not with cispo and "
        "reinforce",
    )
    old: Literal["proximal", "behavior"] = Field(
        default="proximal",
        description="Denominator of the importance ratio: the policy before the step, or the one that sampled; with "
        "proximal and one minibatch the ratio is 1, so nothing is clipped; not with reinforce, which has no ratio",
    )
    correction: Correction | None = Field(
        default=None,
        description="What becomes of the importance weight proximal / behavior: none: not used; token: capped; "
        "sequence: that of the whole sample, capped; icepop: tokens outside its bounds leave the loss; mask_sequence: "
        "samples outside leave it; default: token, with old=behavior none",
    )
    importance_floor: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Least importance weight, below it icepop and mask_sequence set 0; default: icepop 0.5",
    )
    importance_cap: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Bound of the importance weight; default: the correction's own: token 2, sequence and "
        "mask_sequence 3, icepop 5; not with old=behavior",
    )
    kl_coefficient: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="Weight of the KL divergence from the reference model; above 0 that model is loaded too",
    )
    kl_in: Literal["loss", "reward"] = Field(
        default="loss", description="Where that divergence is counted: in the loss of a token, or in a sample's reward"
    )
    kl_estimator: Literal["k1", "k2", "k3"] | None = Field(
        default=None, description="Of the divergence: k2 or k3 in the loss, k1 in the reward; default: k3, or k1"
    )
    entropy_coefficient: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="Weight of the entropy of each token's distribution: a bonus",
    )

    @model_validator(mode="after")
    def _correct_once(self) -> Self:
        for name in ("correction", "importance_floor", "importance_cap"):
            value = getattr(self, name)
            if self.old == "behavior" and value not in (None, "none"):
                raise ValueError(
                    f"{name} {value!r} with old='behavior' corrects for lag twice: leave {name} out, or set "
                    "old='proximal'"
                )
        return self

    @model_validator(mode="after")
    def _own_options(self) -> Self:
        for name, losses in _TAKEN_BY.items():
            value = getattr(self, name)
            if self.loss not in losses and value != ObjectiveSettings.model_fields[name].default:
                raise ValueError(
                    f"{name} {value!r} with loss {self.loss!r}: leave {name} out, or choose a loss that takes it: "
                    f"{', '.join(losses)}"
                )
        return self

    @model_validator(mode="after")
    def _own_bounds(self) -> Self:
        correction = self.resolved_correction
        if correction == "none" and self.importance_cap is not None:
            raise ValueError(
                f"importance_cap {self.importance_cap} with correction 'none', which weighs nothing: leave "
                "importance_cap out, or choose another correction"
            )
        if correction not in _FLOORED and self.importance_floor is not None:
            raise ValueError(
                f"importance_floor {self.importance_floor} with correction {correction!r}: leave it out, or choose "
                f"{' or '.join(_FLOORED)}"
            )
        floor, cap = self.resolved_importance
        if floor >= cap:
            raise ValueError(f"importance_floor {floor} must be below importance_cap {cap}: no weight is between them")
        return self

    @model_validator(mode="after")
    def _unbiased_kl(self) -> Self:
        if self.kl_in == "loss" and self.kl_estimator == "k1":
            raise ValueError(
                "kl_estimator 'k1' with kl_in 'loss': its expected gradient is 0, whatever the reference is: set "
                "kl_estimator to k2 or k3, or kl_in to 'reward'"
            )
        if self.kl_in == "reward" and self.kl_estimator not in (None, "k1"):
            raise ValueError(
                f"kl_estimator {self.kl_estimator!r} with kl_in 'reward': only k1's gradient is that of the divergence "
                "there: leave kl_estimator out, or set kl_in to 'loss'"
            )
        if not self.kl_coefficient and (self.kl_in != "loss" or self.kl_estimator is not None):
            raise ValueError(
                f"kl_in {self.kl_in!r} and kl_estimator {self.kl_estimator!r} with kl_coefficient 0, so that they are "
                "never used: leave them out, or set kl_coefficient"
            )
        return self

    @property
    def resolved_clip(self) -> tuple[float, float]:
        low, high = _OWN_CLIP[self.loss]
        return self.clip_low or low, self.clip_high or high

    @property
    def compares_sequences(self) -> bool:
        """Whether the loss of a token depends on all tokens of its rollout that train."""
        return self.loss == "gspo" or self.resolved_correction in ("sequence", "mask_sequence")

    @property
    def resolved_normalization(self) -> Normalization:
        return self.normalization or _OWN_NORMALIZATION[self.loss]

    @property
    def resolved_correction(self) -> Correction:
        return self.correction or ("none" if self.old == "behavior" or self.loss == "nll" else "token")

    @property
    def resolved_importance(self) -> tuple[float, float]:
        """Floor and cap of the importance weight."""
        floor, cap = _OWN_IMPORTANCE[self.resolved_correction]
        return self.importance_floor or floor, self.importance_cap or cap

    @property
    def resolved_kl_estimator(self) -> Literal["k1", "k2", "k3"]:
        return self.kl_estimator or ("k3" if self.kl_in == "loss" else "k1")

    @property
    def kl_loss_coefficient(self) -> float:
        return self.kl_coefficient if self.kl_in == "loss" else 0.0

    @property
    def kl_reward_coefficient(self) -> float:
        return self.kl_coefficient if self.kl_in == "reward" else 0.0
