"""Supervised fine-tuning (SFT) on an environment's demonstrations or on the answers of rollouts.

As a warm-up it goes on until the policy sometimes succeeds: reinforcement learning needs groups whose rewards differ,
and a model that never succeeds gives none.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import torch

from rollstream.engines.model_directory import longest_sequence
from rollstream.engines.tokenizer import ChatTokenizer
from rollstream.environments.load import load_environment
from rollstream.environments.protocol import Environment
from rollstream.schemas.errors import BrokenWorldError, ConfigurationError
from rollstream.training.learning.learner import Learner
from rollstream.training.learning.samples import TrainingSample
from rollstream.training.learning.train_step import train_step
from rollstream.training.sft.demonstrations import (
    Exchange,
    RolloutDemonstrations,
    Texts,
    of_environment,
)
from rollstream.training.sft.settings import SftSettings
from rollstream.training.sft.validation import Validation

_LOG = logging.getLogger(__name__)


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
    learner = Learner.from_model(settings.model_path, settings.learning)
    torch.manual_seed(settings.learning.seed)
    texts = Texts(settings.model_path)
    validation = _validation(settings)
    if rollouts is None:
        demonstrations = of_environment(_environment(settings), texts, settings.learning.seed)
        return _train(settings, demonstrations, validation, learner)
    source = RolloutDemonstrations(rollouts, texts, settings, longest_sequence(settings.model_path))
    report = _train(settings, iter(source), validation, learner)
    return replace(report, left_out=dict(source.left_out))


def _environment(settings: SftSettings) -> Environment:
    return load_environment(settings.environment or "", settings.environments)


def _validation(settings: SftSettings) -> Validation | None:
    if settings.until_accuracy is None:
        return None
    tokenizer = ChatTokenizer(settings.model_path)
    return Validation.of(_environment(settings), tokenizer, settings.num_validation_prompts, settings.learning.seed)


def _train(
    settings: SftSettings, source: Iterator[TrainingSample], validation: Validation | None, learner: Learner
) -> SftReport:
    loss, accuracy, num_steps = float("nan"), None, 0
    while num_steps < settings.max_steps and (batch := list(islice(source, settings.batch_size))):
        num_steps += 1
        loss = _step(learner, batch, num_steps)
        if validation is None or num_steps % settings.check_every:
            continue
        accuracy = validation.accuracy(learner.model)
        _LOG.info("step %d: loss %.3f, sampled accuracy %.3f", num_steps, loss, accuracy)
        if settings.until_accuracy is not None and accuracy >= settings.until_accuracy:
            break
    learner.save_weights(settings.output)
    return SftReport(num_steps=num_steps, loss=loss, accuracy=accuracy)


def _step(learner: Learner, batch: Sequence[TrainingSample], step: int) -> float:
    report = train_step(learner, batch, step=step)
    if report.skipped:
        raise BrokenWorldError(
            f"step {step} had a non-finite loss ({report.loss}) or gradient norm ({report.grad_norm}): lower the "
            "learning rate"
        )
    return report.loss
