"""`python -m tests.bench trainer`: the trainer with Kafka against a plain PyTorch loop on the same shapes."""

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import click

from rollstream.local.tiny_model import VOCABULARY, write_tiny_model
from rollstream.process.settings.base import KafkaSettings
from tests.bench import trainer_wait
from tests.bench.model_sizes import MODEL_SIZES
from tests.bench.pairs import a_broker, compared, count_option, in_turn, scratch, tell

_TARGET: Final = 0.95
PROMPT_TOKENS: Final = 16
_MICROBATCH_TOKENS: Final = 1024
"""Tokens of a forward pass, padding included: the trainer's default on a CPU."""
WARM_UP_STEPS: Final = 5
Side = Callable[[KafkaSettings, Path, dict[str, int], str], float]


@click.command("trainer")
@count_option("--pairs", 5, 1, "Runs of both sides, in turn; medians count.")
@click.option("--model", default="10m", show_default=True, type=click.Choice(sorted(MODEL_SIZES)), help="Which model.")
@count_option("--steps", 20, 5, "Steps of a run.")
@trainer_wait.shape_options
def command(pairs: int, model: str, **shape: int) -> None:
    """Trained tokens a second of the trainer, with Kafka and published weights, ÷ those of a plain PyTorch loop.

    Target: 0.95.
    """

    def beside_a_broker(side: Side) -> float:
        # Both sides get one: even an idle broker takes a twentieth of two cores.
        with a_broker() as (kafka, directory):
            return side(kafka, directory, shape, model)

    sides = {"trainer": partial(beside_a_broker, _ours), "bare": partial(beside_a_broker, _bare)}
    found = in_turn(sides, pairs, lambda pair: f"{pair['trainer'] / pair['bare']:.3f}")
    figures = {
        **compared([pair["trainer"] / pair["bare"] for pair in found]),
        "target": _TARGET,
        "trainer_tokens_per_second": round(median(pair["trainer"] for pair in found)),
        "bare_tokens_per_second": round(median(pair["bare"] for pair in found)),
    }
    settings = {"model": model, "pairs": pairs, "dtype": "float32", "microbatch_tokens": _MICROBATCH_TOKENS}
    tell("trainer", figures, {**shape, **settings})


def _ours(kafka: KafkaSettings, directory: Path, shape: dict[str, int], model: str) -> float:
    """Tokens a second of `rollstream trainer` on topics that were filled before, with the time that it waits."""
    return float(trainer_wait.measure(kafka, directory, shape, model=model)["trained_tokens_per_second"])


def _bare(_kafka: KafkaSettings, _directory: Path, shape: dict[str, int], model: str) -> float:
    """Tokens a second of the plain loop, in a process of its own, as the trainer is."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as other:
        return other.submit(bare_tokens_per_second, shape, model).result()


def bare_tokens_per_second(shape: dict[str, int], model_size: str) -> float:
    """Tokens a second of forward, clipped surrogate, backward, gradient clipping and AdamW on tokens in memory."""
    import torch
    from transformers import AutoModelForCausalLM

    with scratch() as directory:
        write_tiny_model(directory, seed=0, **MODEL_SIZES[model_size])
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.99), weight_decay=0.0, fused=True)
    num_samples = shape["groups_per_step"] * shape["group_size"]
    length = PROMPT_TOKENS + shape["tokens"]
    samples = torch.randint(3, len(VOCABULARY), (num_samples, length), generator=torch.Generator().manual_seed(0))
    microbatches = torch.split(samples, max(1, _MICROBATCH_TOKENS // length))
    for _ in range(WARM_UP_STEPS):
        _step(model, optimizer, microbatches)
    began = time.perf_counter()
    for _ in range(shape["steps"]):
        _step(model, optimizer, microbatches)
    return num_samples * shape["tokens"] * shape["steps"] / (time.perf_counter() - began)


def _step(model: Callable[..., Any], optimizer: Any, microbatches: Any) -> None:
    import torch

    num_tokens = sum(batch[:, PROMPT_TOKENS:].numel() for batch in microbatches)
    optimizer.zero_grad(set_to_none=True)
    for batch in microbatches:
        logits = model(input_ids=batch, use_cache=False).logits[:, PROMPT_TOKENS - 1 : -1]
        logprobs = logits.float().log_softmax(-1).gather(-1, batch[:, PROMPT_TOKENS:, None]).squeeze(-1)
        ratio = (logprobs - logprobs.detach()).exp()
        advantages = torch.arange(len(batch), dtype=torch.float32)[:, None] % 2 - 0.5
        surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
        torch.autograd.backward(-surrogate.sum() / num_tokens)
    torch.nn.utils.clip_grad_norm_([one for group in optimizer.param_groups for one in group["params"]], 1.0)
    optimizer.step()
