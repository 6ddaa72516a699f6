"""What is compared with TRL: our settings, and TRL's for the same. And what is compared with a plain computation."""

from dataclasses import dataclass
from typing import Any, Final

LOW: Final = 0.2
HIGH: Final = 0.4
CAP: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`ours`: fields of `LearningSettings`; `theirs`: of `GRPOConfig`."""

    ours: dict[str, Any]
    theirs: dict[str, Any]


def _loss(name: str, ours: dict[str, Any] | None = None, **theirs: Any) -> Case:
    """A loss with what most cases have: a clip range, importance weights of tokens, advantages as they are."""
    weighed = {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": CAP}
    return Case(
        ours={"loss": name, "clip_low": LOW, "clip_high": HIGH, "importance_cap": CAP, **(ours or {})},
        theirs={"loss_type": name, "epsilon": LOW, "epsilon_high": HIGH, "scale_rewards": "none", **weighed, **theirs},
    )


def _corrected(correction: str, mode: str | None, floor: float | None = None, cap: float | None = None) -> Case:
    ours = {"correction": correction, "importance_floor": floor, "importance_cap": cap}
    theirs = {"vllm_importance_sampling_clip_min": floor, "vllm_importance_sampling_clip_max": cap}
    return _loss("dapo", ours, vllm_importance_sampling_mode=mode, **theirs)


_WHOLE_UPDATES: Final = {
    "per_device_train_batch_size": 6, "gradient_accumulation_steps": 1, "steps_per_generation": 2,
}  # fmt: skip
# TRL can also multiply the divergence by the ratio, as DeepSeek-V3.2 does.
_KL: Final = {"beta": 0.3, "use_bias_correction_kl": False}
_TOGETHER: Final = {"kl_coefficient": 0.3, "dual_clip": 1.5, "scale_advantages": "group"}
CASES: Final = {
    "grpo": _loss("grpo"),
    "dr_grpo": _loss("dr_grpo"),
    "dapo": _loss("dapo"),
    # TRL has none of this name: it is DAPO's with one bound for both sides.
    "ppo": _loss("ppo", {"clip_high": LOW}, loss_type="dapo", epsilon_high=LOW),
    "gspo": _loss("gspo", loss_type="grpo", importance_sampling_level="sequence"),
    # Its bound is the ratio itself, and there is no lower one.
    "cispo": _loss("cispo", {"clip_low": None}, epsilon_high=1 + HIGH),
    "no_correction": _corrected("none", None),
    "token_cap": _corrected("token", "token_truncate", cap=CAP),
    "sequence_cap": _corrected("sequence", "sequence_truncate", cap=CAP),
    "icepop": _corrected("icepop", "token_mask", floor=0.5, cap=CAP),
    "mask_sequence": _corrected("mask_sequence", "sequence_mask", floor=0.5, cap=3.0),
    "kl": _loss("grpo", {"kl_coefficient": 0.3}, **_KL),
    "dual_clip": _loss("dapo", {"dual_clip": 1.5}, delta=1.5),
    # TRL's bonus is a mean over the tokens of a micro-batch, ours over those of an update.
    "entropy": _loss("dapo", {"entropy_coefficient": 0.1}, entropy_coef=0.1, **_WHOLE_UPDATES),
    "std_of_group": _loss("grpo", {"scale_advantages": "group"}, scale_rewards="group"),
    "std_of_batch": _loss("grpo", {"scale_advantages": "batch"}, scale_rewards="batch"),
    "together": _loss("grpo", _TOGETHER, **_KL, delta=1.5, scale_rewards="group"),
}

_CLIP: Final = {"clip_low": LOW, "clip_high": HIGH}
PLAIN_CASES: Final[dict[str, dict[str, Any]]] = {
    **{name: {"loss": name, "old": "behavior", **_CLIP} for name in ("grpo", "dr_grpo", "dapo", "ppo", "gspo")},
    "cispo": {"loss": "cispo", "old": "behavior", "clip_high": HIGH},
    "reinforce": {"loss": "reinforce", "importance_cap": CAP},
    "k2": {"loss": "reinforce", "importance_cap": CAP, "kl_coefficient": 0.3, "kl_estimator": "k2"},
}
"""Fields of `LearningSettings`, by the name of a loss in `plain.py`."""
