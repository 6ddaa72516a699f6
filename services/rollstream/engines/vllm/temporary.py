"""A directory for vLLM's sockets and other temporary files: it deletes hardly any, and none of them after kill -9.

Who ends in order deletes its directory. What a killed process left is deleted by the next one that starts beside it:
each holds a lock on its own as long as it or one of its forks lives.
"""

import getpass
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from rollstream.process.files import DirectoryLock

# With vLLM's own 37 characters after it: the kernel takes 107 for a socket's path.
_PREFIX: Final = "rollstream-vllm-"
COMPILED: Final = "torchinductor"
"""Begins the name of the compiler's cache, which is kept."""


class VllmDirectory:
    """One directory, locked by this process, where all temporary files of it and its forks are made."""

    def __init__(self, lock: DirectoryLock) -> None:
        self.path = lock.directory
        self._lock: DirectoryLock | None = lock
        self._before = tempfile.gettempdir()
        # The compiler's cache is for later processes too; by default it would be among the temporary files.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{self._before}/{COMPILED}_{getpass.getuser()}")
        # For processes that are spawned, in which the second line does nothing.
        os.environ["VLLM_RPC_BASE_PATH"] = tempfile.tempdir = str(self.path)

    @classmethod
    def make(cls) -> Self:
        """Delete what others left, and make one for this process."""
        delete_left(Path(tempfile.gettempdir()))
        while True:
            # Before it is locked another process may take it for one that was left.
            if (lock := DirectoryLock.tried(Path(tempfile.mkdtemp(prefix=_PREFIX)))) is not None:
                return cls(lock)

    def delete(self) -> None:
        """Delete it with all that is in it; a second time does nothing."""
        if self._lock is not None:
            tempfile.tempdir = self._before
            shutil.rmtree(self.path, ignore_errors=True)
            self._lock.release()
            self._lock = None


def delete_left(base: Path) -> None:
    """Delete the directories in `base` whose processes are gone."""
    for path in base.glob(f"{_PREFIX}*"):
        # Another may be deleting it, or it is of another user.
        with suppress(OSError):
            if (lock := DirectoryLock.tried(path)) is None:
                continue
            try:
                shutil.rmtree(path)
            finally:
                lock.release()
