"""AdamW over a model's parameters, its learning rate over time, and its state from a checkpoint.

Weight decay is decoupled (arXiv 1711.05101). It leaves out norms, biases and embeddings, a tied output head with them:
shrinking them bounds no function of the input, and rare tokens, which hardly get a gradient, would fade.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import Embedding, Module

from rollstream.training.learning.settings import LearningSettings


def adamw(model: Module, settings: LearningSettings) -> torch.optim.AdamW:
    """The optimizer that the settings describe, with two groups of parameters: with weight decay, and without."""
    embeddings = {id(own) for part in model.modules() if isinstance(part, Embedding) for own in part.parameters()}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decay = [parameter for parameter in trained if parameter.ndim > 1 and id(parameter) not in embeddings]
    others = [parameter for parameter in trained if parameter.ndim < 2 or id(parameter) in embeddings]
    return torch.optim.AdamW(
        [{"params": decay, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.adam_epsilon,
        fused=True,
    )


def learning_rate(settings: LearningSettings, update: int) -> float:
    """Of an optimizer update, from 1: a linear warm-up, then as the schedule says."""
    if update <= settings.warmup_steps:
        return settings.learning_rate * update / settings.warmup_steps
    if settings.schedule_steps is None:
        return settings.learning_rate
    progress = min(1.0, (update - settings.warmup_steps) / (settings.schedule_steps - settings.warmup_steps))
    left = 1 - progress if settings.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return settings.final_learning_rate + (settings.learning_rate - settings.final_learning_rate) * left


def restore(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Take over the moments of a checkpoint; the optimizer's own settings stay in force."""
    own = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    optimizer.load_state_dict(dict(state))
    for group, settings in zip(optimizer.param_groups, own, strict=True):
        group.update(settings)
