"""How well a model answers the prompts of the split validate: the number that stops a warm-up."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

import torch
from transformers import GenerationConfig

from rollstream.engines.tokenizer import ChatTokenizer
from rollstream.environments.protocol import Environment, Task
from rollstream.environments.rubric import RewardInput
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.prompt import Sampling

# Prompts that are answered side by side.
_ROWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Prompts of the split validate, the same ones each time."""

    environment: Environment
    tokenizer: ChatTokenizer
    tasks: tuple[Task, ...]

    @classmethod
    def of(cls, environment: Environment, tokenizer: ChatTokenizer, num_prompts: int, seed: int) -> Self:
        """The first `num_prompts` prompts of the split; raises `ConfigurationError` if it has none."""
        tasks = tuple(islice(environment.tasks("validate", seed), num_prompts))
        if not tasks:
            raise ConfigurationError(
                f"environment {environment.name!r} has no prompt in the split validate, so no accuracy can be "
                "measured: add tasks, or leave until_accuracy out"
            )
        return cls(environment=environment, tokenizer=tokenizer, tasks=tasks)

    def accuracy(self, model: Any) -> float:
        """Mean reward of one answer per prompt, sampled at the environment's temperature alone; greedy at 0."""
        rewards = []
        for start in range(0, len(self.tasks), _ROWS):
            tasks = self.tasks[start : start + _ROWS]
            rewards += [
                self._reward(task, answer) for task, answer in zip(tasks, self._sampled(model, tasks), strict=True)
            ]
        return sum(rewards) / len(rewards)

    def _reward(self, task: Task, answer: str) -> float:
        reward, _ = self.environment.rubric.score(
            RewardInput(
                completion=answer,
                assistant_messages=(answer,),
                messages=task.messages,
                reference_answer=task.reference_answer,
                metadata=task.metadata,
            )
        )
        return reward

    @torch.no_grad()
    def _sampled(self, model: Any, tasks: Sequence[Task]) -> list[str]:
        """One answer per task; prompts are padded on the left, so that all answers begin in the same column."""
        prompts = [self.tokenizer.tokenize(task.messages, ()) for task in tasks]
        longest = max(len(prompt) for prompt in prompts)
        input_ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros_like(input_ids)
        for row, prompt in enumerate(prompts):
            input_ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        with _generation_config(model, self.environment.sampling):
            token_ids = model.generate(input_ids.to(model.device), attention_mask=mask.to(model.device))
        return [self.tokenizer.detokenize(row) for row in token_ids[:, longest:].cpu().numpy()]


@contextmanager
def _generation_config(model: Any, sampling: Sampling) -> Iterator[None]:
    """Replace the model's own generation config for a while: `generate` takes top_p, penalties and more from it."""
    own = model.generation_config
    how = {"do_sample": True, "temperature": sampling.temperature} if sampling.temperature else {"do_sample": False}
    model.generation_config = GenerationConfig(
        eos_token_id=own.eos_token_id, pad_token_id=own.pad_token_id, max_new_tokens=sampling.max_tokens, top_k=0, **how
    )
    try:
        yield
    finally:
        model.generation_config = own
