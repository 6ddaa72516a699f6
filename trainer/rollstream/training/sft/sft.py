"""Supervised fine-tuning (SFT) on an environment's demonstrations or on the answers of rollouts.

As a warm-up it goes on until the policy sometimes succeeds: reinforcement learning needs groups whose rewards differ,
and a model that never succeeds gives none.
Shapes: `B` demonstrations, `L` tokens of the longest, `V` vocabulary.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rollstream.engines.model_directory import longest_sequence
from rollstream.engines.tokenizer import ChatTokenizer
from rollstream.environments.load import load_environment
from rollstream.environments.protocol import Environment
from rollstream.schemas.errors import ConfigurationError
from rollstream.training.learning.model_files import load_model, resolve_device, save_model
from rollstream.training.sft.demonstrations import (
    Demonstration,
    Exchange,
    RolloutDemonstrations,
    Texts,
    of_environment,
)
from rollstream.training.sft.settings import SftSettings
from rollstream.training.sft.validation import Validation

_LOG = logging.getLogger(__name__)
_IGNORED = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class SftReport:
    """How it ended. `accuracy` is None if it was never checked; `left_out`: answers that no step could learn from."""

    num_steps: int
    loss: float
    accuracy: float | None
    left_out: Mapping[str, int] = field(default_factory=dict)


def run_sft(settings: SftSettings, rollouts: Iterable[Exchange] | None = None) -> SftReport:
    """Train on `rollouts`, else on the environment's demonstrations, and write the model directory.

    `rollouts` is iterated once a pass. Raises `ConfigurationError` if there is nothing to learn from, or nothing to
    measure the accuracy with.
    """
    if settings.environment is None and (rollouts is None or settings.until_accuracy is not None):
        raise ConfigurationError("there is no environment to learn from or to measure until_accuracy with: name one")
    device = resolve_device(settings.device, settings.threads)
    torch.manual_seed(settings.seed)
    model = load_model(settings.model_path, device)
    texts = Texts(settings)
    validation = _validation(settings)
    if rollouts is None:
        return _train(model, of_environment(_environment(settings), texts, settings.seed), validation, settings)
    source = RolloutDemonstrations(rollouts, texts, settings, longest_sequence(settings.model_path))
    report = _train(model, iter(source), validation, settings)
    return replace(report, left_out=dict(source.left_out))


def _environment(settings: SftSettings) -> Environment:
    return load_environment(settings.environment or "", settings.environments)


def _validation(settings: SftSettings) -> Validation | None:
    if settings.until_accuracy is None:
        return None
    tokenizer = ChatTokenizer(settings.model_path)
    return Validation.of(_environment(settings), tokenizer, settings.num_validation_prompts, settings.seed)


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
    loss, accuracy, num_steps = float("nan"), None, 0
    while num_steps < settings.max_steps and (batch := list(islice(source, settings.batch_size))):
        num_steps += 1
        loss = _step(model, optimizer, batch, settings, num_steps)
        if validation is None or num_steps % settings.check_every:
            continue
        accuracy = validation.accuracy(model)
        _LOG.info("step %d: loss %.3f, sampled accuracy %.3f", num_steps, loss, accuracy)
        if settings.until_accuracy is not None and accuracy >= settings.until_accuracy:
            break
    save_model(model, settings.output, dtype=torch.float32, tokenizer_from=settings.model_path)
    return SftReport(num_steps=num_steps, loss=loss, accuracy=accuracy)


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
