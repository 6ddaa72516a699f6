"""`python -m tests.bench trainer-wait`: the share of its time that a trainer waits although its input is ready."""

import json
import subprocess
from pathlib import Path
from typing import Any

import click
import numpy as np

from rollstream.bus.run import Run
from rollstream.engines.identity import tokenizer_sha256
from rollstream.local.supervisor import stage_process
from rollstream.local.tiny_model import VOCABULARY, write_tiny_model
from rollstream.process.settings.base import KafkaSettings, StageSettings
from rollstream.schemas.errors import BrokenWorldError
from rollstream.schemas.ledger import EntryKind, LedgerEntry
from rollstream.schemas.topics import LEDGER, PROMPTS, SCORED
from tests.bench.model_sizes import MODEL_SIZES
from tests.bench.pairs import C, a_broker, count_option, tell
from tests.bench.synthetic_rollouts import synthetic_prompts, synthetic_samples

_RUN = "bench-trainer-wait"
_WARM_UP_STEPS = 5
_DEADLINE_SECONDS = 1800
_PHASES = ("waiting", "assembling", "packing", "forward_backward", "optimizer", "publishing")


def shape_options(command: C) -> C:
    """The options that say how large a step is."""
    for option in (
        count_option("--tokens", 64, 1, "Tokens of a completion."),
        count_option("--group-size", 8, 2),
        count_option("--groups-per-step", 8, 1),
    ):
        command = option(command)
    return command


@click.command("trainer-wait")
@count_option("--steps", 200, 10, "Steps that are measured.")
@shape_options
def command(**shape: int) -> None:
    """Time waiting ÷ wall time of a trainer when `scored` holds the records of every step before it starts.

    Target: at most 0.02.
    """
    with a_broker() as (kafka, directory):
        figures = measure(kafka, directory, shape, model="demo")
    tell("trainer-wait", figures)


def measure(kafka: KafkaSettings, directory: Path, shape: dict[str, int], *, model: str) -> dict[str, Any]:
    """Fill the topics, run `rollstream trainer` to its end, and add up the times in its ledger. `model`: which size."""
    num_steps = shape["steps"] + _WARM_UP_STEPS
    run = Run(StageSettings(run=_RUN, kafka=kafka))
    run.admin().create_topics(_RUN, partitions=4)
    # The trainer drops samples that are longer than what its model takes.
    write_tiny_model(directory / "model", seed=0, max_length=max(512, 2 * shape["tokens"]), **MODEL_SIZES[model])
    _fill(run, num_steps * shape["groups_per_step"], shape, tokenizer_sha256(directory / "model"))
    log = directory / "trainer.log"
    with log.open("w") as output:
        ended = subprocess.run(
            stage_process("trainer", _config(kafka, directory, num_steps, shape)).command,
            stdout=output, stderr=subprocess.STDOUT, check=False, timeout=_DEADLINE_SECONDS,
        )  # fmt: skip
    if ended.returncode != 0:
        raise BrokenWorldError(f"the trainer ended with {ended.returncode}: {log.read_text()[-2000:]}")
    steps = [entry for entry in run.read(LEDGER) if entry.kind is EntryKind.STEP]
    return _report(steps[_WARM_UP_STEPS:], shape)


def _fill(run: Run, num_groups: int, shape: dict[str, int], tokenizer: str) -> None:
    random = np.random.default_rng(0)
    publisher = run.publisher("bench")
    size, tokens = shape["group_size"], shape["tokens"]
    for prompt in synthetic_prompts(_RUN, num_groups, group_size=size, max_tokens=2 * tokens):
        publisher.publish_soon(run.out_record(PROMPTS, prompt))
        for sample in synthetic_samples(
            prompt, num_tokens=tokens, vocab_size=len(VOCABULARY), random=random, tokenizer=tokenizer
        ):
            publisher.publish_soon(run.out_record(SCORED, sample))
    publisher.close(120.0)


def _config(kafka: KafkaSettings, directory: Path, num_steps: int, shape: dict[str, int]) -> Path:
    path = directory / "rollstream.toml"
    path.write_text(f"""\
run = "{_RUN}"
weight_store = {json.dumps(str(directory / "weights"))}
groups_per_step = {shape["groups_per_step"]}
# The samples are all of version 0.
max_policy_lag = {num_steps}
[kafka]
bootstrap_servers = "{kafka.bootstrap_servers}"
[trainer]
model_path = {json.dumps(str(directory / "model"))}
checkpoints = {json.dumps(str(directory / "checkpoints"))}
num_steps = {num_steps}
keep_versions = {num_steps + 1}
""")
    return path


def _report(steps: list[LedgerEntry], shape: dict[str, int]) -> dict[str, Any]:
    wall = sum(step.metrics["step_seconds"] for step in steps)
    phases = {phase: sum(step.metrics[f"{phase}_seconds"] for step in steps) for phase in _PHASES}
    return {
        "ratio": phases["waiting"] / wall,
        "wall_seconds": wall,
        "seconds": phases,
        "trained_tokens_per_second": sum(step.metrics["trained_tokens"] for step in steps) / wall,
        "settings": {**shape, "warm_up_steps": _WARM_UP_STEPS, "measured_steps": len(steps)},
    }
