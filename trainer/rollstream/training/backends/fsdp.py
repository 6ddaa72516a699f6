"""`FSDPTrainingBackend`: parameters, gradients and optimizer state divided over processes by torch's `fully_shard`.

Each process makes one, and calls its methods in the same order as the others, each with its own part of the batch. A
mean is over the whole batch, however it is divided: a process with more tokens counts more. The loops run in each
process, with its own part of the samples or prompts; either each has engines to sync, or none has.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from rollstream.schemas.errors import BrokenWorldError, ConfigurationError
from rollstream.training.backends import batch as batches
from rollstream.training.backends import pytorch as single
from rollstream.training.backends.checkpoints import write_checkpoint
from rollstream.training.backends.future import TrainFuture, Worker
from rollstream.training.backends.protocol import Metrics
from rollstream.training.backends.shards import gathered, sharded_snapshot
from rollstream.training.learning.hidden_states import on_device
from rollstream.training.learning.learner import Learner
from rollstream.training.learning.model_files import save_model
from rollstream.training.learning.objective import loss_and_totals
from rollstream.training.learning.packing import microbatches
from rollstream.training.learning.plan import Minibatch
from rollstream.training.learning.policy_forward import statistics_of_logits
from rollstream.training.learning.settings import LearningSettings

T = TypeVar("T")
_RESHARDS: Final = {"FULL_SHARD": True, "SHARD_GRAD_OP": False}
"""By strategy, whether parameters are divided again between the forward and the backward pass."""
_ONE_PASS: Final = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class FSDPConfig:
    """How a model is divided. Raises `ConfigurationError` for an unknown strategy, and for GPUs that are hidden."""

    sharding_strategy: str = "FULL_SHARD"
    """FULL_SHARD (ZeRO-3), or SHARD_GRAD_OP (ZeRO-2), which keeps parameters whole until the backward pass."""
    mixed_precision: bool = True
    """Forward and backward in bfloat16; parameters and sums of gradients stay float32."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    gpu_ranks: Sequence[int] | None = None
    """The GPUs of this machine's processes, as the machine numbers them; default: one a process, in order."""
    mean_over: Literal["tokens", "rows"] = "tokens"
    """What a loss function of one's own takes the mean of, which says how much each process's mean counts."""

    def __post_init__(self) -> None:
        if self.sharding_strategy not in _RESHARDS:
            raise ConfigurationError(
                f"sharding_strategy {self.sharding_strategy!r} is none of {', '.join(_RESHARDS)}: choose one of these"
            )
        if self.mean_over not in ("tokens", "rows"):
            raise ConfigurationError(
                f"mean_over {self.mean_over!r} is neither 'tokens' nor 'rows': choose one of these"
            )
        for gpu in self.gpu_ranks or ():
            place_among_visible(gpu)


class FSDPTrainingBackend:
    """`TrainingBackend` over the processes of torch's default process group, whose timeout bounds every wait."""

    def __init__(
        self,
        model: Any,
        optimizer_fn: Callable[[Any], torch.optim.Optimizer] | None = None,
        loss_fn: single.Loss = "nll",
        checkpoint_dir: Path = Path("checkpoints"),
        config: FSDPConfig | None = None,
        *,
        settings: LearningSettings | None = None,
    ) -> None:
        """`optimizer_fn` makes the optimizer of the divided model; without one it is AdamW as `settings` say.

        Raises `ConfigurationError` without a process group, and for what `PyTorchTrainingBackend` refuses.
        """
        if not (dist.is_available() and dist.is_initialized()):
            raise ConfigurationError(
                "there is no process group: call torch.distributed.init_process_group() before the backend is made, "
                "and start the program with torchrun (torchrun --nproc_per_node=4 train.py) for several GPUs"
            )
        config = config or FSDPConfig()
        values = single.learning_settings(loss_fn, settings)
        if values.kl_coefficient:
            raise ConfigurationError(
                f"kl_coefficient {values.kl_coefficient} needs a reference model, which is not divided here: set it to "
                "0, or give loss_fn a function that has the reference's logprobs from the batch"
            )
        self._device = _own_device(config)
        model_path = single.own_directory(model)
        self._loss_fn = single.CheckedLoss(loss_fn) if callable(loss_fn) else None
        if self._loss_fn is None:
            single.refuse_other_models(model, next(model.parameters()).device)
        # It moves the model to the device layer by layer, so that no GPU holds all of it.
        divide(model, config, self._device)
        optimizer = None if optimizer_fn is None else optimizer_fn(model)
        self.learner = Learner(model, values, device=self._device, optimizer=optimizer, model_path=model_path)
        self._config = config
        self._checkpoint_dir = checkpoint_dir
        self._worker = Worker(on_error=self.learner.drop_gradient)

    def forward_backward(self, batch: Mapping[str, Any]) -> TrainFuture[Metrics]:
        """Add the gradient of this process's rows, at least one that trains: `loss`, `grad_norm` of the whole batch.

        It is one pass without micro-batches: call it more often for more rows. What one process's batch lacks is an
        error in all.
        """
        return self._submit("forward_backward", lambda: self._forward_backward(batch))

    def optim_step(self) -> TrainFuture[Metrics]:
        """Update the weights; the same metrics in all processes."""
        return self._submit("optim_step", lambda: single.update_metrics(self.learner))

    async def save_checkpoint(self, step: int, metrics: Mapping[str, Any]) -> Path:
        """Write `step_<step>/` by the first process, into a directory that all see; a single device loads it too."""
        return await self._submit("save_checkpoint", lambda: self._save(step, metrics))

    async def load_checkpoint(self, path: Path) -> dict[str, Any]:
        """Go on from a checkpoint, of whatever number of processes; metrics only if it is the same number."""
        load = partial(
            single.load_into,
            self.learner,
            path,
            self._restore,
            process=dist.get_rank(),
            num_processes=dist.get_world_size(),
        )
        return await self._submit("load_checkpoint", load)

    def close(self) -> None:
        """End the thread after the work that it has begun. The process group is its maker's."""
        self._worker.close()

    def _submit(self, what: str, work: Callable[[], T]) -> TrainFuture[T]:
        def on_own_device() -> T:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)  # each thread has one of its own
            return work()

        return self._worker.submit(what, on_own_device)

    def _forward_backward(self, batch: Mapping[str, Any]) -> Metrics:
        own, error = None, None
        try:
            own = self._loss(batches.padded(batch, single.bounds_of(self.learner), self._device))
        except Exception as caught:  # noqa: BLE001 (it is raised below, once the others know)
            error = caught
        share, is_good = 0.0 if own is None else own[1], float(own is not None)
        total, num_good = self._sum(share, is_good)
        if error is not None:
            raise error
        if own is None or num_good < dist.get_world_size():
            raise BrokenWorldError("another process refused its part of the batch, and says why")
        try:
            loss = self.learner.backward(partial(self._whole_loss, own[0], share / total))
        except BaseException:
            with suppress(AttributeError):  # before the first pass there is nothing to reset
                self.learner.model.reset_iter_state()
            raise
        return {"loss": float(loss), "grad_norm": float(self.learner.grad_norm())}

    def _loss(self, batch: Mapping[str, Any]) -> tuple[Callable[[Any], Tensor], float]:
        """The mean of this process's rows, as a function of the model, and how much it counts in the whole mean."""
        if self._loss_fn is not None:
            tokens = float(batch["loss_mask"].sum())
            return self._loss_fn.of(batch), tokens if self._config.mean_over == "tokens" else len(batch["tokens"])
        settings = self.learner.settings
        samples = single.samples_of(batch, settings)
        shares = {
            "dapo": sum(sample.num_trained_tokens for sample in samples),
            "grpo": len(samples),
            "dr_grpo": sum(sample.max_tokens for sample in samples),
        }
        normalization = settings.resolved_normalization
        [packed] = microbatches(Minibatch.of(samples, normalization), tokens=_ONE_PASS, whole_rollouts=True)
        on_gpu = on_device(packed, self._device, torch.float32)

        def loss_of(model: Any) -> Tensor:
            logits = model(on_gpu.input_ids, use_cache=False).logits.flatten(0, 1)[on_gpu.sources]
            with_entropy = settings.entropy_coefficient > 0
            statistics = statistics_of_logits(logits, on_gpu.targets, on_gpu.temperatures, with_entropy)
            return loss_and_totals(on_gpu, statistics, settings)[0]

        return loss_of, float(shares[normalization])

    def _whole_loss(self, loss_of: Callable[[Any], Tensor], share: float, model: Any) -> Tensor:
        """The loss of the whole batch, with this process's part of its gradient."""
        # Gradients are averaged over the processes, so each counts its own that many times more.
        own = loss_of(model) * share * dist.get_world_size()
        whole = own.detach().clone()
        dist.all_reduce(whole, op=dist.ReduceOp.SUM)
        return own + (whole / dist.get_world_size() - own).detach()

    def _sum(self, *values: float) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(tensor)
        return [float(value) for value in tensor]

    def _save(self, step: int, metrics: Mapping[str, Any]) -> Path:
        learner = self.learner
        snapshot = gathered(learner.model, learner.snapshot())
        everyones: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, dict(metrics))
        outcome: list[Any] = [None]
        if dist.get_rank() == 0:
            try:
                metadata = single.metadata_of(learner, step, everyones)
                outcome[0] = write_checkpoint(
                    self._checkpoint_dir, step, snapshot, metadata, self._save_weights(snapshot)
                )
            except Exception as error:  # noqa: BLE001 (it is raised below, in all processes)
                outcome[0] = error
        dist.broadcast_object_list(outcome, src=0, device=self._device)
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return Path(outcome[0])

    def _save_weights(self, snapshot: Mapping[str, Any]) -> Callable[[Path], None] | None:
        model = self.learner.model
        if not hasattr(model, "save_pretrained"):
            return None
        dtype = torch.bfloat16 if self._config.mixed_precision else torch.float32
        own = single.own_directory(model)
        return lambda path: save_model(model, path, dtype=dtype, tokenizer_from=own, state=dict(snapshot["model"]))

    def _restore(self, snapshot: Mapping[str, Any]) -> None:
        self.learner.restore(sharded_snapshot(self.learner.model, self.learner.optimizer, snapshot))


def divide(model: Any, config: FSDPConfig, device: torch.device) -> None:
    """Divide the model over all processes, layer by layer where transformers says what a layer is."""
    if config.gradient_checkpointing:
        _checkpoint_gradients(model)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    param_dtype = torch.bfloat16 if config.mixed_precision else None
    policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=torch.float32)
    whole = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=torch.float32, output_dtype=torch.float32)
    reshards = _RESHARDS[config.sharding_strategy]
    layers = tuple(getattr(model, "_no_split_modules", None) or ())
    for module in list(model.modules()):
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh, reshard_after_forward=reshards, mp_policy=policy)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshards, mp_policy=whole)
    assert isinstance(model, FSDPModule)


def place_among_visible(gpu: int) -> int:
    """Torch's number of a GPU of this machine; raises `ConfigurationError` if CUDA_VISIBLE_DEVICES hides it."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return gpu
    shown = [one.strip() for one in visible.split(",")]
    if str(gpu) not in shown:
        raise ConfigurationError(
            f"gpu_ranks names GPU {gpu}, which CUDA_VISIBLE_DEVICES={visible!r} hides: add it there, or take it out of "
            "gpu_ranks"
        )
    return shown.index(str(gpu))


def _own_device(config: FSDPConfig) -> torch.device:
    """One GPU for each process of this machine; the CPU for a process group over gloo."""
    if dist.get_backend() == "gloo" or not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank = int(os.environ.get("LOCAL_RANK", dist.get_rank() % torch.cuda.device_count()))
    if config.gpu_ranks is None:
        device = torch.device("cuda", local_rank)
    elif local_rank < len(config.gpu_ranks):
        device = torch.device("cuda", place_among_visible(config.gpu_ranks[local_rank]))
    else:
        raise ConfigurationError(
            f"gpu_ranks {list(config.gpu_ranks)} has no GPU for process {local_rank} of this machine: start as many "
            "processes as it names GPUs"
        )
    torch.cuda.set_device(device)
    return device


def _checkpoint_gradients(model: Any) -> None:
    if not hasattr(model, "gradient_checkpointing_enable"):
        raise ConfigurationError(
            f"{type(model).__name__} has no gradient_checkpointing_enable, as models of transformers have: leave "
            "gradient_checkpointing out"
        )
    model.gradient_checkpointing_enable()
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", False):
            module.training = True  # of the layer alone: what is in it keeps its dropout off
