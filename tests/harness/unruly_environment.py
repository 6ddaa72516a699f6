"""Environments of a user who made mistakes, as the settings of a run declare them.

The reward function of `Unruly` does what a prompt's metadata order.
"""

import ctypes
import math
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rollstream.environments.pool.verdicts import LENGTH, STARTED, ScoringAnswer, framed_answer
from rollstream.environments.protocol import Split, Task
from rollstream.environments.rubric import RewardInput, Rubric, WeightedReward
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.prompt import Sampling

NAME = "unruly"
PATH = "tests.harness.unruly_environment.Unruly"
TABLE = {f"environments.{NAME}": {"path": PATH}}
"""It, in a run's file."""


def obey(sample: RewardInput) -> float:  # noqa: C901, PLR0912 (one case an order)
    """1, unless ordered otherwise."""
    match sample.metadata.get("order", "").split():
        case ["give", number]:
            return float(number)
        case ["sleep", seconds]:
            time.sleep(float(seconds))
        case ["hang", "noted", "in", path]:
            Path(path).touch()
            time.sleep(3600)
        case ["raise"]:
            raise RuntimeError("as ordered")
        case ["print"]:
            sys.stdout.write("a reward function may print\n")
        case ["exit"]:
            os._exit(3)
        case ["leave"]:
            sys.exit("as ordered")
        case ["segfault"]:
            ctypes.string_at(0)
        case ["fork"]:
            os.fork()
        case ["answer", "for", "another"]:
            _write_to_sockets(framed_answer(ScoringAnswer(answered_id=STARTED)))
        case ["write", "pickle", path]:
            _write_to_sockets(_frame(pickle.dumps(_RunsWhenUnpickled(path))))
            time.sleep(60)
        case ["write", "long"]:
            _write_to_sockets(LENGTH.pack(2**32 - 1))
            time.sleep(60)
        case ["variable", name]:
            return float(name in os.environ)
        case ["kill", "scorer"]:
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
    return 1.0


class _RunsWhenUnpickled:
    """Makes the directory `path` in the process that unpickles it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (self._path,)


def _frame(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


def _write_to_sockets(frame: bytes) -> None:
    for descriptor in Path("/proc/self/fd").iterdir():
        if descriptor.is_socket():
            os.write(int(descriptor.name), frame)


class WithoutTasks:
    """What is scored in it came from elsewhere."""

    sampling = Sampling()

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """See `Environment.tasks`."""
        return iter(())


class Unruly(WithoutTasks):
    """It obeys."""

    name = NAME
    rubric = Rubric(WeightedReward("obeyed", obey))


class TurnByTurn(WithoutTasks):
    """Each turn of type `answer` is worth the number that is its text."""

    name = "turn_by_turn"
    rubric = Rubric(WeightedReward("number", lambda sample: float(sample.completion)), scored_turn_types=("answer",))


class TasksUnreadable(Unruly):
    """Its tasks can't be read."""

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """See `Environment.tasks`."""
        raise OSError("no disk")


class Generous(WithoutTasks):
    """An environment whose option says what its only reward function gives."""

    name = "generous"

    def __init__(self, gift: str = "1") -> None:
        self.rubric = Rubric(WeightedReward("gift", lambda _: float(gift)))


class Muddled(WithoutTasks):
    """An environment with a rubric of the user's own, which gives what a prompt's metadata name."""

    name = "muddled"

    @property
    def rubric(self) -> Any:
        """Itself, which scores."""
        return self

    def score(self, sample: RewardInput) -> Any:
        """Anything but a float and a map of floats."""
        given = {
            "nothing": (None, {}),
            "infinity": (math.inf, {}),
            "a component of text": (1.0, {"color": "blue"}),
            "no pair": 1.0,
            "many components": (1.0, {f"{number:01000}": 1.0 for number in range(2000)}),
            "a surrogate": (np.float32(0.5), {"lone \udc80": np.float32(0.5)}),
        }
        return given[sample.metadata["order"]]


def declared(**options: dict[str, str]) -> dict[str, Declaration]:
    """The environments of this module, as settings declare them; `options` by their names."""
    paths = {
        NAME: PATH,
        **{
            name: f"{__name__}.{name}"
            for name in ("Generous", "Muddled", "TurnByTurn", "hanging_to_load", "raising_to_load", "forking")
        },
    }
    return {name: Declaration(path=path, options=options.get(name, {})) for name, path in paths.items()}


def forking() -> Unruly:
    """An environment whose loading makes two processes of one."""
    os.fork()
    return Unruly()


def hanging_to_load() -> Unruly:
    """An environment whose loading never ends."""
    time.sleep(3600)
    return Unruly()


def raising_to_load() -> Unruly:
    """An environment whose loading raises."""
    raise RuntimeError("no data set")
