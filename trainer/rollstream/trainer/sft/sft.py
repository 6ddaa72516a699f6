"""Warm-up: supervised fine-tuning (SFT) on an environment's demonstrations, until the policy sometimes succeeds.

Reinforcement learning needs groups whose rewards differ. A model that never succeeds gives none.
Shapes: `B` demonstrations, `L` tokens of the longest, `V` vocabulary.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoTokenizer

from rollstream.engines.tokenizer import ChatTokenizer
from rollstream.environments.load import load_environment
from rollstream.environments.protocol import Environment
from rollstream.schemas.errors import ConfigurationError
from rollstream.trainer.learning.model_files import load_model, resolve_device, save_model
from rollstream.trainer.sft.settings import SftSettings
from rollstream.trainer.sft.validation import Validation

_LOG = logging.getLogger(__name__)
_IGNORED = -100
_SEED_OFFSET = 1_000_003  # a producer with the same seed gives its tasks in another order


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """A prompt and the answer to imitate, as token ids; the answer ends with the stop token."""

    prompt: Sequence[int]
    answer: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SftReport:
    """How a warm-up ended; `accuracy` is None if it was never checked."""

    num_steps: int
    loss: float
    accuracy: float | None


def run_sft(settings: SftSettings) -> SftReport:
    """Train and write the model directory.

    Raises `ConfigurationError` if the environment has no demonstrations, or no prompts to measure the accuracy with.
    """
    device = resolve_device(settings.device, settings.threads)
    torch.manual_seed(settings.seed)
    environment = load_environment(settings.environment, settings.environments)
    model = load_model(settings.model_path, device)
    tokenizer = ChatTokenizer(settings.model_path)
    validation = None
    if settings.until_accuracy is not None:
        validation = Validation.of(environment, tokenizer, settings.num_validation_prompts, settings.seed)
    report = _train(model, demonstrations(environment, tokenizer, settings), validation, settings)
    save_model(model, settings.output, dtype=torch.float32, tokenizer_from=settings.model_path)
    return report


def demonstrations(
    environment: Environment, tokenizer: ChatTokenizer, settings: SftSettings
) -> Iterator[Demonstration]:
    """Demonstrations of the split train, without end: each pass in another order, tasks without one left out."""
    texts = AutoTokenizer.from_pretrained(settings.model_path)
    if texts.eos_token_id is None:
        raise ConfigurationError(f"the tokenizer of {settings.model_path} has no stop token: answers would never end")
    for epoch in count(settings.seed + _SEED_OFFSET):
        num_before = 0
        for task in environment.tasks("train", epoch):
            if task.demonstration is None:
                continue
            num_before += 1
            answer = texts(task.demonstration, add_special_tokens=False).input_ids
            yield Demonstration(
                prompt=tokenizer.tokenize(task.messages, ()).tolist(), answer=[*answer, texts.eos_token_id]
            )
        if not num_before:
            raise ConfigurationError(f"environment {environment.name!r} has no demonstrations to learn from")


def padded(batch: Sequence[Demonstration]) -> tuple[Tensor, Tensor]:
    """Input ids [B, L], padded on the right, and labels [B, L], which are -100 on prompts and padding."""
    longest = max(len(one.prompt) + len(one.answer) for one in batch)
    input_ids = torch.zeros(len(batch), longest, dtype=torch.long)
    labels = torch.full((len(batch), longest), _IGNORED)
    for row, one in enumerate(batch):
        given, end = len(one.prompt), len(one.prompt) + len(one.answer)
        input_ids[row, :end] = torch.tensor([*one.prompt, *one.answer])
        labels[row, given:end] = torch.tensor(one.answer)
    return input_ids, labels


def masked_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean negative logprob of the answers' tokens: logits [B, L, V], labels [B, L], where -100 does not count."""
    return functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=_IGNORED
    )


def _train(
    model: Any, source: Iterator[Demonstration], validation: Validation | None, settings: SftSettings
) -> SftReport:
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.0, fused=True)
    loss, accuracy = float("nan"), None
    for step in range(1, settings.max_steps + 1):
        loss = _step(model, optimizer, list(islice(source, settings.batch_size)), settings, step)
        if validation is None or step % settings.check_every:
            continue
        accuracy = validation.accuracy(model)
        _LOG.info("warm-up step %d: loss %.3f, sampled accuracy %.3f", step, loss, accuracy)
        if settings.until_accuracy is not None and accuracy >= settings.until_accuracy:
            return SftReport(num_steps=step, loss=loss, accuracy=accuracy)
    return SftReport(num_steps=settings.max_steps, loss=loss, accuracy=accuracy)


def _step(
    model: Any, optimizer: torch.optim.Optimizer, batch: Sequence[Demonstration], settings: SftSettings, step: int
) -> float:
    input_ids, labels = (tensor.to(model.device) for tensor in padded(batch))
    for group in optimizer.param_groups:
        group["lr"] = settings.learning_rate * min(1.0, step / max(1, settings.warmup_steps))
    optimizer.zero_grad(set_to_none=True)
    loss = masked_loss(model(input_ids=input_ids, use_cache=False).logits, labels)
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
    optimizer.step()
    return float(loss.detach())
