"""`run_sft_training`: supervised fine-tuning on samples, with any backend.

A pure loop: which samples a step trains on depends on how many were seen alone, so that it goes on after a checkpoint
where it was, also with another batch size.
"""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path

from rollstream.rows.order import epoch_order
from rollstream.schemas.errors import ConfigurationError
from rollstream.training.backends.protocol import Metrics, TrainingBackend
from rollstream.training.loops.steps import Steps
from rollstream.training.metrics import Logger
from rollstream.training.types import Sample, SFTTrainingConfig

_SEED = 0


async def run_sft_training(
    backend: TrainingBackend,
    samples: Sequence[Sample],
    config: SFTTrainingConfig,
    metrics_logger: Logger | None = None,
    *,
    resume_from: Path | None = None,
) -> list[Metrics]:
    """Train `config.num_steps` steps on `samples`, each once an epoch; returns the metrics of each step taken.

    A checkpoint is written every `checkpoint_every` steps and after the last. `resume_from`: a checkpoint of this
    loop to go on from; its steps count. When it is cancelled, as by Ctrl-C, it writes a checkpoint of the steps that
    are done, and ends. Raises `ConfigurationError` for no samples or an unfit checkpoint, `BadMessageError` for a batch
    that can't be trained on, `BrokenWorldError` once updates are not finite.
    """
    if not any(sample.num_trained_tokens for sample in samples):
        raise ConfigurationError(f"none of {len(samples)} samples has a token to train: set loss_mask to 1 on answers")
    first, num_seen = await _resumed(backend, resume_from)
    rows = _rows(len(samples), num_seen)
    steps = Steps(backend, config, metrics_logger)
    trained_until = first - 1
    try:
        for step in range(first, config.num_steps + 1):
            chosen = [samples[row] for row in islice(rows, config.batch_size)]
            batch = {"tokens": [one.tokens for one in chosen], "loss_mask": [one.loss_mask for one in chosen]}
            # From here on the backend does this step, whatever becomes of this task.
            trained_until, num_seen = step, num_seen + len(chosen)
            metrics = await steps.take(step, batch, {"num_samples_seen": num_seen})
            if steps.is_due(step, config.checkpoint_every):
                await backend.save_checkpoint(step, metrics)
    except asyncio.CancelledError:
        if trained_until >= first:
            await backend.save_checkpoint(trained_until, {"num_samples_seen": num_seen})
        raise
    return steps.history


async def _resumed(backend: TrainingBackend, checkpoint: Path | None) -> tuple[int, int]:
    """The step to begin with, and how many samples were seen before it."""
    if checkpoint is None:
        return 1, 0
    metadata = await backend.load_checkpoint(checkpoint)
    num_seen = metadata.get("metrics", {}).get("num_samples_seen")
    if not isinstance(num_seen, int) or num_seen < 0:
        raise ConfigurationError(
            f"{checkpoint} was not written by this loop: it does not say how many samples were seen; load it into the "
            "backend, and leave resume_from out, to begin anew from its weights"
        )
    return metadata["step"] + 1, num_seen


def _rows(num_samples: int, num_seen: int) -> Iterator[int]:
    """Rows in the order of their epochs, without end, from the one after `num_seen`."""
    epoch, offset = divmod(num_seen, num_samples)
    for number in count(epoch):
        [(_, order)] = epoch_order([num_samples], seed=_SEED, epoch=number)
        yield from order[offset:]
        offset = 0
