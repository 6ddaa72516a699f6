"""`PyTorchTrainingBackend`: a model, its optimizer and a loss on one device."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rollstream.schemas.errors import BadMessageError, ConfigurationError
from rollstream.training.backends import batch as batches
from rollstream.training.backends.checkpoints import read_metadata, read_snapshot, write_checkpoint
from rollstream.training.backends.future import TrainFuture, Worker
from rollstream.training.backends.protocol import Metrics
from rollstream.training.learning.bounds import ANY_MODEL, ModelBounds
from rollstream.training.learning.learner import Learner
from rollstream.training.learning.objective_settings import LossName, ObjectiveSettings
from rollstream.training.learning.plan import Minibatch
from rollstream.training.learning.policy_forward import refuse_other_heads
from rollstream.training.learning.reference import with_reference_logprobs
from rollstream.training.learning.samples import TrainingSample
from rollstream.training.learning.settings import LearningSettings
from rollstream.training.learning.step_metrics import learning_metrics
from rollstream.training.metrics import finite_or_text

LossFunction = Callable[..., Tensor]
"""A scalar from the keyword arguments that it takes: `logits` [B, L, V], and what a padded batch holds."""
Loss = LossFunction | LossName | ObjectiveSettings


class PyTorchTrainingBackend:
    """`TrainingBackend` on one device; its work is done by a thread, which `close` ends.

    `loss_fn`: a function of one's own over logits, or the name or settings of a loss of ours, which gets packing and
    whatever else the learner has. `optimizer`: without one it is AdamW as `settings` say. What a failed call added to
    the gradient is dropped, with all else that was added since the last update.
    """

    def __init__(
        self,
        model: Any,
        optimizer: torch.optim.Optimizer | None = None,
        loss_fn: Loss = "nll",
        checkpoint_dir: Path = Path("checkpoints"),
        device: torch.device | None = None,
        *,
        settings: LearningSettings | None = None,
    ) -> None:
        """Raises `ConfigurationError` for a loss function without logits, or a model that a named one can't use."""
        device = device or next(model.parameters()).device
        self._loss_fn = CheckedLoss(loss_fn) if callable(loss_fn) else None
        if self._loss_fn is None:
            refuse_other_models(model.to(device), device)
        self.learner = Learner(
            model.to(device),
            learning_settings(loss_fn, settings),
            device=device,
            optimizer=optimizer,
            model_path=own_directory(model),
        )
        self._checkpoint_dir = checkpoint_dir
        self._worker = Worker(on_error=self.learner.drop_gradient)

    def forward_backward(self, batch: Mapping[str, Any]) -> TrainFuture[Metrics]:
        """Add the gradient of a batch (see `batch.py`): `loss`, and `grad_norm` of all that was added so far."""
        return self._worker.submit("forward_backward", lambda: self._forward_backward(batch))

    def optim_step(self) -> TrainFuture[Metrics]:
        """Update the weights: `lr`, `step`, `grad_norm`, and `skipped` 1 if loss or gradient was not finite."""
        return self._worker.submit("optim_step", lambda: update_metrics(self.learner))

    async def save_checkpoint(self, step: int, metrics: Mapping[str, Any]) -> Path:
        """Write `step_<step>/` in the checkpoint directory; an engine loads it by this path."""
        return await self._worker.submit("save_checkpoint", lambda: self._save(step, metrics))

    async def load_checkpoint(self, path: Path) -> dict[str, Any]:
        """Go on from a checkpoint, its optimizer state included; gives its metadata.

        Raises `ConfigurationError` if it can't be read, or is that of another model or tokenizer.
        """
        return await self._worker.submit("load_checkpoint", lambda: load_into(self.learner, path, self.learner.restore))

    def close(self) -> None:
        """End the thread after the work that it has begun."""
        self._worker.close()

    def _forward_backward(self, batch: Mapping[str, Any]) -> Metrics:
        tensors = batches.padded(batch, bounds_of(self.learner), self.learner.device)
        loss = self._packed(tensors) if self._loss_fn is None else self.learner.backward(self._loss_fn.of(tensors))
        return {"loss": float(loss), "grad_norm": float(self.learner.grad_norm())}

    def _packed(self, batch: Mapping[str, Any]) -> Tensor:
        learner = self.learner
        samples = with_reference_logprobs(learner, samples_of(batch, learner.settings))
        return learner.forward_backward(learner.pack(Minibatch.of(samples, learner.settings.resolved_normalization)))

    def _save(self, step: int, metrics: Mapping[str, Any]) -> Path:
        learner = self.learner
        save_weights = learner.save_weights if hasattr(learner.model, "save_pretrained") else None
        return write_checkpoint(
            self._checkpoint_dir, step, learner.snapshot(), metadata_of(learner, step, [metrics]), save_weights
        )


class CheckedLoss:
    """A loss function of a user's own, with what it takes."""

    def __init__(self, function: LossFunction) -> None:
        parameters = inspect.signature(function).parameters.values()
        self._function = function
        self._takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters)
        self._names = {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
        self._needed = {one.name for one in parameters if one.name in self._names and one.default is one.empty}
        if "logits" not in self._names and not self._takes_all:
            raise ConfigurationError(
                f"the loss function takes {sorted(self._names)}, but no 'logits': it is called with keyword arguments"
            )

    def of(self, batch: Mapping[str, Any]) -> Callable[[Any], Tensor]:
        """The loss of a padded batch, as a function of the model; `BadMessageError` if it lacks what is needed."""
        missing = self._needed - batch.keys() - {"logits"}
        if missing:
            raise BadMessageError(f"the loss function needs {sorted(missing)}, but the batch has {sorted(batch)}")
        given = {name: value for name, value in batch.items() if self._takes_all or name in self._names}

        def loss_of(model: Any) -> Tensor:
            is_transformers = hasattr(model, "base_model")
            output = model(batch["tokens"], **({"use_cache": False} if is_transformers else {}))
            loss = self._function(logits=getattr(output, "logits", output), **given)
            if loss.numel() != 1:
                raise BadMessageError(f"the loss function returned shape {tuple(loss.shape)}, it must be one number")
            return loss

        return loss_of


def learning_settings(loss_fn: Loss, settings: LearningSettings | None) -> LearningSettings:
    """The learner's settings with the loss that is asked for."""
    own = settings.model_dump(exclude_unset=True) if settings else {}
    if isinstance(loss_fn, ObjectiveSettings):
        own |= loss_fn.model_dump(exclude_unset=True)
    elif isinstance(loss_fn, str):
        own["loss"] = loss_fn
    found = LearningSettings(**own)
    if found.kl_reward_coefficient:
        raise ConfigurationError(
            "kl_in 'reward' changes rewards, but a backend gets advantages: take it off before they are computed "
            "(`learning.reference.prepared`), or set kl_in to 'loss'"
        )
    return found


def refuse_other_models(model: Any, device: torch.device) -> None:
    """Raise `ConfigurationError` unless a loss of ours can use the model."""
    if not hasattr(model, "get_output_embeddings"):
        raise ConfigurationError(
            f"{type(model).__name__} is no causal language model of transformers, which a named loss needs: give "
            "loss_fn a function over logits"
        )
    refuse_other_heads(model, device)


def bounds_of(learner: Learner) -> ModelBounds:
    """What the model takes; a module that is none of transformers' does not say."""
    return learner.bounds if hasattr(learner.model, "config") else ANY_MODEL


def update_metrics(learner: Learner) -> Metrics:
    """One update, as a backend's `optim_step` gives it; raises ValueError if nothing was added to the gradient."""
    update = learner.optim_step()
    return {
        "lr": update.learning_rate,
        "step": learner.num_updates,
        "grad_norm": update.grad_norm,
        "skipped": float(not update.applied),
        **(learning_metrics([update.totals]) if update.totals.tokens else {}),
    }


def metadata_of(learner: Learner, step: int, metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a checkpoint says of itself; `metrics`: of each process."""
    everyones = [{name: finite_or_text(value) for name, value in one.items()} for one in metrics]
    others = {"metrics_of_processes": everyones} if len(metrics) > 1 else {}
    return {"step": step, "metrics": everyones[0], **others, "tokenizer_sha256": learner.tokenizer_sha256}


def load_into(
    learner: Learner,
    path: Path,
    restore: Callable[[Mapping[str, Any]], None],
    *,
    process: int = 0,
    num_processes: int = 1,
) -> dict[str, Any]:
    """Restore the checkpoint at `path`, once it is known to be of this model and tokenizer; gives its metadata.

    With the metrics of this process. There are none if it was written by another number of processes: no loop can go
    on from what each of them had seen.
    """
    metadata = read_metadata(path)
    theirs, own = metadata.get("tokenizer_sha256"), learner.tokenizer_sha256
    if theirs and own and theirs != own:
        raise ConfigurationError(
            f"{path} was trained with the tokenizer {theirs}, the model here has {own}: token ids would mean something "
            "else; take a model with the checkpoint's tokenizer"
        )
    try:
        restore(read_snapshot(path))
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{path} is no checkpoint of this model and optimizer: {error}") from error
    metrics = metadata.pop("metrics_of_processes", [metadata["metrics"]])
    return {**metadata, "metrics": metrics[process] if len(metrics) == num_processes else {}}


def samples_of(batch: Mapping[str, Any], settings: LearningSettings) -> list[TrainingSample]:
    """The samples of a padded batch for a loss of ours; `BadMessageError` if it lacks what the loss needs."""
    is_policy_loss = settings.loss != "nll"
    is_corrected = is_policy_loss and (settings.old == "behavior" or settings.resolved_correction != "none")
    needed = {
        "advantages": is_policy_loss,
        "rollout_log_probs": is_corrected,
        "max_tokens": settings.resolved_normalization == "dr_grpo",
    }
    missing = [name for name, is_needed in needed.items() if is_needed and name not in batch]
    if missing:
        raise BadMessageError(f"the loss {settings.loss!r} needs {missing}, but the batch has {sorted(batch)}")
    return batches.training_samples(batch)


def own_directory(model: Any) -> Path | None:
    """Where a model that was loaded from a directory has its tokenizer."""
    path = Path(getattr(model, "name_or_path", "") or "/nowhere")
    return path if path.is_dir() else None
