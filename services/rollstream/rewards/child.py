"""The scoring process: `python -m rollstream.rewards.child FD PARENT_PID`, started and killed by the pool.

It takes chunks from the socket FD, loads their environments and streams the verdicts back. It dies with its parent.
"""

import ctypes
import os
import pickle
import signal
import socket
import sys
from typing import Any, BinaryIO, Final

from rollstream.environments.load import UnknownEnvironmentError, load_environment
from rollstream.environments.protocol import Environment
from rollstream.rewards.rubric import RewardError, RewardInput
from rollstream.rewards.verdicts import LENGTH, Chunk, Loaded, Verdict, framed
from rollstream.schemas.rollout import Status

_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """The process."""
    descriptor, parent = (int(argument) for argument in sys.argv[1:3])
    _die_with(parent)
    # Ctrl-C reaches the whole foreground group; the parent decides when its samples are finished.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What a reward function prints belongs into the log.
    os.dup2(sys.stderr.fileno(), 1)
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as stream:
        paths: list[str] = _read(stream)
        sys.path[:] = paths
        _write(stream, Loaded())
        _serve(stream)


def _serve(stream: Any) -> None:
    environments: dict[str, Environment] = {}
    while (chunk := _read(stream)) is not None:
        environment = _loaded(chunk, environments)
        if isinstance(environment, Verdict):
            _write(stream, Loaded(refusal=environment))
            continue
        _write(stream, Loaded())
        for answer in chunk.answers:
            _write(stream, _verdict(environment, answer))


def _loaded(chunk: Chunk, environments: dict[str, Environment]) -> Environment | Verdict:
    """The environment of `chunk`, or why none of its samples can be scored."""
    name = chunk.environment
    try:
        if name not in environments:
            environments[name] = load_environment(name)
        return environments[name]
    except UnknownEnvironmentError as error:
        return Verdict(status=Status.FAILED, error=f"unknown_environment: {error}")
    except Exception as error:  # noqa: BLE001 (a user's module may raise anything while it is imported)
        why = f"environment {name!r} raised {type(error).__name__} while loading: {error}"
        return Verdict(status=Status.UNRESOLVED, error=why)


def _verdict(environment: Environment, answer: RewardInput) -> Verdict:
    try:
        reward, components = environment.rubric.score(answer)
    except RewardError as error:
        return Verdict(status=Status.UNRESOLVED, error=str(error))
    except Exception as error:  # noqa: BLE001 (a user's rubric may raise anything)
        return Verdict(status=Status.UNRESOLVED, error=f"the rubric raised {type(error).__name__}: {error}")
    return Verdict(status=Status.COMPLETED, reward=reward, components=components)


def _read(stream: BinaryIO) -> Any:
    """The next frame, None at the end of the stream."""
    header = stream.read(LENGTH.size)
    if len(header) < LENGTH.size:
        return None
    return pickle.loads(stream.read(LENGTH.unpack(header)[0]))


def _write(stream: BinaryIO, value: Loaded | Verdict) -> None:
    # At once, so that the parent knows which sample is being scored when the time is up.
    stream.write(framed(value))
    stream.flush()


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it died before the line above took hold


if __name__ == "__main__":
    main()
