"""Trainers that are killed or stopped at every moment, many times over: what they leave behind does not add up."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

from rollstream.history.ledger import Survivors
from rollstream.process.crash_points import CRASH_AT
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.topics import WEIGHTS
from tests.harness.processes import StartedProcess
from tests.harness.running import Run
from tests.harness.s3_fixtures import BUCKET, KEY, SECRET, an_s3_server
from tests.harness.trainer_process import start_doomed, start_trainer
from tests.harness.trainer_runs import (
    GROUPS_PER_STEP,
    Start,
    a_trainer_run,
    check_nothing_lost_or_twice,
    configure,
    num_trained,
    scored,
    submitted,
    survivors,
    write_model,
)

RESTARTS: Final = 50
KEEP_VERSIONS: Final = 8
KEEP_CHECKPOINTS: Final = 2
MOST_DIRECTORIES: Final = KEEP_VERSIONS + KEEP_CHECKPOINTS + 2
START: Final[Start] = start_trainer
KILLED: Final = -signal.SIGKILL
KILLED_IN_A_FILE: Final = -signal.SIGXFSZ
Ending = tuple[str | float, int]
"""Where a trainer ends and its exit code: at a crash point, or in a file of more than this share of the model's size.

The first pass of a point belongs to a trainer's first entry, the later ones to its steps; every other step has a
checkpoint. Its file holds the model three times.
"""
# Those after which the broker holds a dead trainer for a member of its group come first, those that end in order last:
# to leave such a group takes 5 s.
ENDINGS: Final[tuple[Ending, ...]] = (
    ("transaction_sent:2", KILLED),
    ("checkpoint_written", KILLED),
    (2.0, KILLED_IN_A_FILE),
    ("weights_written:3", KILLED),
    ("transaction_committed:2", KILLED),
    ("transaction_committed:3", KILLED),
    ("weights_written", KILLED),
    (0.5, KILLED_IN_A_FILE),
    ("transaction_committed", KILLED),
    ("taken_over", KILLED),
    ("transaction_sent", KILLED),
    ("weights_written", KILLED),
    ("weights_written:2:SIGTERM", 0),
    ("checkpoint_written:1:SIGTERM", 0),
)


@dataclass(kw_only=True)
class Restarts:
    """A run whose trainers end again and again, and what was submitted to it."""

    run: Run
    model_bytes: int
    environment: dict[str, str] = field(default_factory=dict)
    endings: tuple[Ending, ...] = ENDINGS
    prompts: list[PromptSubmitted] = field(default_factory=list)

    def submit(self) -> Survivors:
        """Have groups for three steps at least, sampled by a version that counts and is not too old for any of them."""
        found = survivors(self.run)
        num_open = len(self.prompts) - len(found.closed)
        if num_open < 3 * GROUPS_PER_STEP:
            missing = (KEEP_VERSIONS - 2) * GROUPS_PER_STEP - num_open
            fresh = submitted(self.run, missing, first=len(self.prompts))
            scored(self.run, fresh, version=found.current_version or 0)
            self.prompts += fresh
        return found

    def end_often(self, times: int) -> None:
        """As many trainers, one after the other, each ended at another point than the one before."""
        for where, code in islice(cycle(self.endings), times):
            self.submit()
            _must_end(self.start(where), str(where), code)

    def start(self, where: str | float) -> StartedProcess:
        """A trainer that will end there."""
        if isinstance(where, float):
            return start_doomed(self.run, file_bytes=int(where * self.model_bytes), **self.environment)
        return START(self.run, **{CRASH_AT: where}, **self.environment)

    def train_to(self, step: int) -> Survivors:
        """A trainer that ends by itself after this step."""
        configure(self.run, num_steps=step)
        _must_end(START(self.run, **self.environment), f"step {step}", 0)
        return survivors(self.run)


def _must_end(trainer: StartedProcess, where: str, code: int) -> None:
    try:
        assert trainer.wait() == code, (where, trainer.said()[-3000:])
    finally:
        trainer.kill()


@contextmanager
def a_restarting_run(kafka: str, name: str, directory: Path, **stores: Any) -> Iterator[Run]:
    model = write_model(directory / "model")
    with a_trainer_run(kafka, name, directory, model) as run:
        run.shared["max_policy_lag"] = KEEP_VERSIONS - 1
        configure(
            run, checkpoint_every=2, keep_versions=KEEP_VERSIONS, keep_checkpoints=KEEP_CHECKPOINTS, **stores
        )  # fmt: skip
        yield run


def restarts_of(run: Run, **more: Any) -> Restarts:
    sizes = [file.stat().st_size for file in (run.directory / "model").iterdir()]
    return Restarts(run=run, model_bytes=max(sizes), **more)


def end_often_and_check(restarts: Restarts, left: Callable[[str], set[str]]) -> None:
    """Little is `left` of each kind; what was submitted was trained on, each group once, by versions that only grow."""
    restarts.end_often(RESTARTS)
    last = restarts.train_to(restarts.submit().step + 1)
    weights, checkpoints = left("weights"), left("checkpoints")
    assert len(weights) + len(checkpoints) <= MOST_DIRECTORIES, (weights, checkpoints)
    assert last.checkpoint is not None
    assert str(last.checkpoint.checkpoint).rpartition("/")[2] in checkpoints
    run, prompts = restarts.run, restarts.prompts
    restarts.train_to(len(prompts) // GROUPS_PER_STEP)
    found = check_nothing_lost_or_twice(run, prompts)
    assert num_trained(found) == len(prompts)
    published = [record.weight_version for record in run.records(WEIGHTS)]
    assert published == sorted(set(published)), "versions only grow"


def test_fifty_restarts_leave_no_more_directories_than_are_kept(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    def left(kind: str) -> set[str]:
        names = {path.name for path in (tmp_path / kind).iterdir()}
        assert not [name for name in names if name.startswith(".")], "what was half-written is gone"
        return names

    with a_restarting_run(kafka, topic_prefix, tmp_path) as run:
        end_often_and_check(restarts_of(run), left)


def test_fifty_restarts_leave_no_more_in_a_bucket_than_is_kept(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    (tmp_path / "s3").mkdir()
    place = f"s3://{BUCKET}/{topic_prefix}"
    keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    torn: tuple[Ending, ...] = (("file_uploaded", KILLED), ("file_uploaded:7", KILLED))
    with (
        an_s3_server(tmp_path / "s3") as server,
        a_restarting_run(kafka, topic_prefix, tmp_path, checkpoints=f"{place}/checkpoints") as run,
    ):
        run.shared["weight_store"] = f"{place}/weights"
        run.tables["storage"] = {"allow_http": True, "cache": tmp_path / "cache", "outage_seconds": 30}
        run.tables["storage.options"] = {"endpoint": server.endpoint, "region": "us-east-1"}
        end_often_and_check(
            restarts_of(run, environment=keys, endings=(*torn, *ENDINGS)),
            # Names of the versions or checkpoints there, complete or not.
            lambda kind: {key.split("/")[2] for key in server.object_names() if key.split("/")[1] == kind},
        )
