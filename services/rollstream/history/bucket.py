"""A bucket of an object store: s3://, gs:// or az://, through obstore. Errors say what was refused, and never a key."""

import io
import logging
import os
import re
from collections.abc import Callable
from datetime import timedelta
from typing import IO, Any, Final, NoReturn, TypeVar

from obstore import get, open_reader, put
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

from rollstream.process.masking import without_values
from rollstream.process.settings.storage import StorageSettings, is_address
from rollstream.schemas.errors import ConfigurationError, WeightStoreError

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
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


class Bucket:
    """What lies below the prefix that `url` names. `store`: for requests, each made with `ask`."""

    def __init__(self, url: str, storage: StorageSettings) -> None:
        """Nothing is asked yet. Raises `ConfigurationError` for options that the library does not know, or no keys."""
        self.url = url.rstrip("/")
        self.store = _open(self.url, storage)
        self._storage = storage
        self._allowed: set[str] = set()

    def names(self) -> list[str]:
        """The names of all objects, sorted. Raises `ConfigurationError` if there is no such bucket."""
        try:
            return self.ask("list", lambda: sorted(one["path"] for found in list_objects(self.store) for one in found))
        except (FileNotFoundError, WeightStoreError) as error:
            self.refuse(error)

    def refuse(self, error: FileNotFoundError | WeightStoreError) -> NoReturn:
        """Raise the error of a request that every bucket answers, or `ConfigurationError` if it says there is none."""
        if isinstance(error, WeightStoreError) and status_of(error.__cause__) != 404:
            raise error
        raise ConfigurationError(f"{self.url}: there is no such bucket; make it, or correct its name") from error

    def read(self, name: str, most_bytes: int) -> bytes:
        """A small object as a whole; raises `FileNotFoundError`, and `ValueError` if it has more bytes."""

        def whole() -> bytes | int:
            found = get(self.store, name)
            num_bytes = int(found.meta["size"])
            return num_bytes if num_bytes > most_bytes else bytes(found.bytes())

        content = self.ask("read", whole, name)
        if isinstance(content, int):
            raise ValueError(f"{self.url}/{name} has {content} bytes, at most {most_bytes} are read")
        return content

    def read_parts(self, name: str, take: Callable[[IO[bytes]], T]) -> T:
        """What `take` makes of an object, which it may seek and read in parts; raises `FileNotFoundError`."""
        return self.ask("read", lambda: take(io.BufferedReader(_Parts(open_reader(self.store, name)))), name)

    def create(self, name: str, content: bytes) -> None:
        """Write a small object. Raises `FileExistsError` if one of this name has another content."""
        try:
            self.ask("write to", lambda: put(self.store, name, content, mode="create"), name)
        except AlreadyExistsError as error:
            # After an answer that was lost the library asks again, and finds what it wrote.
            if not self._holds(name, content):
                raise FileExistsError(f"{self.url}/{name} already exists") from error

    def _holds(self, name: str, content: bytes) -> bool:
        try:
            return self.read(name, len(content)) == content
        except ValueError:
            return False

    def ask(self, doing: str, request: Callable[[], T], name: str = "") -> T:
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
            answer: T = retrying(self.ask_once, doing, request, name)
        except RetryError as outage:
            refusal = outage.last_attempt.exception()
            raise WeightStoreError(
                f"{refusal}; it was allowed before, and refused for {self._storage.outage_seconds:g} s now"
            ) from refusal
        self._allowed.add(doing)
        return answer

    def ask_once(self, doing: str, request: Callable[[], T], name: str = "") -> T:
        """The same once. A missing object stays `FileNotFoundError`, one that must not exist `AlreadyExistsError`."""
        place = f"{self.url}/{name}" if name else self.url
        try:
            return request()
        except AlreadyExistsError:
            raise
        except (BaseError, ValueError) as error:
            cause = _cause(error, self._storage)
            # Of a list the library says so in words alone.
            if status_of(error) in (401, 403) or isinstance(error, PermissionDeniedError | UnauthenticatedError):
                raise ConfigurationError(
                    f"may not {doing} {place}: {cause}; check the keys in [storage] options, their rights, and this "
                    "machine's clock"
                ) from error
            raise WeightStoreError(f"could not {doing} {place}: {cause}") from error


class _Parts(io.RawIOBase):
    """An object as a file of Python."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = memoryview(self._reader.read(len(buffer)))
        buffer[: len(part)] = part
        return len(part)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._reader.seek(offset, whence))

    def tell(self) -> int:
        return int(self._reader.tell())


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


def status_of(error: BaseException | None) -> int | None:
    """The HTTP status that the library tells in words."""
    found = _STATUS.search(str(error))
    return int(found[1][:3]) if found else None
