"""Files are replaced whole, held by one process, and what the disk refuses is said in one way."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from rollstream.process.files import (
    DirectoryLock,
    held,
    hidden_beside,
    replace_text,
    replacing,
    unwritable,
    waited_for,
)
from rollstream.schemas.errors import ConfigurationError, MachineError


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
    with _at_most(1000), pytest.raises(MachineError, match="file"):
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


@contextmanager
def _at_most(num_bytes: int) -> Iterator[None]:
    """No file of this process may be larger meanwhile; Python ignores the signal, so that it is an error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
