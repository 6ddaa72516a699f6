"""The scoring process: `python -m rollstream.scorer.pool.child FD PARENT_PID`, started and killed by the pool.

It takes chunks from the socket FD, loads their environments and streams the verdicts back. It dies with its parent.
"""

import os
import pickle
import signal
import socket
import sys
from typing import Any, BinaryIO

from rollstream.environments.load import load_environment
from rollstream.environments.protocol import Environment
from rollstream.environments.rubric import RewardInput, finite
from rollstream.process.parent import die_with
from rollstream.schemas.errors import BrokenEnvironmentError, RewardError, UnknownEnvironmentError
from rollstream.schemas.failure import Failure, FailureCode
from rollstream.schemas.rollout import Status
from rollstream.scorer.pool.verdicts import LENGTH, Chunk, Loaded, Verdict, framed, unresolved


def main() -> None:
    """The process."""
    descriptor, parent = (int(argument) for argument in sys.argv[1:3])
    die_with(parent)
    # Ctrl-C reaches the whole foreground group; the parent decides when its samples are finished.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What a reward function prints belongs into the log.
    os.dup2(sys.stderr.fileno(), 1)
    with socket.socket(fileno=descriptor) as connection:
        _serve(connection.makefile("rb"), connection.makefile("wb"))


def _serve(reader: BinaryIO, writer: BinaryIO) -> None:
    sys.path[:] = _read(reader)
    _write(writer, Loaded())
    environments: dict[str, Environment] = {}
    while (chunk := _read(reader)) is not None:
        environment = _loaded(chunk, environments)
        if isinstance(environment, Verdict):
            _write(writer, Loaded(refusal=environment))
            continue
        _write(writer, Loaded())
        for answer in chunk.answers:
            _write(writer, _verdict(environment, answer))


def _loaded(chunk: Chunk, environments: dict[str, Environment]) -> Environment | Verdict:
    """The environment of `chunk`, or why none of its samples can be scored."""
    name = chunk.environment
    try:
        if name not in environments:
            environments[name] = load_environment(name, chunk.options)
        return environments[name]
    except UnknownEnvironmentError as error:
        failure = Failure(code=FailureCode.UNKNOWN_ENVIRONMENT, message=str(error))
        return Verdict(status=Status.FAILED, failure=failure)
    except BrokenEnvironmentError as error:
        return unresolved(FailureCode.BROKEN_ENVIRONMENT, str(error))


def _verdict(environment: Environment, answer: RewardInput) -> Verdict:
    try:
        reward, components = environment.rubric.score(answer)
        # A rubric may be a user's own class: nothing but plain numbers leaves this process.
        return Verdict(
            status=Status.COMPLETED,
            reward=finite(reward, "the rubric's reward"),
            components={_writable(name): finite(value, f"component {name!r}") for name, value in components.items()},
        )
    except RewardError as error:
        return unresolved(FailureCode.BAD_REWARD, str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 (a user's rubric may raise anything)
        return unresolved(FailureCode.BAD_REWARD, f"the rubric raised {type(error).__name__}: {error}")


def _writable(name: str) -> str:
    # Lone surrogates are text to Python, and nothing that a UTF-8 record can hold.
    return name.encode("utf-8", "replace").decode()


def _read(reader: BinaryIO) -> Any:
    """The next frame, None at the end of the stream."""
    header = reader.read(LENGTH.size)
    if len(header) < LENGTH.size:
        return None
    return pickle.loads(reader.read(LENGTH.unpack(header)[0]))


def _write(writer: BinaryIO, value: Loaded | Verdict) -> None:
    # At once, so that the parent knows which sample is being scored when the time is up.
    writer.write(framed(value))
    writer.flush()


if __name__ == "__main__":
    main()
