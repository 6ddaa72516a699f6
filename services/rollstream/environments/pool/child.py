"""The process that runs reward functions: `python -m rollstream.environments.pool.child FD PARENT_PID`.

The pool starts and kills it. It reads chunks of samples from the socket FD, loads their environments, and writes the
verdicts back one by one, each with the id of its sample. The kernel kills it when its parent ends.
"""

import os
import pickle
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

from rollstream.environments.load import load_environment
from rollstream.environments.pool.verdicts import (
    LENGTH,
    STARTED,
    Chunk,
    ScoringAnswer,
    Setup,
    Verdict,
    framed_answer,
    unresolved,
)
from rollstream.environments.protocol import Environment
from rollstream.environments.rubric import RewardInput, finite
from rollstream.process.parent import die_with
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.errors import BrokenEnvironmentError, RewardError, UnknownEnvironmentError
from rollstream.schemas.failure import Failure, FailureCode
from rollstream.schemas.rollout import Status
from rollstream.schemas.scored import TurnScore


def main() -> None:
    """Answer chunks until the parent closes the socket."""
    descriptor, parent = (int(argument) for argument in sys.argv[1:3])
    die_with(parent)
    # Ctrl-C is for the parent: it ends this process when its samples are finished.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What a reward function prints must go to the log, which is standard error.
    os.dup2(sys.stderr.fileno(), 1)
    with socket.socket(fileno=descriptor) as connection:
        _serve(_Parent(connection))


class _Parent:
    """What comes from the parent, and what it is told."""

    def __init__(self, connection: socket.socket) -> None:
        self._reader = connection.makefile("rb")
        self._writer = connection.makefile("wb")
        self._owner = os.getpid()

    def read(self) -> Any:
        """The next frame, None at the end of the stream. Only the parent can write one."""
        header = self._reader.read(LENGTH.size)
        if len(header) < LENGTH.size:
            return None
        return pickle.loads(self._reader.read(LENGTH.unpack(header)[0]))

    def tell(self, answered_id: int, verdict: Verdict | None = None) -> None:
        """Write one frame, at once: the parent must know which sample is being scored when a deadline is over."""
        if os.getpid() != self._owner:
            # A user's code forked. The copy must not answer beside its original.
            os._exit(1)
        self._writer.write(framed_answer(ScoringAnswer(answered_id=answered_id, verdict=verdict)))
        self._writer.flush()


def _serve(parent: _Parent) -> None:
    setup: Setup = parent.read()
    # The same modules as in the parent, which may have extended its own path.
    sys.path[:] = setup.module_path
    parent.tell(STARTED)
    environments: dict[str, Environment] = {}
    chunk: Chunk | None
    while (chunk := parent.read()) is not None:
        environment = _loaded(chunk.environment, setup, environments)
        if isinstance(environment, Verdict):
            parent.tell(chunk.number, environment)
            continue
        parent.tell(chunk.number)
        declaration = setup.environments.get(chunk.environment, Declaration())
        for sample_id, answer in zip(chunk.sample_ids, chunk.answers, strict=True):
            parent.tell(sample_id, _verdict(environment, answer, declaration))


def _loaded(name: str, setup: Setup, environments: dict[str, Environment]) -> Environment | Verdict:
    """The environment called `name`; or, if it can't be loaded, the verdict on every sample of the chunk."""
    try:
        if name not in environments:
            environments[name] = load_environment(name, setup.environments)
        return environments[name]
    except UnknownEnvironmentError as error:
        failure = Failure(code=FailureCode.UNKNOWN_ENVIRONMENT, message=str(error))
        return Verdict(status=Status.FAILED, failure=failure)
    except BrokenEnvironmentError as error:
        return unresolved(FailureCode.BROKEN_ENVIRONMENT, str(error))


def _verdict(environment: Environment, answer: RewardInput, declaration: Declaration) -> Verdict:
    scored = _scored(environment, answer, declaration)
    if isinstance(scored, Failure):
        return unresolved(scored.code, scored.message)
    reward, components = scored
    return Verdict(
        status=Status.COMPLETED,
        reward=reward,
        components=components,
        turn_scores=tuple(_turn_scores(environment, answer, declaration)),
    )


def _turn_scores(environment: Environment, answer: RewardInput, declaration: Declaration) -> Iterator[TurnScore]:
    # A user's own rubric need not know of turns.
    types = getattr(environment.rubric, "scored_turn_types", ())
    for number, turn in enumerate(answer.turns):
        if turn.turn_type not in types:
            continue
        scored = _scored(environment, answer.of_turn(number), declaration)
        if isinstance(scored, Failure):
            yield TurnScore(turn=number, failure=scored)
        else:
            yield TurnScore(turn=number, reward=scored[0], components=scored[1])


def _scored(
    environment: Environment, answer: RewardInput, declaration: Declaration
) -> tuple[float, dict[str, float]] | Failure:
    """The reward and its components; or, if the rubric raises or gives no numbers, why there are none."""
    try:
        reward, components = environment.rubric.score(answer)
        # A rubric may be a user's own class and return anything: only plain numbers may leave this process.
        named = {_writable(name): finite(value, f"component {name!r}") for name, value in components.items()}
        return finite(reward, "the rubric's reward"), named
    except RewardError as error:
        return Failure(code=FailureCode.BAD_REWARD, message=declaration.told(error))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 (a user's rubric may raise anything)
        told = declaration.told(error)
        return Failure(code=FailureCode.BAD_REWARD, message=f"the rubric raised {type(error).__name__}: {told}")


def _writable(name: str) -> str:
    # A Python string may contain lone surrogates, which UTF-8 and so a record can't hold.
    return name.encode("utf-8", "replace").decode()


if __name__ == "__main__":
    main()
