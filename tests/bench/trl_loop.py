"""GRPO by TRL, the other side of the bench `loop`. A script for an environment of its own, beside no rollstream.

    python trl_loop.py TASK.json RESULT.json

It takes the prompts in the order of TASK.json and does not shuffle them, so that both sides answer the same ones.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Progress(TrainerCallback):  # type: ignore[misc]
    """When each step ended, Unix seconds; the CPU seconds of this process by then; its tokens that train."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.steps: list[dict[str, float]] = []
        self.stop_token = -1
        self._task = task
        self._trained_tokens = 0

    def reward(self, completions: list[Any], completion_ids: list[list[int]], **columns: Any) -> list[float]:
        """The rewards of all samples of a step, as the task wants them; called once a step."""
        self._trained_tokens = sum(len(ids) for ids in completion_ids if self._trains(ids))
        texts = [completion[-1]["content"] for completion in completions]
        if self._task["reward"] == "parity":
            return [float(sum(map(ord, text)) % 2) for text in texts]
        return [float(text == answer) for text, answer in zip(texts, columns["reference_answer"], strict=True)]

    def _trains(self, ids: list[int]) -> bool:
        is_cut = len(ids) >= self._task["max_tokens"] and ids[-1] != self.stop_token
        return self._task["train_truncated"] or not is_cut

    def on_step_end(self, *_args: Any, **_more: Any) -> None:
        cpu = os.times()
        self.steps.append(
            {
                "ended": time.time(),
                "cpu_seconds": cpu.user + cpu.system + cpu.children_user + cpu.children_system,
                "trained_tokens": self._trained_tokens,
            }
        )


def main(task_path: Path, result_path: Path) -> None:
    """Train for the steps of the task, and write what `Progress` noted."""
    task = json.loads(task_path.read_text())
    progress = Progress(task)
    trainer = GRPOTrainer(
        model=task["model"],
        reward_funcs=[progress.reward],
        args=_config(task, result_path.parent / "trl"),
        train_dataset=Dataset.from_list(task["prompts"]),
        callbacks=[progress],
    )
    progress.stop_token = trainer.processing_class.eos_token_id
    trainer.train()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    result_path.write_text(json.dumps({"steps": progress.steps, "rewards": rewards}))


def _config(task: dict[str, Any], directory: Path) -> GRPOConfig:
    return GRPOConfig(
        output_dir=str(directory),
        use_cpu=True,
        bf16=False,
        max_steps=task["num_steps"],
        per_device_train_batch_size=task["samples_per_backward"],
        gradient_accumulation_steps=task["samples_per_step"] // task["samples_per_backward"],
        use_transformers_continuous_batching=task["continuous_batching"],
        num_generations=task["group_size"],
        max_completion_length=task["max_tokens"],
        temperature=1.0,
        shuffle_dataset=False,
        loss_type="dapo",
        epsilon=0.2,
        epsilon_high=0.28,
        scale_rewards="group",
        beta=0.0,
        mask_truncated_completions=not task["train_truncated"],
        learning_rate=task["learning_rate"],
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=10,
        adam_beta2=0.99,
        weight_decay=0.0,
        max_grad_norm=1.0,
        gradient_checkpointing=False,
        seed=task["seed"],
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        model_init_kwargs={"dtype": "float32"},
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
