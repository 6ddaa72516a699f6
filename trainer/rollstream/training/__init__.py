"""The training library: samples, losses, a learner, backends, loops and rollouts, without Kafka.

Each name below is imported when it is first used, since torch takes seconds.
"""

from importlib import import_module
from typing import Any, Final

_MODULES: Final = {
    "Sample": "types",
    "SampleStatus": "types",
    "RolloutBatch": "types",
    "SFTTrainingConfig": "types",
    "RLTrainingConfig": "types",
    "RolloutConfig": "types",
    "run_sft_training": "loops.sft_loop",
    "run_rl_training": "loops.rl_loop",
    "AsyncRolloutManager": "rollout_gen.async_rollout_manager",
    "generate_rollout_batches": "rollout_gen.rollout_generation",
    "TrainingBackend": "backends.protocol",
    "TrainFuture": "backends.future",
    "PyTorchTrainingBackend": "backends.pytorch",
    "FSDPTrainingBackend": "backends.fsdp",
    "FSDPConfig": "backends.fsdp",
    "create_pytorch_backend": "backends.pytorch_factory",
    "DataBuffer": "datasets.data_buffer",
    "load_sft_dataset": "datasets.sft",
    "grpo_loss": "rl_losses",
    "ppo_loss": "rl_losses",
    "SGLangEngine": "weight_sync",
    "VLLMEngine": "weight_sync",
    "sync_weights_to_engines": "weight_sync",
    "JSONLLogger": "metrics",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no name {name!r}; it has {', '.join(_MODULES)}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
