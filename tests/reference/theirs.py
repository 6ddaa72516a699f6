"""Gradients by TRL's own trainer object, run by its `train()`, of answers and rewards that it is given.

Its advantages, masks, denominators, accumulation, shuffling, losses and corrections are as they are. It is given the
answers through `rollout_func`, the rewards through a reward function, an optimizer that notes gradients, and an output
head in float64: its own rounds to float32, whatever the model is.
"""

import copy
import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoTokenizer

from rollstream.schemas.scored import RolloutScored
from tests.reference.gradients import Gradients, compute_in_float64, recording
from tests.reference.rollouts import GROUP_SIZE, MAX_TOKENS, TEMPERATURE, columns, rewards

# TRL would import an installed vLLM, which takes long, and it does not know this version.
with pytest.MonkeyPatch.context() as patch:
    patch.setitem(sys.modules, "vllm", None)
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer import utils

# A run of its trainer ends with a full collection of garbage, which takes longer than the training.
gc.freeze()

NUM_UPDATES: Final = 2
MICROBATCHES_PER_UPDATE: Final = 2


def their_gradients(
    policy: Any,
    groups: Sequence[Sequence[RolloutScored]],
    directory: Path,
    *,
    shuffling_seed: int,
    config: Mapping[str, Any],
    own_head: bool = False,
) -> list[Gradients]:
    """The gradient of each update of one step; `config` are fields of `GRPOConfig`.

    `directory` holds the reference model and the tokenizer. `shuffling_seed` decides which samples make which update.
    With a `vllm_importance_sampling_mode` TRL corrects for what differs between the policy and the one that sampled.
    """
    model = copy.deepcopy(policy)
    optimizer, gradients = recording(model)

    def reward_of_all(**_: Any) -> list[float]:
        # The last that TRL asks for before it shuffles.
        torch.manual_seed(shuffling_seed)
        return rewards(groups)

    with _in_float64(own_head=own_head):
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=[reward_of_all],
            args=_config(directory, sum(map(len, groups)), config),
            train_dataset=Dataset.from_dict({"prompt": [f"prompt {row}" for row in range(len(groups))]}),
            processing_class=AutoTokenizer.from_pretrained(directory, padding_side="left"),
            rollout_func=lambda prompts, trainer: columns(groups),
            optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)),
        )
        # That vLLM sampled is said here and not in the config, with which TRL would start it.
        trainer.use_vllm = config["vllm_importance_sampling_mode"] is not None
        trainer._last_loaded_step = trainer.state.global_step
        if trainer.ref_model is not None:
            compute_in_float64(trainer.ref_model)
        trainer.train()
    return gradients


def _config(directory: Path, num_samples: int, config: Mapping[str, Any]) -> Any:
    fields = {
        "output_dir": str(directory / "trl"),
        "use_cpu": True,
        "bf16": False,
        "max_steps": NUM_UPDATES,
        "per_device_train_batch_size": num_samples // NUM_UPDATES // MICROBATCHES_PER_UPDATE,
        "gradient_accumulation_steps": MICROBATCHES_PER_UPDATE,
        "steps_per_generation": NUM_UPDATES * MICROBATCHES_PER_UPDATE,
        "num_generations": GROUP_SIZE,
        "max_completion_length": MAX_TOKENS,
        "temperature": TEMPERATURE,
        "mask_truncated_completions": True,
        "shuffle_dataset": False,
        "beta": 0.0,
        "max_grad_norm": 0.0,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }
    return GRPOConfig(**{**fields, **config})


class _Head:
    """Stands for TRL's fused output head."""

    @staticmethod
    def apply(
        hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float, *_: Any
    ) -> tuple[Tensor | None, ...]:
        """hidden [N, H] → logprobs [N] of targets [N], entropies [N], and what this trainer does not ask for."""
        logprobs = torch.log_softmax(torch.nn.functional.linear(hidden, weight, bias) / temperature, dim=-1)
        entropies = -(logprobs.exp() * logprobs).sum(dim=-1)
        return logprobs.gather(1, targets[:, None]).squeeze(1), entropies, None, None, None


@contextmanager
def _in_float64(*, own_head: bool) -> Iterator[None]:
    before = torch.get_default_dtype()
    # Of TRL's own tensors, e.g. rewards and logprobs.
    torch.set_default_dtype(torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        # It would warn that `rollout_func` is an experiment.
        patch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
        if not own_head:
            patch.setattr(utils, "_ChunkedLogProbFunction", _Head)
        try:
            yield
        finally:
            torch.set_default_dtype(before)
