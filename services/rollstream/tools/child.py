"""The process that runs a user's own tools: `python -m rollstream.tools.child FD PARENT_PID`.

It imports the class once and forks a process for each session, which costs a few milliseconds: no session sees another
one's state, and one that hangs is killed alone. FD is a socket on which each message is one request: the setup, a fork
with the session's own socket, or the end of a session's process. The kernel kills all of them when the parent ends.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import struct
import sys
from typing import Any, Final, NoReturn

from rollstream.process.parent import die_with
from rollstream.process.settings.declared import Declaration, imported
from rollstream.tools.methods import Methods
from rollstream.tools.sessions import mistake

LENGTH: Final = struct.Struct(">I")
"""Before each message of a session's socket: how many bytes of JSON follow."""
MAX_SETUP_BYTES: Final = 2**17


def main() -> None:
    """Fork sessions until the parent closes the socket."""
    descriptor, parent = (int(argument) for argument in sys.argv[1:3])
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What a tool prints must go to the log, which is standard error.
    os.dup2(sys.stderr.fileno(), 1)
    with socket.socket(fileno=descriptor) as control:
        setup = json.loads(control.recv(MAX_SETUP_BYTES))
        sys.path[:] = setup["module_path"]
        made = Declaration(path=setup["path"], options=setup["options"])
        try:
            kind = imported("path", setup["path"])
            methods = Methods(kind)
        except Exception as error:  # noqa: BLE001 (pydantic raises many kinds at odd annotations)
            control.send(json.dumps({"refused": made.told(error)[:2000]}).encode())
            return
        control.send(json.dumps({"schemas": methods.schemas}).encode())
        _fork_sessions(control, _Maker(kind, made, methods, setup["max_memory_bytes"]))


class _Maker:
    """Makes the object of a session, and serves it."""

    def __init__(self, kind: Any, declared: Declaration, methods: Methods, max_memory_bytes: int) -> None:
        self._kind = kind
        self._declared = declared
        self._methods = methods
        self._max_memory_bytes = max_memory_bytes

    def serve(self, connection: socket.socket) -> None:
        """Answer requests, the first of which begins the session, until it is closed."""
        resource.setrlimit(resource.RLIMIT_AS, (self._max_memory_bytes,) * 2)
        reader, made = connection.makefile("rb"), None
        connection.sendall(_framed({"pid": os.getpid()}))
        while len(header := reader.read(LENGTH.size)) == LENGTH.size:
            request = json.loads(reader.read(LENGTH.unpack(header)[0]))
            try:
                if made is None:
                    made = self._kind(**self._declared.plain_options)
                answer = self._answer(made, request)
            except Exception as error:  # noqa: BLE001 (a user's code may raise anything)
                answer = {"broken": f"{type(error).__name__}: {self._declared.told(error)}"[:2000]}
            connection.sendall(_framed(answer))

    def _answer(self, made: Any, request: dict[str, Any]) -> dict[str, Any]:
        if "call" in request:
            said = self._methods.call(made, request["call"], request["arguments"])
            if said.error is None:
                return {"content": said.content, "error": None}
            # The options may be secret, and the model's words are everybody's.
            told = mistake(self._declared.told(Exception(said.error)))
            return {"content": told.content, "error": told.error}
        (name,) = request
        method = getattr(made, name, None)
        return {"done": method(*request[name]) if method is not None else None}


def _fork_sessions(control: socket.socket, maker: _Maker) -> None:
    children: set[int] = set()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 64, 1)
        if not message:
            return
        if descriptors:
            children.add(_forked(control, descriptors[0], maker))
            continue
        # Reaped only now: until then the number is no other process's.
        pid = int(message)
        if pid in children:
            children.remove(pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _forked(control: socket.socket, descriptor: int, maker: _Maker) -> int:
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _run(control, descriptor, maker, parent)
    # Here too, so that none is missing when the end is asked for before the child has run.
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.setpgid(child, child)
    os.close(descriptor)
    return child


def _run(control: socket.socket, descriptor: int, maker: _Maker, parent: int) -> NoReturn:
    """The life of a session's process."""
    try:
        with contextlib.suppress(PermissionError):
            os.setpgid(0, 0)
        die_with(parent)
        control.close()
        with socket.socket(fileno=descriptor) as connection:
            maker.serve(connection)
    finally:
        os._exit(0)


def _framed(answer: dict[str, Any]) -> bytes:
    try:
        # A Python string may contain lone surrogates, which UTF-8 can't hold.
        body = json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
    except (TypeError, ValueError) as error:
        body = json.dumps({"broken": f"it gave what is no JSON: {error}"}).encode()
    return LENGTH.pack(len(body)) + body


if __name__ == "__main__":
    main()
