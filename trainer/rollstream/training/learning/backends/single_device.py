"""Training on one device, CPU or GPU, with PyTorch and transformers.

Parameters and optimizer state are float32; with dtype bfloat16 the forward pass runs under autocast and published
weights are bfloat16.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from rollstream.engines.identity import chat_template_sha256, tokenizer_sha256
from rollstream.schemas.errors import BrokenWorldError
from rollstream.schemas.ledger import UPDATES_SKIPPED
from rollstream.training.learning.backends.protocol import StepReport
from rollstream.training.learning.bounds import ANY_MODEL, ModelBounds
from rollstream.training.learning.hidden_states import DeviceBatch, can_share_prompts
from rollstream.training.learning.model_files import load_model, resolve_device, save_model
from rollstream.training.learning.objective import add_totals, objective
from rollstream.training.learning.optimizer import adamw, learning_rate, restore
from rollstream.training.learning.packing import microbatches, split_minibatches
from rollstream.training.learning.policy_forward import TokenStatistics, refuse_other_heads, token_statistics
from rollstream.training.learning.samples import TrainingSample
from rollstream.training.learning.settings import LearningSettings
from rollstream.training.learning.step_metrics import LearningTotals, learning_metrics

_LOG = logging.getLogger(__name__)
_STATE = "training_state.pt"
_MICROBATCH_TOKENS = {"cpu": 1024, "cuda": 16384}  # a CPU is fastest while activations fit its cache

Minibatch = list[DeviceBatch]


@dataclass(slots=True)
class _Stopwatch:
    """Wall time by phase, in seconds."""

    seconds: dict[str, float] = field(
        default_factory=lambda: {"packing": 0.0, "forward_backward": 0.0, "optimizer": 0.0}
    )
    _since: float = field(default_factory=time.perf_counter)

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] += now - self._since
        self._since = now


@dataclass(frozen=True, slots=True, kw_only=True)
class _Update:
    """One optimizer update, applied or not."""

    loss: float
    grad_norm: float
    totals: LearningTotals
    applied: bool


class SingleDeviceBackend:
    """`TrainingBackend` on one device."""

    def __init__(self, model: Any, settings: LearningSettings, *, model_path: Path, device: torch.device) -> None:
        self._model = model
        self._settings = settings
        self._model_path = model_path
        self._device = device
        self._dtype = torch.bfloat16 if settings.dtype == "bfloat16" else torch.float32
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._optimizer = adamw(model, settings)
        self._num_updates = 0
        wanted = settings.share_prompts if settings.share_prompts is not None else device.type == "cpu"
        self._shares_prompts = wanted and can_share_prompts(model, device)
        self.tokenizer_sha256 = tokenizer_sha256(model_path)
        self.chat_template_sha256 = chat_template_sha256(model_path)
        self.bounds = _model_bounds(model.config.get_text_config(), settings)

    @classmethod
    def from_model(cls, model_path: Path, settings: LearningSettings) -> Self:
        """Load the model directory; raises `ConfigurationError` if there is none or the device is absent."""
        device = resolve_device(settings.device, settings.threads)
        model = load_model(model_path, device)
        refuse_other_heads(model, device)
        return cls(model, settings, model_path=model_path, device=device)

    def train_step(self, samples: Sequence[TrainingSample], *, step: int) -> StepReport:
        watch = _Stopwatch()
        order = np.random.default_rng([self._settings.seed, step])
        parts = split_minibatches(samples, self._settings.minibatches, order)
        minibatches = [self._packed(part) for part in parts]
        watch.lap("packing")
        rate = learning_rate(self._settings, self._num_updates + 1)
        proximal = self._proximal_logprobs(minibatches)
        updates: list[_Update] = []
        for minibatch, before in zip(minibatches, proximal, strict=True):
            updates.append(self._update(minibatch, before, watch))
            if not updates[-1].applied:
                break
        return _report(updates, len(minibatches), rate, watch)

    def save_weights(self, path: Path) -> None:
        save_model(self._model, path, dtype=self._dtype, tokenizer_from=self._model_path)

    def save_state(self, path: Path) -> None:
        cuda = [torch.cuda.get_rng_state(self._device)] if self._device.type == "cuda" else []
        state = {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "num_updates": self._num_updates,
            "settings": self._settings.model_dump(),
            "random": [torch.get_rng_state(), *cuda],
        }
        torch.save(state, path / _STATE)

    def load_state(self, path: Path) -> None:
        state = _read_state(path)
        self._model.load_state_dict(state["model"])
        restore(self._optimizer, state["optimizer"])
        _log_changes(state["settings"], self._settings)
        self._num_updates = state["num_updates"]
        torch.set_rng_state(state["random"][0])
        for generator_state in state["random"][1:]:
            torch.cuda.set_rng_state(generator_state, self._device)

    def _packed(self, samples: Sequence[TrainingSample]) -> Minibatch:
        batches = microbatches(
            samples,
            tokens=self._settings.tokens_per_microbatch or _MICROBATCH_TOKENS[self._device.type],
            normalization=self._settings.resolved_normalization,
            share_prompts=self._shares_prompts,
        )
        return [DeviceBatch.of(batch, self._device) for batch in batches]

    def _proximal_logprobs(self, minibatches: list[Minibatch]) -> list[list[Tensor] | None]:
        """[N] per micro-batch, under the weights before the first update.

        None for the first minibatch: its own forward pass still has these weights.
        """
        with torch.no_grad():
            later = [[self._statistics(batch).logprobs for batch in minibatch] for minibatch in minibatches[1:]]
        return [None, *later]

    def _update(self, minibatch: Minibatch, proximal: list[Tensor] | None, watch: _Stopwatch) -> _Update:
        self._optimizer.zero_grad(set_to_none=True)
        losses, totals = [], []
        for index, batch in enumerate(minibatch):
            statistics = self._statistics(batch)
            loss, total = objective(batch, statistics, proximal[index] if proximal else None, self._settings)
            torch.autograd.backward(loss)
            losses.append(loss.detach())
            totals.append(total)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._settings.max_grad_norm)
        total_loss, grad_norm = float(torch.stack(losses).sum()), float(norm)
        watch.lap("forward_backward")
        # Checked before the optimizer runs: one update that is not finite would spoil the weights for good.
        applied = math.isfinite(total_loss) and math.isfinite(grad_norm)
        if applied:
            self._apply()
        else:
            self._optimizer.zero_grad(set_to_none=True)
        watch.lap("optimizer")
        return _Update(loss=total_loss, grad_norm=grad_norm, totals=add_totals(totals), applied=applied)

    def _apply(self) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self._settings, self._num_updates + 1)
        self._optimizer.step()
        self._num_updates += 1

    def _statistics(self, batch: DeviceBatch) -> TokenStatistics:
        with self._autocast():
            return token_statistics(self._model, batch)

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._dtype is torch.bfloat16)


def _report(updates: list[_Update], num_minibatches: int, rate: float, watch: _Stopwatch) -> StepReport:
    """Means over the updates that were applied; if none was, the numbers of the one that was skipped."""
    applied = [update for update in updates if update.applied]
    reported = applied or updates
    return StepReport(
        loss=sum(update.loss for update in reported) / len(reported),
        grad_norm=max(update.grad_norm for update in reported),
        num_updates=len(applied),
        skipped=len(applied) < num_minibatches,
        metrics={
            "learning_rate": rate,
            UPDATES_SKIPPED: float(num_minibatches - len(applied)),
            **learning_metrics([update.totals for update in reported]),
        },
        seconds=watch.seconds,
    )


def _model_bounds(config: Any, settings: LearningSettings) -> ModelBounds:
    """What a model with this config takes; `max_sample_tokens` replaces the length that the config names, if any."""
    length = settings.max_sample_tokens or getattr(config, "max_position_embeddings", None)
    return ModelBounds(vocab_size=config.vocab_size, max_tokens=length or ANY_MODEL.max_tokens)


def _log_changes(before: Mapping[str, Any], settings: LearningSettings) -> None:
    """Log each setting that differs from those of the checkpoint that is restored."""
    for name, value in settings.model_dump().items():
        if before.get(name) != value:
            _LOG.info("learning.%s was changed since the checkpoint: %s -> %s", name, before.get(name), value)


def _read_state(directory: Path) -> dict[str, Any]:
    """What `save_state` wrote, with tensors on the CPU; raises `BrokenWorldError` if it can't be read."""
    path = directory / _STATE
    try:
        # A pickle may hold code; weights_only refuses it.
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        raise BrokenWorldError(
            f"cannot restore {path}: {error}; restore the file, or go back before it with `rollstream weights rollback`"
        ) from error
    return state
