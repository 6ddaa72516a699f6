"""`python -m tests.bench scorer`: rollouts per second of one scorer process with Kafka and a rule-based reward."""

import itertools
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import click
import numpy as np
import psutil

from rollstream.bus.message import KafkaMessage
from rollstream.bus.run import Run
from rollstream.environments.load import load_environment
from rollstream.environments.pool.verdicts import ScoringSample, Verdict
from rollstream.local.supervisor import stage_process
from rollstream.process.settings.base import StageSettings
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import BrokenWorldError
from rollstream.schemas.record import utc_now
from rollstream.schemas.rollout import RolloutGenerated, Status
from rollstream.schemas.topics import ROLLOUTS, SCORED
from rollstream.scorer.handler import ScorerIdentity, annotated, sample_of
from tests.bench.pairs import a_broker, count_option, in_turn, medians, tell
from tests.bench.synthetic_rollouts import synthetic_prompts, synthetic_samples

_ENVIRONMENT: Final = "sort_digits"
_TARGETS: Final = {1_000: 2_000.0, 130_000: 300.0}
"""Rollouts a second, by the size of a record in bytes."""
_GROUP_SIZE: Final = 8
_DEADLINE_SECONDS: Final = 600.0


@click.command("scorer")
@click.option("--seconds", default=20.0, show_default=True, help="How long a run lasts at the target speed.")
@count_option("--runs", 3, 1, "Runs of each size, in turn; medians count.")
def command(seconds: float, runs: int) -> None:
    """Rollouts per second of one process ÷ the targets: 2,000 at 1 kB and 300 at 130 kB. The smaller ratio counts."""
    numbers = itertools.count()
    with a_broker() as (kafka, directory):

        def speed(size: int) -> dict[str, float]:
            run = Run(StageSettings(run=f"bench-{size}-{next(numbers)}", kafka=kafka))
            return _measure(run, directory, size, int(_TARGETS[size] * seconds))

        found = in_turn({size: partial(speed, size) for size in _TARGETS}, runs)
    by_size = {}
    for size, target in _TARGETS.items():
        figures = medians([one[size] for one in found])
        ratio = figures["rollouts_per_second"] / target
        by_size[str(size)] = {**figures, "target_rollouts_per_second": target, "ratio": ratio}
    settings = {"seconds": seconds, "runs": runs, "environment": _ENVIRONMENT, "partitions": 4, "brokers": 1}
    tell("scorer", {"ratio": min(one["ratio"] for one in by_size.values()), "by_record_size": by_size}, settings)


def _measure(run: Run, directory: Path, size: int, count: int) -> dict[str, float]:
    run.admin().create_topics(run.name, partitions=4)
    records = [run.out_record(ROLLOUTS, sample) for sample in _rollouts(run.name, size, 64)]
    values = [record.value for record in records if record.value is not None]
    publisher = run.publisher("bench")
    for number in range(count):
        publisher.publish_soon(records[number % len(records)])
    publisher.close(120.0)
    messages, cpu_seconds = _run_scorer(run, directory, count)
    run.admin().delete_topics(run.name)
    elapsed = (max(one.timestamp_ms for one in messages) - min(one.timestamp_ms for one in messages)) / 1000
    return {
        "rollouts_per_second": (count - 1) / elapsed,
        "cpu_microseconds_per_rollout": cpu_seconds / count * 1e6,
        "bare_rollouts_per_second": _bare(values),
        "record_bytes": float(median(len(value) for value in values)),
    }


def _run_scorer(run: Run, directory: Path, count: int) -> tuple[list[KafkaMessage], float]:
    """Score all records of `rollouts`. Returns the scored messages without their values, and the CPU seconds used."""
    config = directory / f"{run.name}.toml"
    config.write_text(f'run = "{run.name}"\n[kafka]\nbootstrap_servers = "{run.kafka.bootstrap_servers}"\n')
    log = directory / f"{run.name}.log"
    with log.open("w") as output:
        scorer = subprocess.Popen(stage_process("scorer", config).command, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while _committed(run) < count:
            if scorer.poll() is not None or time.monotonic() > deadline:
                raise BrokenWorldError(f"the scorer did not score {count} rollouts: {log.read_text()[-2000:]}")
            time.sleep(1.0)
        cpu_seconds = _cpu_seconds(scorer.pid)
    finally:
        scorer.kill()
        scorer.wait(10)
    found: list[KafkaMessage] = []
    with run.reader(SCORED) as reader:
        while not reader.at_end() or not found:
            found += [_bare_message(message) for message in reader.poll(500, 1.0)]
    return found, cpu_seconds


def _cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and its children, including their start."""
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


def _committed(run: Run) -> int:
    return sum(run.admin().committed_offsets(run.group("scorers"), run.topic(ROLLOUTS)).values())


def _bare_message(message: KafkaMessage) -> KafkaMessage:
    return KafkaMessage(
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        key=None,
        value=None,
        timestamp_ms=message.timestamp_ms,
    )


def _rollouts(run: str, size: int, count: int) -> Iterator[RolloutGenerated]:
    """Rollouts of about `size` bytes: 8 bytes a token for id and logprob, 2 for its text, 500 for the rest."""
    num_tokens = max(1, (size - 500) // 10)
    random = np.random.default_rng(0)
    for prompt in synthetic_prompts(run, count // _GROUP_SIZE, group_size=_GROUP_SIZE, max_tokens=num_tokens):
        scorable = prompt.model_copy(update={"environment": _ENVIRONMENT, "reference_answer": "01"})
        for scored in synthetic_samples(scorable, num_tokens=num_tokens, vocab_size=150_000, random=random):
            turn = scored.rollout.turns[0].model_copy(update={"text": "01" * num_tokens})
            yield scored.rollout.model_copy(update={"turns": (turn,)})


def _bare(values: list[bytes]) -> float:
    """Rollouts a second that one thread decodes, scores and encodes, without Kafka and without other processes."""
    read, write = AvroCodec(ROLLOUTS), AvroCodec(SCORED)
    rubric, scorer = load_environment(_ENVIRONMENT).rubric, ScorerIdentity(scorer_id="bench", version="0")
    done, began = 0, time.monotonic()
    while time.monotonic() - began < 2.0:
        rollout = read.decode(values[done % len(values)])
        asked = sample_of(rollout)
        assert isinstance(asked, ScoringSample)
        reward, components = rubric.score(asked.answer)
        verdict = Verdict(status=Status.COMPLETED, reward=reward, components=components)
        write.encode(annotated(rollout, verdict, scorer, utc_now()))
        done += 1
    return done / (time.monotonic() - began)
