"""A directory for vLLM's sockets and other temporary files: it deletes hardly any, and none of them after kill -9.

Who ends in order deletes its directory. What a killed process left is deleted by the next one that starts beside it:
each holds a lock on its own as long as it or one of its forks lives.
"""

import fcntl
import getpass
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

# With vLLM's own 37 characters after it: the kernel takes 107 for a socket's path.
_PREFIX: Final = "rollstream-vllm-"
COMPILED: Final = "torchinductor"
"""Begins the name of the compiler's cache, which is kept."""


class VllmDirectory:
    """One directory, locked by this process, where all temporary files of it and its forks are made."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._before = tempfile.gettempdir()
        # The compiler's cache is for later processes too; by default it would be among the temporary files.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{self._before}/{COMPILED}_{getpass.getuser()}")
        # For processes that are spawned, in which the second line does nothing.
        os.environ["VLLM_RPC_BASE_PATH"] = str(path)
        tempfile.tempdir = str(path)

    @classmethod
    def make(cls) -> Self:
        """Delete what others left, and make one for this process."""
        delete_left(Path(tempfile.gettempdir()))
        while True:
            path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.exists():  # before it was locked another process may have taken it for one that was left
                return cls(path, descriptor)
            os.close(descriptor)

    def delete(self) -> None:
        """Delete it with all that is in it; a second time does nothing."""
        if self._descriptor >= 0:
            tempfile.tempdir = self._before
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._descriptor)
            self._descriptor = -1


def delete_left(base: Path) -> None:
    """Delete the directories in `base` whose processes are gone."""
    for path in base.glob(f"{_PREFIX}*"):
        # Another may be deleting it, or it is of another user.
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(descriptor)
