"""A weight store in an object store: s3://, gs:// or az://, through obstore.

Big files first, then a small manifest that is written once: a version without one does not count. Nobody else writes to
a version's prefix, because the name of the prefix ends with the writer's incarnation.

What a killed upload leaves are parts that no listing shows: only a lifecycle rule of the bucket removes those.
"""

import hashlib
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from obstore import delete, get, head, list_with_delimiter, put
from obstore import list as list_objects

from rollstream.history.bucket import Bucket
from rollstream.history.directory_store import writing
from rollstream.history.weight_cache import WeightCache
from rollstream.history.weight_files import (
    MANIFEST,
    FileMarks,
    StoredWeights,
    VersionManifest,
    check_content,
    check_names,
    check_sum,
    files_below,
)
from rollstream.process.crash_points import crash_point
from rollstream.process.settings.storage import StorageSettings
from rollstream.process.terminal import shown
from rollstream.schemas.errors import ConfigurationError, CorruptWeightsError, WeightStoreError
from rollstream.schemas.weights import WeightFile

_PART_BYTES: Final = 8 * 2**20
_READ_BYTES: Final = 4 * 2**20
_PARALLEL_PARTS: Final = 4
_SMALL_FILE_BYTES: Final = 256 * 2**20  # the history in a checkpoint; a manifest is far smaller
_NAME: Final = re.compile(r"\d{1,18}-\w{1,128}", re.ASCII)


class BucketWeightStore:
    """Versions as `<version>-<incarnation>/` below the prefix that the URL names."""

    def __init__(self, url: str, storage: StorageSettings) -> None:
        self._url = url.rstrip("/")
        self._bucket = Bucket(self._url, storage)
        self._checked = FileMarks()
        # Stores share a cache's directory, and their versions have the same names: weights 3-a and checkpoint 3-a.
        own = hashlib.sha256(self._url.encode()).hexdigest()[:12]
        self._cache = WeightCache(storage.cache.absolute() / own, storage.cache_bytes)

    def probe(self, *, writes: bool) -> None:
        marker = f".probe-{uuid.uuid4().hex}"
        try:
            self._bucket.ask("list", lambda: list_with_delimiter(self._bucket.store))
            if writes:
                self._bucket.ask("write to", lambda: put(self._bucket.store, marker, b"rollstream may write here"))
                self._bucket.ask("read", lambda: get(self._bucket.store, marker).bytes())
                self._bucket.ask("delete from", lambda: delete(self._bucket.store, [marker]))
        except (FileNotFoundError, WeightStoreError) as error:
            self._bucket.refuse(error)

    def write(self, name: str, save: Callable[[Path], None]) -> StoredWeights:
        with writing(self._cache.root, name) as directory:
            save(directory)
            files = tuple(self._upload(name, directory, path) for path in files_below(directory))
        manifest = VersionManifest(files=files).model_dump_json().encode()
        try:
            self._bucket.create(f"{name}/{MANIFEST}", manifest)
        except FileExistsError as error:
            raise WeightStoreError(f"{error}: a version is written once by an incarnation") from error
        return StoredWeights(uri=f"{self._url}/{name}", files=files)

    def fetch(self, uri: str, files: Sequence[WeightFile] | None) -> Path:
        name = self._name(uri)
        wanted = self._files(name) if files is None else files
        check_names(shown(uri), wanted)
        directory = self._cache.fetch(name, wanted, lambda file, path: self._download(name, file, path))
        self._checked = FileMarks.of(directory, wanted)
        return directory

    def read(self, name: str, file: str) -> bytes:
        content = self._content(name, file)
        check_content(f"{self._url}/{name}/{file}", file, content, self._files(name))
        return content

    def _content(self, name: str, file: str) -> bytes:
        try:
            return self._bucket.read(f"{name}/{file}", _SMALL_FILE_BYTES)
        except ValueError as error:
            raise CorruptWeightsError(str(error)) from error
        except FileNotFoundError as error:
            raise CorruptWeightsError(f"{self._url}/{name} has no {file}: it was deleted, or never complete") from error

    def confirm(self) -> None:
        self._checked.confirm()

    def serve(self, uri: str) -> None:
        self._cache.serve(self._name(uri))

    def holds(self, uri: str) -> bool | None:
        try:
            name = self._name(uri)
            self._bucket.ask_once("read", lambda: head(self._bucket.store, f"{name}/{MANIFEST}"))
        except (FileNotFoundError, CorruptWeightsError):
            return False
        except (WeightStoreError, ConfigurationError):
            return None
        return True

    def names(self, mark: str) -> set[str]:
        prefixes = self._bucket.ask("list", lambda: list_with_delimiter(self._bucket.store)["common_prefixes"])
        names = (prefix.rstrip("/").rpartition("/")[2] for prefix in prefixes)
        return {name for name in names if _NAME.fullmatch(name) and name.partition("-")[2].startswith(mark)}

    def delete(self, name: str) -> None:
        """Delete the version; its manifest first, so that what is deleted in part does not count."""

        def objects() -> None:
            delete(self._bucket.store, [f"{name}/{MANIFEST}"])
            for found in list_objects(self._bucket.store, prefix=name):
                delete(self._bucket.store, [one["path"] for one in found])

        self._bucket.ask("delete from", objects, name)

    def sweep(self) -> None:
        """Nothing: what was left on this machine's disk went when the cache was opened."""

    def _name(self, uri: str) -> str:
        """The name of the version that a record names by `uri`; it must lie directly below this store's prefix."""
        name = uri.removeprefix(f"{self._url}/")
        if not uri.startswith(f"{self._url}/") or not _NAME.fullmatch(name):
            raise CorruptWeightsError(f"{shown(uri)} does not lie below {self._url}")
        return name

    def _files(self, name: str) -> tuple[WeightFile, ...]:
        return VersionManifest.parse(f"{self._url}/{name}/{MANIFEST}", self._content(name, MANIFEST)).files

    def _upload(self, name: str, directory: Path, path: Path) -> WeightFile:
        relative = path.relative_to(directory).as_posix()
        size = path.stat().st_size

        def whole() -> str:
            digest = hashlib.sha256()
            # One request for a small file. A big one never lies in memory whole.
            parts = _parts(path, digest)
            put(
                self._bucket.store,
                f"{name}/{relative}",
                parts if size > _PART_BYTES else b"".join(parts),
                chunk_size=_PART_BYTES,
                max_concurrency=_PARALLEL_PARTS,
            )
            return digest.hexdigest()

        sha256 = self._bucket.ask("write to", whole, name)
        crash_point("file_uploaded")
        return WeightFile(name=relative, num_bytes=size, sha256=sha256)

    def _download(self, name: str, file: WeightFile, path: Path) -> None:
        place = f"{self._url}/{name}/{file.name}"

        def whole() -> str:
            digest = hashlib.sha256()
            found = get(self._bucket.store, f"{name}/{file.name}")
            if found.meta["size"] != file.num_bytes:
                raise CorruptWeightsError(f"{place}: expected {file.num_bytes} bytes, got {found.meta['size']}")
            with path.open("wb") as copy:
                for part in found.stream(min_chunk_size=_READ_BYTES):
                    digest.update(part)
                    copy.write(part)
            return digest.hexdigest()

        try:
            sha256 = self._bucket.ask("read", whole, name)
        except FileNotFoundError as error:
            raise CorruptWeightsError(f"{shown(place)}: expected {file.num_bytes} bytes, got none") from error
        check_sum(place, file, sha256)


def _parts(path: Path, digest: "hashlib._Hash") -> Iterator[bytes]:
    with path.open("rb") as stream:
        while part := stream.read(_PART_BYTES):
            digest.update(part)
            yield part
