"""Trains as a file of settings says: SFT, RL, or RL from the newest checkpoint of SFT.

    output/checkpoints/step_N/       of SFT, beside output/metrics.jsonl
    output/rl/checkpoints/step_N/    of RL, beside output/rl/metrics.jsonl

Each step_N is also the directory of a model, which transformers, vLLM and SGLang load. The same command goes on where
its output stands, which one process writes at a time. What is wrong with settings or checkpoints is told before a
model is loaded.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rollstream.agents.load import refuse_unknown_agent
from rollstream.engines.identity import tokenizer_sha256
from rollstream.engines.model_directory import read_config
from rollstream.engines.model_names import model_directory
from rollstream.environments.load import load_environment
from rollstream.environments.protocol import Environment
from rollstream.process.files import held
from rollstream.process.terminal import Say
from rollstream.schemas.errors import ConfigurationError
from rollstream.training.datasets.data_buffer import DataBuffer
from rollstream.training.learning.settings import AdvantageSettings, LearningSettings
from rollstream.training.metrics import JSONLLogger
from rollstream.training.pipeline.data import demonstrations, prompts
from rollstream.training.pipeline.processes import ALONE, Processes, joined
from rollstream.training.pipeline.rollouts import agent_rollouts, rollout_config, started_engine
from rollstream.training.pipeline.settings import RlTable, SftTable, TrainSettings
from rollstream.training.rollout_gen.async_rollout_manager import AsyncRolloutManager
from rollstream.training.types import RLTrainingConfig, SFTTrainingConfig
from rollstream.training.weight_sync import InProcessEngine, step_of

if TYPE_CHECKING:
    from rollstream.training.backends.fsdp import FSDPTrainingBackend
    from rollstream.training.backends.pytorch import PyTorchTrainingBackend

_SHOWN: Final = ("loss", "grad_norm", "reward_mean", "policy_lag_mean")
_CHECKPOINTS: Final = "checkpoints"
_RL: Final = "rl"


async def run_training(settings: TrainSettings, say: Say) -> Path:
    """Train, and return the newest checkpoint. Cancelled, it writes one of the steps that are done, and says so.

    `say` is told what begins, each step that is logged, and what is there at the end. Raises `ConfigurationError`, also
    if another process writes the same output, and what the loops raise.
    """
    with joined(settings) as processes, nullcontext() if processes.rank else held(settings.output):
        told = say if processes.rank == 0 else _to_nobody
        newest = model_directory(settings.model)
        refuse_unfit(settings, newest)
        try:
            if settings.mode != "rl" and settings.sft is not None:
                newest = await _sft(settings, settings.sft, newest, told, processes)
            if settings.mode != "sft" and settings.rl is not None:
                newest = await _rl(settings, settings.rl, newest, told)
        except asyncio.CancelledError:
            told("stopped: the same command goes on after the steps that are done")
            raise
        told(f"trained: {newest}")
        return newest


def _to_nobody(_: str) -> None:
    """The first of several processes says all."""


def refuse_unfit(settings: TrainSettings, model_path: Path) -> None:
    """Raise `ConfigurationError` for what can be known to go wrong before a model is loaded."""
    read_config(model_path)
    tables = [table for name in settings.mode.split("+") if (table := getattr(settings, name)) is not None]
    for table in tables:
        _environment(settings, table.environment)
    own = tokenizer_sha256(model_path)
    if settings.rl is not None and settings.mode != "sft":
        refuse_unknown_agent(settings.rl.agent, settings.agents)
        _refuse_other_tokenizer(settings.rl.engine.http.tokenizer_path, own, tokenizer_sha256)

    from rollstream.training.backends.checkpoints import latest_checkpoint, read_metadata

    for output in (settings.output, settings.output / _RL):
        newest = latest_checkpoint(output / _CHECKPOINTS)
        _refuse_other_tokenizer(newest, own, lambda path: read_metadata(path).get("tokenizer_sha256"))


def _refuse_other_tokenizer(path: Path | None, own: str, sha256_of: Callable[[Path], str | None]) -> None:
    theirs = None if path is None else sha256_of(path)
    if theirs and theirs != own:
        raise ConfigurationError(
            f"{path} has the tokenizer {theirs}, the model has {own}: token ids would mean something else: take a "
            "model with the same tokenizer, or another output"
        )


def _environment(settings: TrainSettings, name: str | None) -> Environment | None:
    return None if name is None else load_environment(name, settings.environments)


async def _sft(settings: TrainSettings, table: SftTable, model_path: Path, say: Say, processes: Processes) -> Path:
    """The newest checkpoint of SFT, which has all its steps."""
    from rollstream.training.backends.checkpoints import latest_checkpoint
    from rollstream.training.loops.sft_loop import run_sft_training

    newest = latest_checkpoint(settings.output / _CHECKPOINTS)
    if newest is not None and step_of(newest) >= table.num_steps:
        say(f"SFT has its {table.num_steps} steps: {newest}")
        return newest
    if newest is not None:
        processes.refuse_others(newest)
    samples = demonstrations(table, _environment(settings, table.environment), model_path)
    say(f"SFT on {len(samples)} samples, from {newest or model_path} to step {table.num_steps}")
    chosen = table.model_dump(include={*SFTTrainingConfig.__slots__})
    config = SFTTrainingConfig(**{**chosen, "batch_size": processes.batch_size(table)})
    with (
        _backend(settings.output, table.learning, model_path, settings.gpu_ranks, processes) as backend,
        _logger(settings.output, say, processes) as logger,
    ):
        await run_sft_training(backend, processes.part(samples), config, logger, resume_from=newest)
    return settings.output / _CHECKPOINTS / f"step_{table.num_steps}"


async def _rl(settings: TrainSettings, table: RlTable, start: Path, say: Say) -> Path:
    """The newest checkpoint of RL, which has all its steps. `start`: a model, or a checkpoint of SFT."""
    from rollstream.training.backends.checkpoints import latest_checkpoint
    from rollstream.training.loops.rl_loop import run_rl_training

    output = settings.output / _RL
    newest = latest_checkpoint(output / _CHECKPOINTS)
    if newest is not None and step_of(newest) >= table.num_steps:
        say(f"RL has its {table.num_steps} steps: {newest}")
        return newest
    environment = load_environment(table.environment, settings.environments)
    buffer = DataBuffer(prompts(table, environment, start), seed=table.seed)
    say(f"RL on {len(buffer.prompts)} prompts, from {newest or start} to step {table.num_steps}")
    config = RLTrainingConfig(**table.model_dump(include={*RLTrainingConfig.__slots__}))
    advantages = AdvantageSettings(**table.learning.model_dump(include={*AdvantageSettings.model_fields}))
    # The model at `start` is what a KL divergence is measured from, also when training goes on from `newest`.
    with _backend(output, table.learning, start) as backend, _logger(output, say) as logger:
        if newest is None and (start / "metadata.json").is_file():
            await backend.load_checkpoint(start)
        version = 0 if newest is None else step_of(newest)
        async with (
            started_engine(table, newest or start, version) as engine,
            agent_rollouts(settings, table, environment, engine) as generate,
        ):
            manager = AsyncRolloutManager(buffer, rollout_config(table, generate))
            await run_rl_training(
                backend, buffer, manager, [InProcessEngine(engine)], config, logger,
                advantages=advantages, resume_from=newest,
            )  # fmt: skip
    return output / _CHECKPOINTS / f"step_{table.num_steps}"


def _backend(
    output: Path,
    settings: LearningSettings,
    model_path: Path,
    gpu_ranks: Sequence[int] = (),
    processes: Processes = ALONE,
) -> "closing[PyTorchTrainingBackend | FSDPTrainingBackend]":
    """A backend for the model; at the end of the block the work that it has begun is done."""
    checkpoints = output / _CHECKPOINTS
    if processes.number == 1:
        from rollstream.training.backends.pytorch_factory import create_pytorch_backend

        device, rate = settings.device, settings.learning_rate
        return closing(
            create_pytorch_backend(model_path, checkpoints, device, rate, loss_fn=settings.loss, settings=settings)
        )
    import torch

    from rollstream.training.backends.fsdp import FSDPConfig, FSDPTrainingBackend
    from rollstream.training.learning.model_files import load_model, resolve_device

    resolve_device(settings.device, settings.threads)
    config = FSDPConfig(gpu_ranks=gpu_ranks or None, mixed_precision=settings.dtype == "bfloat16")
    model = load_model(model_path, torch.device("cpu"))
    return closing(FSDPTrainingBackend(model, None, settings.loss, checkpoints, config, settings=settings))


@contextmanager
def _logger(output: Path, say: Say, processes: Processes = ALONE) -> "Iterator[_Told | None]":
    """What the metrics go to; None in all processes but the first."""
    if processes.rank:
        yield None
        return
    logger = JSONLLogger(output)
    try:
        yield _Told(logger, say)
    finally:
        logger.finish()


class _Told:
    """A `Logger` that tells people too."""

    def __init__(self, logger: JSONLLogger, say: Say) -> None:
        self._logger, self._say = logger, say

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self._logger.log(metrics, step)
        self._say(f"step {step}: " + ", ".join(f"{name} {metrics[name]:.4g}" for name in _SHOWN if name in metrics))

    def finish(self) -> None:
        self._logger.finish()
