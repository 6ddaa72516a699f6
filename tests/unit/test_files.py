"""Files are replaced whole and held by one process; what a killed one left goes; what a disk refuses is said."""

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from rollstream.engines.vllm.temporary import VllmDirectory
from rollstream.process.files import DirectoryLock, held, hidden_beside, replace_text, replacing, unwritable, waited_for
from rollstream.schemas.errors import ConfigurationError, MachineError
from tests.harness.full_disk import room_for


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.json"
    replace_text(path, "before")
    with suppress(KeyError), replacing(path) as stream:
        stream.write(b"half")
        assert path.read_text() == "before"
        raise KeyError
    assert path.read_text() == "before"
    replace_text(path, "after")
    assert path.read_text() == "after"
    assert [one.name for one in path.parent.iterdir()] == ["file.json"]


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, MachineError), (errno.EDQUOT, MachineError), (errno.EFBIG, MachineError),
        (errno.EIO, MachineError), (errno.EROFS, ConfigurationError), (errno.EACCES, ConfigurationError),
        (errno.EISDIR, ConfigurationError), (errno.ENOTDIR, ConfigurationError),
    ],
)  # fmt: skip
def test_a_full_disk_is_the_machines_fault_and_all_else_a_wrong_setting(number: int, kind: type) -> None:
    said = unwritable(Path("/out/rows.jsonl"), OSError(number, os.strerror(number)))
    assert type(said) is kind
    assert said.is_explained
    assert said.exit_code == {MachineError: 70, ConfigurationError: 78}[kind]
    assert "/out/rows.jsonl" in str(said)
    assert os.strerror(number) in str(said)


def test_a_file_that_does_not_fit_stays_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_text(path, "before")
    with room_for(1000), pytest.raises(MachineError, match="file"):
        replace_text(path, "x" * 2000)
    assert path.read_text() == "before"
    assert not hidden_beside(path, "part").exists()


def test_what_one_holds_no_other_gets(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with held(path):
        with pytest.raises(ConfigurationError, match=str(path)), held(path):
            pass
        assert hidden_beside(path, "lock").exists()
    with held(path):
        pass
    assert list(tmp_path.iterdir()) == []
    with waited_for(tmp_path / "lock"):
        pass


def test_a_directory_is_held_by_one_or_shared_by_many(tmp_path: Path) -> None:
    first = DirectoryLock.tried(tmp_path)
    assert first is not None
    assert DirectoryLock.tried(tmp_path, is_shared=True) is None
    first.share()
    second = DirectoryLock.tried(tmp_path, is_shared=True)
    assert second is not None
    assert DirectoryLock.tried(tmp_path) is None
    first.release()
    second.release()
    again = DirectoryLock.tried(tmp_path)
    assert again is not None
    again.release()
    assert DirectoryLock.tried(tmp_path / "gone") is None


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
