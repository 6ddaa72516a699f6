"""`run_rl_training`: rollouts, advantages, update, and new weights for the engines, step by step.

A pure loop: what it goes on from after a checkpoint is in the backend and the rollout manager, and both are saved
together. It generates and trains in turn: a batch is asked for when the step before it is done, so that an engine in
this process may use the model that is trained. What a manager over-samples goes on meanwhile.
"""

import asyncio
import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from rollstream.schemas.errors import BadMessageError, ConfigurationError, EngineError, RewardError
from rollstream.schemas.ledger import REWARD_COMPONENT
from rollstream.training.backends.batch import padded
from rollstream.training.backends.protocol import Metrics, TrainingBackend
from rollstream.training.datasets.data_buffer import DataBuffer
from rollstream.training.learning.advantages import batch_advantages
from rollstream.training.learning.bounds import ANY_MODEL
from rollstream.training.learning.settings import AdvantageSettings
from rollstream.training.loops.steps import Steps
from rollstream.training.metrics import Logger
from rollstream.training.rollout_gen.async_rollout_manager import AsyncRolloutManager
from rollstream.training.types import RLTrainingConfig, RolloutBatch
from rollstream.training.weight_sync import WeightEngine, sync_weights_to_engines

_LOG = logging.getLogger(__name__)


async def run_rl_training(
    backend: TrainingBackend,
    buffer: DataBuffer,
    rollout_manager: AsyncRolloutManager,
    engines: Sequence[WeightEngine],
    config: RLTrainingConfig,
    metrics_logger: Logger | None = None,
    *,
    advantages: AdvantageSettings | None = None,
    resume_from: Path | None = None,
) -> list[Metrics]:
    """Train `config.num_steps` steps on what `rollout_manager` generates; returns the metrics of each step taken.

    Every `sync_every` steps a checkpoint is written and loaded into the engines; those that are not due by
    `checkpoint_every` are deleted after the next one. An engine that does not load it is told in the log and in
    `engines_behind` of the steps that follow, and gets the next one; rollouts are tagged with its old version where
    `generate_fn` tags them.
    `resume_from`: a checkpoint of this loop; its steps count, and no prompt is lost or doubled. When it is cancelled,
    as by Ctrl-C, it writes a checkpoint of the steps that are done, and ends. `advantages`: as in
    `prepare_grpo_batch`. Raises `EngineError` if no engine loads a checkpoint, `BrokenWorldError` once updates are not
    finite, and what backend and rollout manager raise.
    """
    if rollout_manager.buffer is not buffer:
        raise ConfigurationError("the rollout manager has another buffer: give run_rl_training the one that it has")
    first = 1 if resume_from is None else await _resume(backend, rollout_manager, resume_from) + 1
    behind: Metrics = {} if resume_from is None else await _sync(engines, resume_from, first - 1)
    steps = Steps(backend, config, metrics_logger)
    passing: Path | None = None
    trained_until = first - 1
    try:
        async with rollout_manager:
            for step in range(first, config.num_steps + 1):
                batch = await rollout_manager.generate_batch()
                prepared = prepare_grpo_batch(batch, config.baseline, advantages)
                # From here on the backend does this step, whatever becomes of this task.
                trained_until = step
                metrics = await steps.take(step, prepared, {**_rollout_metrics(batch, step), **behind})
                is_kept = steps.is_due(step, config.checkpoint_every)
                is_synced = bool(engines) and step % config.sync_every == 0
                if is_kept or is_synced:
                    path = await _save(backend, rollout_manager, step, metrics)
                    if is_synced:
                        behind = await _sync(engines, path, step)
                    if passing is not None and passing != path:
                        shutil.rmtree(passing, ignore_errors=True)
                    # A backend of one's own may keep its checkpoints in another way.
                    passing = path if not is_kept and path.name == f"step_{step}" else None
    except asyncio.CancelledError:
        if trained_until >= first:
            await _save(backend, rollout_manager, trained_until, {})
        raise
    return steps.history


def compute_advantages(rewards: Sequence[float], baseline: float = 0.0) -> list[float]:
    """reward - baseline of each sample; raises `RewardError` for a reward that is no finite number."""
    for row, reward in enumerate(rewards):
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            raise RewardError(f"reward {row} is {reward!r}: it must be a finite number; leave out samples without one")
    return [float(reward) - baseline for reward in rewards]


def prepare_grpo_batch(
    batch: RolloutBatch, baseline: float = 0.0, advantages: AdvantageSettings | None = None
) -> dict[str, Any]:
    """What a backend trains on: tokens, labels and loss_mask [B, L], advantages [B], rollout_log_probs [B, L] if known.

    Place t of a row belongs to the model's output at place t. Where the metadata of all samples say `temperature` or
    `max_tokens`, these come along: logits are divided by the one, and `dr_grpo` divides by the other. If a group has
    more than one sample, advantages are those of the groups, by default reward - mean of the group; else reward -
    `baseline`.
    """
    rewards = compute_advantages(batch.rewards)
    groups = [str(index) for index in batch.group_indices or range(len(rewards))]
    if len(set(groups)) < len(groups):
        found = batch_advantages(rewards, groups, advantages or AdvantageSettings()).tolist()
    else:
        found = compute_advantages(rewards, baseline)
    rows = {"tokens": batch.tokens, "loss_mask": batch.loss_masks, "advantages": found}
    if batch.rollout_log_probs is not None:
        rows["rollout_log_probs"] = batch.rollout_log_probs
    for name, tag in (("temperatures", "temperature"), ("max_tokens", "max_tokens")):
        values = [tags.get(tag) for tags in batch.metadata.get("sample_metadata", [])]
        if values and None not in values:
            rows[name] = values
    return padded(rows, ANY_MODEL)


def _rollout_metrics(batch: RolloutBatch, step: int) -> Metrics:
    num_rows = len(batch.rewards)
    metrics = {
        "reward_mean": fmean(batch.rewards),
        "reward_std": pstdev(batch.rewards),
        "response_length_mean": sum(batch.response_lengths) / num_rows,
        "groups_dropped": float(sum(batch.metadata.get("dropped", {}).values())),
    }
    tags = batch.metadata.get("sample_metadata", [])
    versions = [version for tag in tags if isinstance(version := tag.get("weight_version"), int)]
    if versions:
        # Step n trains the weights that n - 1 steps have made.
        metrics["policy_lag_mean"] = step - 1 - sum(versions) / len(versions)
        metrics["policy_lag_max"] = float(step - 1 - min(versions))
    for tag in tags:
        components = tag.get("components")
        for name, value in components.items() if isinstance(components, Mapping) else ():
            # The mean over all rows: of what few samples have, such as a reward at a timeout, it is a share.
            key = f"{REWARD_COMPONENT}{name}"
            metrics[key] = metrics.get(key, 0.0) + float(value) / num_rows
    return metrics


async def _save(backend: TrainingBackend, rollout_manager: AsyncRolloutManager, step: int, metrics: Metrics) -> Path:
    return await backend.save_checkpoint(step, {**metrics, "rollout_manager": rollout_manager.state_dict()})


async def _sync(engines: Sequence[WeightEngine], checkpoint: Path, step: int) -> Metrics:
    """Load the checkpoint; gives `engines_behind`, how many engines did not, unless there are none."""
    answers = await sync_weights_to_engines(engines, str(checkpoint))
    failed = [(number, answer) for number, answer in enumerate(answers) if not answer["success"]]
    for number, answer in failed:
        _LOG.error("engine %d did not load the weights of step %d: %s", number, step, answer["error"])
    if failed and len(failed) == len(engines):
        reasons = "; ".join(str(answer["error"]) for _, answer in failed)
        raise EngineError(
            f"none of {len(engines)} engines loaded {checkpoint}, so nothing new can be learned: {reasons}"
        )
    return {"engines_behind": float(len(failed))} if engines else {}


async def _resume(backend: TrainingBackend, rollout_manager: AsyncRolloutManager, checkpoint: Path) -> int:
    """The step of the checkpoint, which backend and rollout manager go on from."""
    metadata = await backend.load_checkpoint(checkpoint)
    state = metadata.get("metrics", {}).get("rollout_manager")
    if not isinstance(state, Mapping):
        raise ConfigurationError(
            f"{checkpoint} was not written by this loop: it has no state of a rollout manager; load it into the "
            "backend, and leave resume_from out, to begin anew from its weights"
        )
    try:
        rollout_manager.load_state_dict(dict(state))
    except BadMessageError as error:
        raise ConfigurationError(f"{checkpoint} does not fit prompts and rollout manager: {error}") from error
    return int(metadata["step"])
