"""The protocol of the places that keep weight versions and checkpoints, and the choice of one by its location.

A version is a directory of files with the name `<version>-<incarnation>`. Readers never see half of one.
"""

from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Protocol
from urllib.parse import unquote, urlsplit

from rollstream.history.directory_store import DirectoryWeightStore
from rollstream.history.weight_files import StoredWeights
from rollstream.process.settings.storage import StorageSettings
from rollstream.schemas.addresses import is_bucket
from rollstream.schemas.weights import WeightFile


class WeightStore(Protocol):
    """Keeps weight versions, or checkpoints. What no surviving ledger entry names does not count.

    Where a method says so, `WeightStoreError` means that the store itself is broken: a full disk, a store that does not
    answer. It says nothing of a version.
    """

    def probe(self, *, writes: bool) -> None:
        """Find out whether this process may list here, and write if it `writes`.

        Raises `ConfigurationError` if it may not, `WeightStoreError` if the store does not answer.
        """

    def write(self, name: str, save: Callable[[Path], None]) -> StoredWeights:
        """Store all that `save` writes into the directory that it is given, or nothing; raises `WeightStoreError`.

        Sizes and sums are stored beside the files, for those whom no record tells them.
        """

    def fetch(self, uri: str, files: Sequence[WeightFile] | None) -> Path:
        """A local directory with these files, whose sizes and sums were checked. Raises `CorruptWeightsError`, and
        `WeightStoreError`. None: the files that the store itself knows of, for checkpoints.

        What lies outside of this store is refused unseen: anybody who can write `weights` chooses `uri` and `files`.
        """

    def confirm(self) -> None:
        """Raise `CorruptWeightsError` if the version fetched last is not any more what was checked; ask after its use.

        Whoever has used it then holds something that nobody published.
        """

    def read(self, name: str, file: str) -> bytes:
        """One small file, whose sum was checked; raises `CorruptWeightsError` and `WeightStoreError`."""

    def serve(self, uri: str) -> None:
        """Say that an engine runs on this version, the last one fetched: its local copy stays until the next call."""

    def holds(self, uri: str) -> bool | None:
        """Whether the version's files are here, unread; None if the store itself can't be seen from this machine."""

    def names(self, mark: str) -> set[str]:
        """Names of the versions whose writers' incarnations begin with `mark`, half-written ones of a store included.

        Raises `WeightStoreError`.
        """

    def delete(self, name: str) -> None:
        """Delete the version of this name, if it exists; raises `WeightStoreError`."""

    def sweep(self) -> None:
        """Remove versions that killed processes left incomplete. Those that a living process writes stay."""


def open_weight_store(location: str | Path, storage: StorageSettings | None = None) -> WeightStore:
    """The store at a checked location: a directory, file:///path, s3://bucket/prefix, gs:// or az://.

    Nothing is asked of it yet, see `WeightStore.probe`. Raises `ConfigurationError` for options that it does not know.
    """
    text = str(location)
    if is_bucket(text):
        # Its library takes a while to import, and most commands need no object store.
        from rollstream.history.bucket_store import BucketWeightStore

        return BucketWeightStore(text, storage or StorageSettings())
    return DirectoryWeightStore(Path(unquote(urlsplit(text).path)) if text.startswith("file://") else Path(location))


def directory_name(uri: str) -> str:
    """The name of a version's or a checkpoint's directory; the same wherever its root is mounted."""
    return PurePosixPath(unquote(urlsplit(uri).path)).name
