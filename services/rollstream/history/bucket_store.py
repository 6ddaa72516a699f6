"""A weight store in an object store: s3://, gs:// or az://, through obstore.

Big files first, then a small manifest that is written once: a version without one does not count. Nobody else writes to
a version's prefix, because the name of the prefix ends with the writer's incarnation.

What a killed upload leaves are parts that no listing shows: only a lifecycle rule of the bucket removes those.
"""

import hashlib
import logging
import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from obstore import delete, get, head, list_with_delimiter, put
from obstore import list as list_objects
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import ObjectStore, from_url
from tenacity import (
    RetryError,
    Retrying,
    before_sleep_log,
    retry_if_exception,
    stop_before_delay,
    wait_exponential,
)

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
    shown,
)
from rollstream.process.crash_points import crash_point
from rollstream.process.masking import without_values
from rollstream.process.settings.storage import StorageSettings, is_address
from rollstream.schemas.errors import ConfigurationError, CorruptWeightsError, WeightStoreError
from rollstream.schemas.weights import WeightFile

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
_PART_BYTES: Final = 8 * 2**20
_READ_BYTES: Final = 4 * 2**20
_PARALLEL_PARTS: Final = 4
_SMALL_FILE_BYTES: Final = 256 * 2**20  # the history in a checkpoint; a manifest is far smaller
_NAME: Final = re.compile(r"\d{1,18}-\w{1,128}", re.ASCII)
_LONGEST_CAUSE: Final = 300
_STATUS: Final = re.compile(r"status code: (\d{3}(?: [A-Za-z][A-Za-z -]{0,40})?)")
# S3 and Azure answer in XML, Google in JSON.
_ANSWER: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"<Code>([\w.-]{1,80})</Code>",
        r"<Message>([^<\x00-\x1f]{1,300})",
        r"\"message\"\s*:\s*\"([^\"\x00-\x1f]{1,300})\"",
    )
)
_FIRST_PAUSE_SECONDS: Final = 0.2
_LONGEST_PAUSE_SECONDS: Final = 5.0
# Any of these options, or their variables, says where keys come from.
_KEYS_OF_S3: Final = frozenset(
    ("access_key_id", "skip_signature", "web_identity_token_file", "container_credentials_relative_uri",
     "container_credentials_full_uri", "metadata_endpoint")
)  # fmt: skip


class BucketWeightStore:
    """Versions as `<version>-<incarnation>/` below the prefix that the URL names."""

    def __init__(self, url: str, storage: StorageSettings) -> None:
        self._url = url.rstrip("/")
        self._storage = storage
        self._store = _open(self._url, storage)
        self._allowed: set[str] = set()
        self._checked = FileMarks()
        # Stores share a cache's directory, and their versions have the same names: weights 3-a and checkpoint 3-a.
        own = hashlib.sha256(self._url.encode()).hexdigest()[:12]
        self._cache = WeightCache(storage.cache.absolute() / own, storage.cache_bytes)

    def probe(self, *, writes: bool) -> None:
        marker = f".probe-{uuid.uuid4().hex}"
        try:
            self._ask("list", lambda: list_with_delimiter(self._store))
            if writes:
                self._ask("write to", lambda: put(self._store, marker, b"rollstream may write here"))
                self._ask("read", lambda: get(self._store, marker).bytes())
                self._ask("delete from", lambda: delete(self._store, [marker]))
        except (FileNotFoundError, WeightStoreError) as error:
            if isinstance(error, WeightStoreError) and _status(error.__cause__) != 404:
                raise
            raise ConfigurationError(f"{self._url}: there is no such bucket; make it, or correct its name") from error

    def write(self, name: str, save: Callable[[Path], None]) -> StoredWeights:
        with writing(self._cache.root, name) as directory:
            save(directory)
            files = tuple(self._upload(name, directory, path) for path in files_below(directory))
        manifest = VersionManifest(files=files).model_dump_json().encode()
        self._ask("write to", lambda: put(self._store, f"{name}/{MANIFEST}", manifest, mode="create"), name)
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
        def whole() -> bytes:
            found = get(self._store, f"{name}/{file}")
            if found.meta["size"] > _SMALL_FILE_BYTES:
                raise CorruptWeightsError(
                    f"{self._url}/{name}/{file} has {found.meta['size']} bytes, at most {_SMALL_FILE_BYTES} are read"
                )
            return bytes(found.bytes())

        try:
            return self._ask("read", whole, name)
        except FileNotFoundError as error:
            raise CorruptWeightsError(f"{self._url}/{name} has no {file}: it was deleted, or never complete") from error

    def confirm(self) -> None:
        self._checked.confirm()

    def serve(self, uri: str) -> None:
        self._cache.serve(self._name(uri))

    def holds(self, uri: str) -> bool | None:
        try:
            name = self._name(uri)
            self._ask_once("read", lambda: head(self._store, f"{name}/{MANIFEST}"))
        except (FileNotFoundError, CorruptWeightsError):
            return False
        except (WeightStoreError, ConfigurationError):
            return None
        return True

    def names(self, mark: str) -> set[str]:
        prefixes = self._ask("list", lambda: list_with_delimiter(self._store)["common_prefixes"])
        names = (prefix.rstrip("/").rpartition("/")[2] for prefix in prefixes)
        return {name for name in names if _NAME.fullmatch(name) and name.partition("-")[2].startswith(mark)}

    def delete(self, name: str) -> None:
        """Delete the version; its manifest first, so that what is deleted in part does not count."""

        def objects() -> None:
            delete(self._store, [f"{name}/{MANIFEST}"])
            for found in list_objects(self._store, prefix=name):
                delete(self._store, [one["path"] for one in found])

        self._ask("delete from", objects, name)

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
                self._store,
                f"{name}/{relative}",
                parts if size > _PART_BYTES else b"".join(parts),
                chunk_size=_PART_BYTES,
                max_concurrency=_PARALLEL_PARTS,
            )
            return digest.hexdigest()

        sha256 = self._ask("write to", whole, name)
        crash_point("file_uploaded")
        return WeightFile(name=relative, num_bytes=size, sha256=sha256)

    def _download(self, name: str, file: WeightFile, path: Path) -> None:
        place = f"{self._url}/{name}/{file.name}"

        def whole() -> str:
            digest = hashlib.sha256()
            found = get(self._store, f"{name}/{file.name}")
            if found.meta["size"] != file.num_bytes:
                raise CorruptWeightsError(f"{place}: expected {file.num_bytes} bytes, got {found.meta['size']}")
            with path.open("wb") as copy:
                for part in found.stream(min_chunk_size=_READ_BYTES):
                    digest.update(part)
                    copy.write(part)
            return digest.hexdigest()

        try:
            sha256 = self._ask("read", whole, name)
        except FileNotFoundError as error:
            raise CorruptWeightsError(f"{shown(place)}: expected {file.num_bytes} bytes, got none") from error
        check_sum(place, file, sha256)

    def _ask(self, doing: str, request: Callable[[], T], name: str = "") -> T:
        """Ask the store. A refusal of what it allowed before is an outage: clocks drift and policies are changed.

        It is repeated as long as one, which the library does not do, and then raised as `WeightStoreError`.
        """
        retrying = Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, ConfigurationError) and doing in self._allowed),
            wait=wait_exponential(multiplier=_FIRST_PAUSE_SECONDS, max=_LONGEST_PAUSE_SECONDS),
            stop=stop_before_delay(self._storage.outage_seconds),
            before_sleep=before_sleep_log(_LOG, logging.WARNING),
        )
        try:
            answer: T = retrying(self._ask_once, doing, request, name)
        except RetryError as outage:
            refusal = outage.last_attempt.exception()
            raise WeightStoreError(
                f"{refusal}; it was allowed before, and refused for {self._storage.outage_seconds:g} s now"
            ) from refusal
        self._allowed.add(doing)
        return answer

    def _ask_once(self, doing: str, request: Callable[[], T], name: str = "") -> T:
        """Turn what obstore raises into errors of ours; a missing object stays `FileNotFoundError`."""
        place = f"{self._url}/{name}" if name else self._url
        try:
            return request()
        except AlreadyExistsError as error:
            raise WeightStoreError(f"{place} already exists: a version is written once by an incarnation") from error
        except (BaseError, ValueError) as error:
            cause = _cause(error, self._storage)
            # Of a list the library says so in words alone.
            if _status(error) in (401, 403) or isinstance(error, PermissionDeniedError | UnauthenticatedError):
                raise ConfigurationError(
                    f"may not {doing} {place}: {cause}; check the keys in [storage] options, their rights, and this "
                    "machine's clock"
                ) from error
            raise WeightStoreError(f"could not {doing} {place}: {cause}") from error


def _open(url: str, storage: StorageSettings) -> ObjectStore:
    options = {name: value.get_secret_value() for name, value in storage.options.items()}
    _refuse_without_keys(url, options)
    config: Any = options
    try:
        return from_url(
            url,
            config=config,
            client_options={"timeout": timedelta(seconds=storage.timeout_seconds), "allow_http": storage.allow_http},
            retry_config={
                # The library's ten are used up within three seconds.
                "max_retries": 1_000_000,
                "retry_timeout": timedelta(seconds=storage.outage_seconds),
                "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=5), "base": 2},
            },
        )
    except UnknownConfigurationKeyError as error:
        raise ConfigurationError(f"[storage] options: {_cause(error, storage)}") from None
    except (BaseError, ValueError) as error:
        raise ConfigurationError(
            f"{url} can't be opened with the [storage] options {', '.join(options)}: {_cause(error, storage)}"
        ) from None


def _refuse_without_keys(url: str, options: dict[str, str]) -> None:
    """Without any keys the library asks the cloud's metadata address for some, which elsewhere nobody answers."""
    given = {name.lower().removeprefix("aws_") for name in (*options, *(v for v in os.environ if v.startswith("AWS_")))}
    if url.startswith("s3://") and not given & _KEYS_OF_S3:
        raise ConfigurationError(
            f"no keys for {url}: set access_key_id and secret_access_key in [storage] options, or the variables "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; for the role of a machine set the option metadata_endpoint "
            "to the address that gives its keys, for a bucket that is open to all skip_signature"
        )


def _cause(error: Exception, storage: StorageSettings) -> str:
    """What the store answered, else the first line of what the library says, without the options that it quotes.

    The library puts the answer after addresses of any length, and then repeats it over pages.
    """
    hidden = (value.get_secret_value() for name, value in storage.options.items() if not is_address(name))
    text = without_values(hidden, str(error)).strip()
    status, answer = _STATUS.search(text), [found[1] for part in _ANSWER if (found := part.search(text))]
    if status and answer:
        return ": ".join([status[1], *answer])
    return text.partition("\n")[0][:_LONGEST_CAUSE]


def _status(error: BaseException | None) -> int | None:
    """The HTTP status that the library tells in words."""
    found = _STATUS.search(str(error))
    return int(found[1][:3]) if found else None


def _parts(path: Path, digest: "hashlib._Hash") -> Iterator[bytes]:
    with path.open("rb") as stream:
        while part := stream.read(_PART_BYTES):
            digest.update(part)
            yield part
