"""A model and its optimizer on one device, CPU or GPU, with PyTorch and transformers.

Everything that trains goes through here: nothing else calls an optimizer. Gradients add up over `forward_backward` and
`backward` until `optim_step` applies them.
Parameters and optimizer state are float32. With dtype bfloat16 the forward pass runs under autocast, and published
weights are bfloat16. With dtype float64 everything is float64, which is slow: it is for comparing gradients. Some
models still compute parts in float32, e.g. norms and rotary embeddings, and round to 1e-6 of a gradient's largest.
`N`: the tokens of a micro-batch that train.
"""

import copy
import logging
import math
import pickle
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from operator import index
from pathlib import Path
from typing import Any, Final, Self

import torch
from torch import Tensor

from rollstream.engines.identity import chat_template_sha256, tokenizer_sha256
from rollstream.engines.model_directory import read_config
from rollstream.schemas.errors import BrokenWorldError, ConfigurationError
from rollstream.training.learning.bounds import ANY_MODEL, ModelBounds
from rollstream.training.learning.hidden_states import can_share_prompts, on_device
from rollstream.training.learning.model_files import load_model, resolve_device, save_model
from rollstream.training.learning.objective import add_totals, loss_and_totals
from rollstream.training.learning.objective_settings import ObjectiveSettings
from rollstream.training.learning.optimizer import adamw, learning_rate, restore
from rollstream.training.learning.packing import MicroBatch, microbatches
from rollstream.training.learning.plan import Minibatch
from rollstream.training.learning.policy_forward import TokenStatistics, refuse_other_heads, token_statistics
from rollstream.training.learning.settings import LearningSettings
from rollstream.training.learning.step_metrics import LearningTotals

_LOG = logging.getLogger(__name__)
_STATE: Final = "training_state.pt"
_MICROBATCH_TOKENS: Final = {"cpu": 1024, "cuda": 16384}  # a CPU is fastest while activations fit its cache
DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
Packed = list[MicroBatch[Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One optimizer update, applied or not."""

    loss: float
    """Sum of what was added since the update before."""
    grad_norm: float
    """Before clipping."""
    learning_rate: float
    applied: bool
    """Whether loss and gradient were finite; else the weights are as before."""
    totals: LearningTotals


class Learner:
    """The policy and its optimizer.

    `reference`: a model that stays as it is, which the KL divergence is measured from, with kl_coefficient alone.

    An `optimizer` of one's own keeps its learning rate; without one it is AdamW with the schedule of the settings.
    `model_path`: where the model's tokenizer lies, which goes along with saved weights.
    """

    def __init__(
        self,
        model: Any,
        settings: LearningSettings,
        *,
        device: torch.device,
        optimizer: torch.optim.Optimizer | None = None,
        model_path: Path | None = None,
    ) -> None:
        self.model = model
        self.settings = settings
        self.device = device
        self.num_updates = 0
        self.optimizer = optimizer or adamw(model, settings)
        self._schedule = None if optimizer else partial(learning_rate, settings)
        self._model_path = model_path
        self._dtype = DTYPES[settings.dtype]
        self._losses: list[Tensor] = []
        self._totals: list[Tensor] = []
        self.tokenizer_sha256 = tokenizer_sha256(model_path) if model_path else ""
        self.chat_template_sha256 = chat_template_sha256(model_path) if model_path else ""
        self.reference = self._frozen() if settings.kl_coefficient else None

    @classmethod
    def from_model(cls, model_path: Path, settings: LearningSettings) -> Self:
        """Load the model directory; raises `ConfigurationError` if there is none or the device is absent."""
        device = resolve_device(settings.device, settings.threads)
        dtype = torch.float64 if settings.dtype == "float64" else torch.float32
        learner = cls(load_model(model_path, device, dtype), settings, device=device, model_path=model_path)
        refuse_other_heads(learner.model, device)
        return learner

    @property
    def bounds(self) -> ModelBounds:
        """The token ids and lengths that it trains on; `max_sample_tokens` replaces the length of the model's."""
        config = self.model.config.get_text_config()
        length = self.settings.max_sample_tokens or getattr(config, "max_position_embeddings", None)
        length = length or ANY_MODEL.max_tokens
        vocab_size = config.vocab_size
        if self.reference is not None:  # it computes the same samples
            theirs = self.reference.bounds
            vocab_size, length = min(vocab_size, theirs.vocab_size), min(length, theirs.max_tokens)
        of_rollout = length if self.settings.compares_sequences else ANY_MODEL.max_rollout_tokens
        return ModelBounds(
            vocab_size=vocab_size,
            max_tokens=length,
            max_rollout_tokens=self.settings.max_rollout_tokens or of_rollout,
        )

    def pack(self, minibatch: Minibatch, objective: ObjectiveSettings | None = None) -> Packed:
        """Micro-batches on the device, under the budget of tokens, for this objective; by default the settings'."""
        tokens = self.settings.tokens_per_microbatch or _MICROBATCH_TOKENS[self.device.type]
        precision = torch.float64 if self._dtype is torch.float64 else torch.float32
        share, whole = self._shares_prompts, (objective or self.settings).compares_sequences
        batches = microbatches(minibatch, tokens=tokens, share_prompts=share, whole_rollouts=whole)
        return [on_device(batch, self.device, precision) for batch in batches]

    def forward_backward(self, batches: Packed, objective: ObjectiveSettings | None = None) -> Tensor:
        """Add the gradient of the samples' loss, and return that loss; `objective`: that which they were packed for.

        An update may come in parts: the weights of their tokens are those of the whole.
        """
        losses, settings = [], objective or self.settings
        for batch in batches:
            statistics = self._statistics(batch, entropy_gradient=settings.entropy_coefficient > 0)
            loss, totals = loss_and_totals(batch, statistics, settings)
            losses.append(self._add(loss))
            self._totals.append(totals)
        return torch.stack(losses).sum()

    def backward(self, loss_of: Callable[[Any], Tensor]) -> Tensor:
        """Add the gradient of a loss of one's own, a scalar made from the model, and return that loss."""
        with self._autocast():
            loss = loss_of(self.model)
        return self._add(loss)

    def drop_gradient(self) -> None:
        """Forget what was added since the last update."""
        self._losses, self._totals = [], []

    def grad_norm(self) -> Tensor:
        """Norm of the gradient that was added up, before clipping."""
        return _whole(torch.nn.utils.get_total_norm([one.grad for one in self._parameters if one.grad is not None]))

    def optim_step(self) -> Update:
        """Clip the gradient and update the weights; what is added next begins a new gradient.

        A loss or gradient that is not finite is dropped: one such update would spoil the weights for good. Raises
        ValueError if nothing was added since the last update.
        """
        if not self._losses:
            raise ValueError("optim_step has no gradient to apply: call forward_backward before it")
        norm = float(_whole(torch.nn.utils.clip_grad_norm_(self._parameters, self.settings.max_grad_norm)))
        loss = float(torch.stack(self._losses).sum())
        applied = math.isfinite(loss) and math.isfinite(norm)
        if applied:
            self._apply()
        totals = add_totals(self._totals) if self._totals else LearningTotals()
        self.drop_gradient()
        rate = float(self.optimizer.param_groups[0]["lr"])
        return Update(loss=loss, grad_norm=norm, learning_rate=rate, applied=applied, totals=totals)

    @torch.no_grad()
    def logprobs(self, batches: Packed) -> list[Tensor]:
        """[N] per micro-batch: the logprobs of its tokens under the weights as they are."""
        return [self._statistics(batch).logprobs for batch in batches]

    def snapshot(self) -> dict[str, Any]:
        """Model, optimizer, number of updates, settings and random state; tensors are the learner's own, not copies."""
        cuda = [torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else []
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "num_updates": self.num_updates,
            "settings": self.settings.model_dump(mode="json"),
            "random": [torch.get_rng_state(), *cuda],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a snapshot: with the same settings the next step gives the same weights, bit for bit.

        Settings that changed since are in force from the next step on; each is logged.
        """
        self.model.load_state_dict(state["model"])
        restore(self.optimizer, state["optimizer"])
        _log_changes(state["settings"], self.settings)
        self.num_updates = index(state["num_updates"])
        torch.set_rng_state(state["random"][0])
        for generator_state in state["random"][1:]:
            torch.cuda.set_rng_state(generator_state, self.device)
        self.drop_gradient()

    def save_state(self, path: Path) -> None:
        """Write a snapshot into the directory `path`; the caller fsyncs it."""
        torch.save(self.snapshot(), path / _STATE)

    def load_state(self, path: Path) -> None:
        """Restore what `save_state` wrote; raises `BrokenWorldError` if it can't be, e.g. with another model."""
        file = path / _STATE
        try:
            # A pickle may hold code; weights_only refuses it.
            self.restore(torch.load(file, map_location="cpu", weights_only=True))
        except (OSError, RuntimeError, EOFError, ValueError, KeyError, TypeError, pickle.UnpicklingError) as error:
            raise BrokenWorldError(
                f"cannot restore {file}: {error}; set model_path to the model that the run began with, restore the "
                "file, or go back before it with `rollstream weights rollback`"
            ) from error

    def save_weights(self, path: Path) -> None:
        """Write a model directory that transformers and vLLM load (weights, config, tokenizer) into `path`."""
        save_model(self.model, path, dtype=self._dtype, tokenizer_from=self._model_path)

    @property
    def _parameters(self) -> list[Tensor]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @cached_property
    def _shares_prompts(self) -> bool:
        wanted = self.settings.share_prompts
        is_wanted = self.device.type == "cpu" if wanted is None else wanted
        return is_wanted and can_share_prompts(self.model, self.device)

    def _add(self, loss: Tensor) -> Tensor:
        if not self._losses:
            self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        self._losses.append(loss.detach())
        return self._losses[-1]

    def _apply(self) -> None:
        self.num_updates += 1
        if self._schedule is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = self._schedule(self.num_updates)
        self.optimizer.step()

    def _frozen(self) -> "Learner":
        """The reference model: that of the settings, or the policy as it is now."""
        path, settings = self.settings.reference_path, self.settings.model_copy(update={"kl_coefficient": 0.0})
        if path is None:
            return Learner(copy.deepcopy(self.model), settings, device=self.device)
        read_config(path, "learning.reference_path")
        if self.tokenizer_sha256 and tokenizer_sha256(path) != self.tokenizer_sha256:
            raise ConfigurationError(
                f"the reference model {path} has another tokenizer than the policy, so its token ids mean other text: "
                "set reference_path to a model with the policy's tokenizer"
            )
        return Learner.from_model(path, settings)

    def _statistics(self, batch: MicroBatch[Tensor], *, entropy_gradient: bool = False) -> TokenStatistics:
        with self._autocast():
            return token_statistics(self.model, batch, entropy_gradient=entropy_gradient)

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._dtype is torch.bfloat16)


def _whole(norm: Tensor) -> Tensor:
    """The norm over all shards, where each process has a part of the gradient."""
    gathered = getattr(norm, "full_tensor", None)  # of a DTensor, whose module takes seconds to import
    return gathered() if gathered else norm


def _log_changes(before: Mapping[str, Any], settings: LearningSettings) -> None:
    """Log each setting that differs from those of the checkpoint that is restored, whatever version wrote it."""
    for name, value in settings.model_dump(mode="json").items():
        if name in before and before[name] != value:
            _LOG.info("learning.%s was changed since the checkpoint: %s -> %s", name, before[name], value)
