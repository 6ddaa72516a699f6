"""Copies of versions that processes of one machine share."""

import fcntl
import hashlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rollstream.history.weight_cache import WeightCache
from rollstream.schemas.weights import WeightFile

CONTENT = b"weights" * 100
FILE = WeightFile(name="model.safetensors", num_bytes=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest())


class _Looked(tuple[WeightFile, ...]):
    """The files of a version; says when somebody has begun to look at them."""

    began = threading.Event()

    def __iter__(self) -> Iterator[WeightFile]:
        self.began.set()
        return super().__iter__()


def test_a_copy_that_another_process_completes_meanwhile_and_keeps_is_used(tmp_path: Path) -> None:
    directory = tmp_path / "3-abc"
    directory.mkdir()
    other = os.open(directory, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_SH)  # as a process that serves the version, for as long as it runs
    with ThreadPoolExecutor(1) as pool:
        try:
            fetching = pool.submit(WeightCache(tmp_path, 2**20).fetch, "3-abc", _Looked((FILE,)), _refuse)
            assert _Looked.began.wait(30)
            (directory / FILE.name).write_bytes(CONTENT)
            assert fetching.result(30) == directory
        finally:
            os.close(other)


def _refuse(file: WeightFile, path: Path) -> None:
    raise AssertionError("what another process has completed is not downloaded again")
