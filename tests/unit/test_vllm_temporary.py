"""The directory of vLLM's temporary files: what a killed process left is deleted by the next, and nothing else is."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollstream.engines.vllm.temporary import VllmDirectory

MAKES = """
import socket, sys
from rollstream.engines.vllm.temporary import VllmDirectory
made = VllmDirectory.make()
listener = socket.socket(socket.AF_UNIX)
listener.bind(f"{made.path}/1c240cd4-9f14-4b21-b946-3b30a40d1fd3")
print(made.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this process and those that it starts keep temporary files."""
    path = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr("tempfile.tempdir", str(path))
    for variable in ("VLLM_RPC_BASE_PATH", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.setenv(variable, "")  # so that it is as before after the test
        monkeypatch.delenv(variable)
    return path


@contextmanager
def another_process() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """One that has a socket in a directory of its own."""
    words = [sys.executable, "-c", MAKES]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_what_a_killed_process_left_is_deleted_by_the_next_one_and_not_before(temporary: Path) -> None:
    with another_process() as (killed, left), another_process() as (_, living):
        assert set(temporary.iterdir()) == {left, living}
        killed.kill()
        killed.wait(20.0)
        made = VllmDirectory.make()
        assert set(temporary.iterdir()) == {living, made.path}
        made.delete()
        made.delete()
        assert set(temporary.iterdir()) == {living}


def test_vllm_is_told_of_the_directory_which_is_private(temporary: Path) -> None:
    made = VllmDirectory.make()
    try:
        assert os.environ["VLLM_RPC_BASE_PATH"] == str(made.path) == tempfile.gettempdir()
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(f"{temporary}/torchinductor_")
        assert made.path.parent == temporary
        assert made.path.stat().st_mode & 0o777 == 0o700
    finally:
        made.delete()
    assert tempfile.gettempdir() == str(temporary)
