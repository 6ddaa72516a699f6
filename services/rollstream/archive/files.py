"""The files of an archive by their names, in a directory or in a bucket. A file is written once, as a whole.

Names are relative, with slashes. Both kinds have the same methods.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, TypeVar
from urllib.parse import unquote, urlsplit

from rollstream.process.crash_points import crash_point
from rollstream.process.files import DirectoryLock, replacing, writable
from rollstream.process.settings.storage import StorageSettings
from rollstream.schemas.addresses import is_bucket
from rollstream.schemas.errors import ConfigurationError

T = TypeVar("T")


class DirectoryFiles:
    """A file has a hidden name until all of it is on the disk; hidden names that a killed process left are removed."""

    def __init__(self, directory: Path) -> None:
        self.place = str(directory)
        self._directory = directory

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A block in which files may be written. The directory is made, and held until the block ends.

        Raises `ConfigurationError` if another process holds it.
        """
        with writable(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            lock = DirectoryLock.tried(self._directory.resolve())  # it may be a link to another disk
        if lock is None:
            raise ConfigurationError(f"another process writes {self.place} right now: end it first")
        try:
            yield
        finally:
            lock.release()

    def remove_parts(self) -> None:
        """Remove what a killed process left. Only where all files are known to be of an archive."""
        with writable(self._directory):
            # As `replacing` names them.
            for left in self._directory.rglob(".*.part"):
                left.unlink()

    def names(self) -> list[str]:
        """The names of all files but hidden ones, sorted."""
        found = (path for path in self._directory.rglob("*") if path.is_file() and not path.name.startswith("."))
        return sorted(path.relative_to(self._directory).as_posix() for path in found)

    def read(self, name: str, take: Callable[[IO[bytes]], T]) -> T:
        """What `take` makes of a file; raises `FileNotFoundError`, and `ConfigurationError` if it can't be opened."""
        path = self._directory / name
        try:
            stream = path.open("rb")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileNotFoundError(f"{path} is gone") from error
        except OSError as error:
            raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
        with stream:
            return take(stream)

    def create(self, name: str, content: bytes) -> None:
        """Write a file. Nobody sees a part of it, and it is on the disk afterwards."""
        path = self._directory / name
        with replacing(path) as stream, writable(path):
            stream.write(content)
            crash_point("archive_file_written")
        crash_point("archive_file_named")


class BucketFiles:
    """No lock holds in a bucket. Of two processes that write there at once, neither replaces a file of the other; what
    both have written is twice in the files, and once in what `views.sql` and `reading.py` make of them.
    """

    def __init__(self, url: str, storage: StorageSettings) -> None:
        # Its library takes a while to import.
        from rollstream.history.bucket import Bucket

        self._bucket = Bucket(url, storage)
        self.place = self._bucket.url

    def writing(self) -> AbstractContextManager[None]:
        """A block in which files may be written."""
        return nullcontext()

    def remove_parts(self) -> None:
        """There are none."""

    def names(self) -> list[str]:
        """The names of all files, sorted. Raises `ConfigurationError` and `WeightStoreError` as all methods do."""
        return self._bucket.names()

    def read(self, name: str, take: Callable[[IO[bytes]], T]) -> T:
        """What `take` makes of a file, of which it may read parts; raises `FileNotFoundError`.

        What `take` itself finds wrong it returns: errors are taken for those of the bucket.
        """
        return self._bucket.read_parts(name, take)

    def create(self, name: str, content: bytes) -> None:
        """Write a file."""
        try:
            self._bucket.create(name, content)
        except FileExistsError as error:
            raise ConfigurationError(f"{error}: another process writes there, too; end one of them") from error
        crash_point("archive_file_named")


Files = DirectoryFiles | BucketFiles


def open_files(location: str | Path, storage: StorageSettings | None = None) -> Files:
    """The files at a checked location, see `checked_location`; nothing is asked yet."""
    text = str(location)
    if is_bucket(text):
        return BucketFiles(text, storage or StorageSettings())
    return DirectoryFiles(Path(unquote(urlsplit(text).path)) if text.startswith("file://") else Path(location))
