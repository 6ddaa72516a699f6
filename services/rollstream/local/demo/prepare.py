"""Prepares a demo run: the model before and after its warm-up, the topics, and the run's settings file."""

import hashlib
import logging
import multiprocessing
import os
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

import tomli_w

from rollstream.bus.admin import KafkaAdmin
from rollstream.local import tiny_model
from rollstream.local.demo import options
from rollstream.local.demo.options import DemoOptions
from rollstream.local.kafka_jars import user_cache
from rollstream.local.run_file import run_name, shared_settings
from rollstream.local.stack import LocalStack
from rollstream.process.files import move, write_private
from rollstream.process.settings.base import RUN_FILE, KafkaSettings
from rollstream.schemas.errors import BrokenWorldError

_LOG = logging.getLogger(__name__)
_WARM_UP_DEADLINE_SECONDS = 300
_HEADER: Final = """\
# Settings of this run; every stage reads it: rollstream <stage> --config {path}
# groups_per_step, max_policy_lag: the producer has at most (lag + 1) x groups_per_step groups open: this bounds the lag
# generator.engine.model_path: the model before its warm-up; its weights are replaced by the trainer's at once
# scorer.session_timeout_seconds: a killed scorer's partitions wait for its session to end
# trainer.learning.old: r = current / behavior; with one minibatch the clip then bounds what policy lag does
"""


def untrained_model() -> Path:
    """The directory of the demo's model with random weights, made once per user: generators start with it.

    A generator needs its config, shapes and tokenizer, and then loads the trainer's weights. So it can start during the
    warm-up. The directory is the same for all demos because vLLM looks for what it has compiled by the model's path.
    """
    path = untrained_directory()
    if not path.exists():
        scratch = path.with_name(f"{path.name}.{os.getpid()}")
        # In a process of its own: only it imports torch.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as other:
            other.submit(tiny_model.write_tiny_model, scratch, seed=0).result()
        try:
            move(scratch, path)
        except OSError:  # another demo has made it meanwhile
            shutil.rmtree(scratch)
    return path


def untrained_directory() -> Path:
    """Where that model lies, whether it was made or not. Another version of the code that makes it has its own."""
    recipe = hashlib.sha256(Path(tiny_model.__file__).read_bytes()).hexdigest()[:12]
    return user_cache() / "models" / recipe


def warm_up(demo: DemoOptions) -> Path:
    """Make the tiny model and train it on demonstrations (SFT), in a process of its own; returns its directory."""
    model = demo.run_dir / "model"
    if (model / "config.json").exists():
        return model
    log = demo.run_dir / "logs" / "sft.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "rollstream.cli.main", "sft", *_sft_arguments(demo, model)]
    try:
        with log.open("w") as said:
            subprocess.run(
                command, stdout=said, stderr=subprocess.STDOUT, check=True, timeout=_WARM_UP_DEADLINE_SECONDS
            )
    except subprocess.TimeoutExpired as error:
        raise BrokenWorldError(f"the warm-up took over {error.timeout} s: is the machine busy? See {log}") from error
    except subprocess.CalledProcessError as error:
        raise BrokenWorldError(f"the warm-up ended with {error.returncode}: see {log}") from error
    return model


def _sft_arguments(demo: DemoOptions, model: Path) -> list[str]:
    return [
        "--tiny-model",
        "--environment", options.ENVIRONMENT,
        "--until-accuracy", str(options.WARM_UP_ACCURACY),
        "--seed", str(demo.seed),
        # The broker starts at the same time on the other core, and a model this small is not faster with two threads.
        "--threads", "1",
        "--output", str(model),
    ]  # fmt: skip


def write_run_file(run_dir: Path, stack: LocalStack, stage_settings: dict[str, Any]) -> Path:
    """Write `<run_dir>/rollstream.toml`: the settings of every stage, for this run, and an example for others."""
    path = run_dir / RUN_FILE
    settings = {**shared_settings(run_dir, stack), **stage_settings}
    # "x": a file that another process has written meanwhile stays too.
    write_private(path, f"{_HEADER.format(path=path.resolve())}\n{tomli_w.dumps(settings)}", "x")
    return path


def make_topics(demo: DemoOptions, stack: LocalStack) -> None:
    kafka = KafkaSettings(bootstrap_servers=stack.kafka.bootstrap_servers)
    KafkaAdmin(kafka).create_topics(run_name(demo.run_dir), partitions=2)


def stage_settings(demo: DemoOptions, *, generators_start_with: Path) -> dict[str, Any]:
    """What the stages of the demo need beside what the local stack knows."""
    return {
        "groups_per_step": options.GROUPS_PER_STEP,
        "max_policy_lag": options.MAX_POLICY_LAG,
        "producer": {
            "environment": options.ENVIRONMENT,
            "seed": demo.seed,
            "group_size": options.GROUP_SIZE,
            "sampling": {"temperature": 1.0, "max_tokens": options.MAX_TOKENS},
        },
        "generator": {
            "engine": {
                "kind": "vllm",
                "model_path": str(generators_start_with),
                "max_model_len": 32,
                "max_num_seqs": 512,
            },
        },
        "scorer": {"session_timeout_seconds": 10, "batch_deadline_seconds": 8, "load_deadline_seconds": 8},
        "trainer": {
            "model_path": str(demo.run_dir.resolve() / "model"),
            "checkpoints": str(demo.run_dir.resolve() / "checkpoints"),
            "num_steps": demo.num_steps,
            "checkpoint_every": options.CHECKPOINT_EVERY,
            "learning": _learning_settings(demo),
        },
    }


def _learning_settings(demo: DemoOptions) -> dict[str, Any]:
    return {
        "learning_rate": demo.learning_rate,
        "beta2": 0.99,
        "weight_decay": 0.0,
        "warmup_steps": 10,
        "minibatches": 1,
        "old": "behavior",
        "threads": 1,
        "scale_advantages": "group",
        "seed": demo.seed,
    }
