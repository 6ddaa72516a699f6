"""Everything that must exist before the loop can run: stack, warmed-up model, topics, and the run's settings file."""

import json
import logging
import subprocess
import sys
from pathlib import Path

from rollstream.bus.admin import KafkaAdmin
from rollstream.local.demo import options
from rollstream.local.demo.options import DemoOptions
from rollstream.local.run_file import run_name
from rollstream.local.stack import LocalStack
from rollstream.process.settings import RUN_FILE, KafkaSettings
from rollstream.schemas.errors import BrokenWorldError

_LOG = logging.getLogger(__name__)
_WARM_UP_DEADLINE_SECONDS = 300


def warm_up(demo: DemoOptions) -> Path:
    """Make the tiny model and warm it up by SFT, in a process of its own; returns the model's directory."""
    model = demo.run_dir / "model"
    if (model / "config.json").exists():
        return model
    log = demo.run_dir / "logs" / "sft.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "rollstream.cli.main", "sft", *_sft_arguments(demo, model)]
    try:
        _run_logged(command, log)
    except subprocess.TimeoutExpired as error:
        raise BrokenWorldError(
            f"the warm-up took more than {error.timeout} s: is the machine busy? See {log}"
        ) from error
    except subprocess.CalledProcessError as error:
        raise BrokenWorldError(f"the warm-up ended with {error.returncode}: see {log}") from error
    return model


def _run_logged(command: list[str], log: Path) -> None:
    with log.open("w") as output:
        subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=True, timeout=_WARM_UP_DEADLINE_SECONDS)


def _sft_arguments(demo: DemoOptions, model: Path) -> list[str]:
    return [
        "--tiny-model",
        "--environment", options.ENVIRONMENT,
        "--until-accuracy", str(options.WARM_UP_ACCURACY),
        "--seed", str(demo.seed),
        # The broker starts at the same time on the other core; two threads of so small a model gain nothing.
        "--threads", "1",
        "--output", str(model),
    ]  # fmt: skip


def write_run_file(demo: DemoOptions, stack: LocalStack) -> Path:
    """Write `<run_dir>/rollstream.toml`: the settings of every stage, for this run and as an example."""
    path = demo.run_dir / RUN_FILE
    path.write_text(_run_file(demo, stack))
    return path


def make_topics(demo: DemoOptions, stack: LocalStack) -> None:
    """Create the run's topics."""
    kafka = KafkaSettings(bootstrap_servers=stack.kafka.bootstrap_servers)
    KafkaAdmin(kafka).create_topics(run_name(demo.run_dir), partitions=2)


def _run_file(demo: DemoOptions, stack: LocalStack) -> str:
    directory = demo.run_dir.resolve()
    share = (options.MAX_POLICY_LAG + 1) * options.GROUPS_PER_STEP
    quoted = json.dumps
    return f"""\
# Settings of this run; every stage reads it: rollstream <stage> --config {directory / RUN_FILE}
run = {quoted(run_name(demo.run_dir))}
redis_url = {quoted(stack.redis.url)}
weight_store = {quoted(str(directory / "weights"))}

[kafka]
bootstrap_servers = {quoted(stack.kafka.bootstrap_servers)}

[producer]
environment = {quoted(options.ENVIRONMENT)}
seed = {demo.seed}
group_size = {options.GROUP_SIZE}
# (max_policy_lag + 1) x groups per step bounds the lag in order of arrival
share = {share}
sampling = {{ temperature = 1.0, max_tokens = {options.MAX_TOKENS} }}

[generator]
max_policy_lag = {options.MAX_POLICY_LAG}

[generator.engine]
kind = "vllm"
model_path = {quoted(str(directory / "model"))}
max_model_len = 32
max_num_seqs = 512

[scorer]
# a killed scorer's partitions wait for its session to end
session_timeout_seconds = 10
batch_deadline_seconds = 8
load_deadline_seconds = 8

[trainer]
model_path = {quoted(str(directory / "model"))}
checkpoints = {quoted(str(directory / "checkpoints"))}
groups_per_step = {options.GROUPS_PER_STEP}
max_policy_lag = {options.MAX_POLICY_LAG}
num_steps = {demo.num_steps}
checkpoint_every = {options.CHECKPOINT_EVERY}

[trainer.learning]
learning_rate = {demo.learning_rate}
beta2 = 0.99
weight_decay = 0.0
warmup_steps = 10
minibatches = 1
# r = current / behavior: with one minibatch the clip then bounds what policy lag does
old = "behavior"
threads = 1
scale_advantages_by_std = true
seed = {demo.seed}
"""
