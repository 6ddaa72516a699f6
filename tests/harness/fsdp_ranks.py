"""What each of two processes does with FSDP on the CPU, over gloo; they tell what they found in files of JSON."""

import asyncio
import contextlib
import json
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from rollstream.schemas.errors import RollstreamError
from rollstream.training.backends.fsdp import FSDPConfig, FSDPTrainingBackend
from rollstream.training.backends.pytorch import PyTorchTrainingBackend
from rollstream.training.learning.settings import LearningSettings
from tests.harness.forking import start_forked
from tests.harness.toy_models import ToyModel, token_mean

WORLD = 2
STEPS = 4
_SECONDS = 120
SETTINGS = LearningSettings(learning_rate=0.01, warmup_steps=0, share_prompts=False)
ROWS = {
    "tokens": [[1, 2, 3, 4], [5, 6], [2, 7, 1, 3, 5, 4], [3, 1, 2]],
    "loss_mask": [[0, 0, 1, 1], [0, 1], [0, 1, 1, 1, 1, 1], [0, 0, 1]],
    "advantages": [1.0, -0.5, 0.25, 2.0],
    "rollout_log_probs": [[0, 0, -4, -4.2], [0, -4.1], [0, -4, -4, -4.3, -4, -4], [0, 0, -3.9]],
}


def part(rank: int) -> dict[str, Any]:
    """Rows of a process: one has 2 tokens that train, the other 7."""
    return {name: rows[:1] if rank == 0 else rows[1:] for name, rows in ROWS.items()}


def a_toy(backend_of: Any, loss: Any = token_mean) -> Any:
    return backend_of(ToyModel(), lambda model: torch.optim.AdamW(model.parameters(), lr=0.1), loss)


def row_mean(logits: torch.Tensor, labels: torch.Tensor, loss_mask: torch.Tensor) -> torch.Tensor:
    """The mean over the rows of the mean over the tokens of each."""
    logprobs = logits.log_softmax(dim=-1).gather(-1, labels[..., None]).squeeze(-1)
    return -((logprobs * loss_mask).sum(dim=1) / loss_mask.sum(dim=1)).mean()


def curve(backend: Any, batch: dict[str, Any], steps: int = STEPS) -> list[list[float]]:
    """Loss and gradient norm of each update."""

    async def run() -> list[list[float]]:
        found = []
        for _ in range(steps):
            forward, step = backend.forward_backward(batch), backend.optim_step()
            metrics = {**await forward.result(), **await step.result()}
            found.append([metrics["loss"], metrics["grad_norm"]])
        return found

    return asyncio.run(run())


def single(directory: Path, model: Any, optimizer_fn: Any, loss: Any) -> Any:
    optimizer = optimizer_fn and optimizer_fn(model)
    return contextlib.closing(PyTorchTrainingBackend(model, optimizer, loss, directory, settings=SETTINGS))


def divided(directory: Path, model: Any, optimizer_fn: Any, loss: Any, **config: Any) -> Any:
    values = FSDPConfig(**{"mixed_precision": False, **config})
    return contextlib.closing(FSDPTrainingBackend(model, optimizer_fn, loss, directory, values, settings=SETTINGS))


def a_language_model(directory: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def run_ranks(directory: Path) -> list[dict[str, Any]]:
    """What each process found; `directory` has a tiny model, and a checkpoint of a single toy backend."""
    ranks = [start_forked(partial(_rank, rank, directory), log=directory / f"rank{rank}.log") for rank in range(WORLD)]
    assert [process.wait(_SECONDS) for process in ranks] == [0] * WORLD, [process.said() for process in ranks]
    return [json.loads((directory / f"rank{rank}.json").read_text()) for rank in range(WORLD)]


def _rank(rank: int, directory: Path) -> None:
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    found = {
        "toy": _toy(rank, directory),
        "named": _named(rank, directory, {}),
        "checkpointed": _named(rank, directory, {"gradient_checkpointing": True, "sharding_strategy": "SHARD_GRAD_OP"}),
        "mixed": _named(rank, directory, {"mixed_precision": True}),
        "rows": _rows(rank, directory),
        "refused": _refused(rank, directory),
        "resumed": _resumed(rank, directory),
    }
    (directory / f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def _toy(rank: int, directory: Path) -> Any:
    with a_toy(lambda *parts: divided(directory / "toy", *parts)) as backend:
        found = curve(backend, part(rank))
        path = asyncio.run(backend.save_checkpoint(STEPS, {"seen_by": rank}))
        after = curve(backend, part(rank))
        return {"curve": found, "path": str(path), "after": after, "loaded": asyncio.run(backend.load_checkpoint(path))}


def _named(rank: int, directory: Path, config: dict[str, Any]) -> Any:
    found = {}
    for loss in ("nll", "grpo"):
        model = a_language_model(directory / "model")
        with divided(directory / f"lm-{loss}", model, None, loss, **config) as backend:
            found[loss] = curve(backend, part(rank))
            found["path"] = str(asyncio.run(backend.save_checkpoint(STEPS, {})))
    return found


def _rows(rank: int, directory: Path) -> Any:
    with a_toy(lambda *parts: divided(directory / "rows", *parts, mean_over="rows"), row_mean) as backend:
        return curve(backend, part(rank))


def _refused(rank: int, directory: Path) -> Any:
    """What a bad batch of the second process is to both, and an update after it."""
    with a_toy(lambda *parts: divided(directory / "refused", *parts)) as backend:
        bad = {**part(rank), "tokens": [[99.5] * 4]} if rank == 1 else part(rank)
        try:
            curve(backend, bad)
        except RollstreamError as error:
            return {"error": f"{type(error).__name__}: {error}", "after": curve(backend, part(rank))}
    return {}


def _resumed(rank: int, directory: Path) -> Any:
    with a_toy(lambda *parts: divided(directory / "resumed", *parts)) as backend:
        asyncio.run(backend.load_checkpoint(directory / "single" / f"step_{STEPS}"))
        return curve(backend, part(rank))
