"""Rows of a data set on the Hugging Face hub: `hf://OWNER/NAME[@REVISION][?split=train&config=main]`.

The files of one split are fetched into the hub's cache and read there like a person's own: with constant memory, in
the same order each time, none fetched twice. The library `datasets` knows which files a split has. They must be
parquet or JSONL. No code of a repository runs: `datasets` 5 has no `trust_remote_code`, and refuses what has a script.

A revision is resolved to its commit once, when the rows are opened; `identity` names the commit.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Final, Self
from urllib.parse import parse_qsl, urlencode

from rollstream.process.files import free_bytes
from rollstream.process.masking import SECRETS
from rollstream.rows.jsonl import JsonlRows
from rollstream.rows.row import BadRow, ReadRow, RowSource
from rollstream.schemas.errors import ConfigurationError

_SPELLING: Final = "hf://OWNER/NAME[@REVISION][?split=train&config=main]"
# A path has one slash where the spelling has two.
_PARTS: Final = re.compile(r"hf:/{1,2}([\w.-]+/[\w.-]+)(?:@([^?]+))?(?:\?(.*))?", re.ASCII)
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
# The hub's own parquet copy of most public data sets, one directory for each config.
_COPY: Final = "refs/convert/parquet"
_CARD: Final = "README.md"
_OTHER_CARD: Final = ".huggingface.yaml"
_MAX_FILES: Final = 10_000
_MAX_REASON_CHARACTERS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class HubName:
    """What a person named. `revision`: a branch, tag or commit; None: the hub's default branch."""

    repository: str
    revision: str | None = None
    split: str = "train"
    config: str | None = None

    @classmethod
    def read(cls, text: str) -> Self:
        """The name in `text`; raises `ConfigurationError` if it is none."""
        found = _PARTS.fullmatch(text)
        if found is None:
            raise ConfigurationError(f"{text!r} is no data set on the hub: write {_SPELLING}")
        repository, revision, query = found.groups()
        try:
            pairs = parse_qsl(query or "", strict_parsing=bool(query), max_num_fields=2)
        except ValueError as error:
            raise ConfigurationError(f"{text!r}: {error}; write {_SPELLING}") from error
        options = dict(pairs)
        if len(options) < len(pairs) or not options.keys() <= {"split", "config"}:
            raise ConfigurationError(f"{text!r}: after the question mark only split and config are known, each once")
        return cls(repository=repository, revision=revision, **options)

    def __str__(self) -> str:
        revision = "" if self.revision is None else f"@{self.revision}"
        config = {} if self.config is None else {"config": self.config}
        return f"hf://{self.repository}{revision}?{urlencode({'split': self.split, **config})}"


class HubRows:
    """The rows of all files of a split, in the order of the files. See `RowSource`."""

    def __init__(self, pinned: HubName, parts: Sequence[RowSource]) -> None:
        """`pinned`: with a commit as its revision."""
        self._pinned = pinned
        self._parts = tuple(parts)
        self.name = pinned.repository

    @property
    def num_rows(self) -> int | None:
        counts = [part.num_rows for part in self._parts]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def identity(self) -> str:
        """The name with the commit, which stands for the content. Counts the rows."""
        for part in self._parts:
            if part.num_rows is None:
                part.identity()
        return str(self._pinned)

    def __iter__(self) -> Iterator[ReadRow | BadRow]:
        number = 0
        for part in self._parts:
            for row in part:
                yield replace(row, number=number)
                number += 1


def is_hub_name(path: Path) -> bool:
    """Whether a path that a person named begins with `hf:`: then it is a data set on the hub."""
    return path.parts[:1] == ("hf:",)


def full_hub_name(name: str) -> str:
    """`OWNER/NAME` of a data set that is known by its name alone, as gsm8k is. Raises `ConfigurationError`."""
    from huggingface_hub import HfApi

    with _explained(name):
        return HubName.read(f"hf://{HfApi().dataset_info(name).id}").repository


def open_hub_rows(path: Path, begun_with: str = "") -> RowSource:
    """The rows that `path` names, fetched.

    `begun_with`: what `identity` was when an output was begun. A name without a revision then means that commit.
    Raises `ConfigurationError` if the hub can't be reached or does not give them.
    """
    wanted = HubName.read(str(path))
    if wanted.revision is None and begun_with.startswith("hf://"):
        earlier = HubName.read(begun_with)
        if replace(earlier, revision=None) == wanted:
            wanted = earlier
    with _explained(wanted):
        return _fetched(wanted)


def _fetched(wanted: HubName) -> RowSource:
    from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache

    found = HfApi().dataset_info(wanted.repository, revision=wanted.revision, files_metadata=True)
    if found.sha is None or _COMMIT.fullmatch(found.sha) is None:
        raise ConfigurationError(f"{wanted}: the hub names no commit of it, but {found.sha!r}")
    pinned = replace(wanted, revision=found.sha)
    place: Any = {"repo_id": pinned.repository, "repo_type": "dataset", "revision": found.sha}
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in found.siblings or ()}
    if _OTHER_CARD in sizes:
        raise ConfigurationError(
            f"{pinned}: it names its files in {_OTHER_CARD}, which is not read: fetch them yourself"
        )
    if _CARD in sizes:
        _refuse_addresses(pinned, Path(hf_hub_download(filename=_CARD, **place)))
    files = _files_of_split(pinned, is_copy=wanted.revision == _COPY)
    missing = [file for file in files if not isinstance(try_to_load_from_cache(filename=file, **place), str)]
    _refuse_too_large(wanted, sum(sizes.get(file, 0) for file in missing))
    return HubRows(pinned, _parts([Path(hf_hub_download(filename=file, **place)) for file in files]))


def _refuse_addresses(pinned: HubName, card: Path) -> None:
    """Refuse a card that names files outside of its repository: the library would look there."""
    from huggingface_hub import DatasetCard

    for text in _texts_in(DatasetCard.load(card).data.to_dict().get("configs")):
        if "://" in text or "::" in text or text.startswith(("/", "~")) or ".." in PurePosixPath(text).parts:
            raise ConfigurationError(f"{pinned}: its card names files outside of it, {text!r}: fetch them yourself")


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(inner)


def _files_of_split(pinned: HubName, *, is_copy: bool) -> list[str]:
    """The files of the split, by their paths in the repository, in the order of the library."""
    from datasets import load_dataset_builder

    with TemporaryDirectory() as notes:
        builder = load_dataset_builder(
            # With the scheme a directory of this name here is not taken for it.
            f"hf://datasets/{pinned.repository}",
            None if is_copy else pinned.config,
            data_dir=pinned.config or "default" if is_copy else None,
            revision=pinned.revision,
            cache_dir=notes,
        )
        splits = {str(split): list(files) for split, files in (builder.config.data_files or {}).items()}
    if pinned.split not in splits:
        raise ConfigurationError(
            f"{pinned} has no split {pinned.split!r}, only {', '.join(splits) or 'none'}: name one, as in ?split=test"
        )
    files, base = splits[pinned.split], f"hf://datasets/{pinned.repository}@{pinned.revision}/"
    strange = [file for file in files if not file.startswith(base)]
    if strange:
        raise ConfigurationError(f"{pinned} names files that are not in it: {strange[0]}")
    names = [file.removeprefix(base) for file in files]
    _refuse_unread(pinned, names)
    return names


def _refuse_unread(pinned: HubName, names: Sequence[str]) -> None:
    kinds = {PurePosixPath(name).suffix for name in names}
    if kinds not in ({".parquet"}, {".jsonl"}):
        raise ConfigurationError(
            f"{pinned} is of {', '.join(sorted(kinds)) or 'no'} files; those of .parquet or of .jsonl can be read. The "
            f"hub may have a parquet copy: hf://{pinned.repository}@{_COPY}?split={pinned.split}&config="
            f"{pinned.config or 'default'}"
        )
    if len(names) > _MAX_FILES:
        raise ConfigurationError(f"{pinned} has {len(names)} files, more than {_MAX_FILES}: fetch those that you need")


def _refuse_too_large(wanted: HubName, num_bytes: int) -> None:
    from huggingface_hub.constants import HF_HUB_CACHE as CACHE

    free = free_bytes(Path(CACHE))
    if num_bytes > free:
        raise ConfigurationError(
            f"{wanted}: {num_bytes} bytes are to be fetched, {CACHE} has room for {free}: set HF_HOME to a larger disk"
        )


def _parts(paths: Sequence[Path]) -> list[RowSource]:
    from rollstream.rows.arrow import ParquetRows

    if paths[0].suffix == ".parquet":
        return [ParquetRows(paths[0], paths)]
    return [JsonlRows(path) for path in paths]


@contextmanager
def _explained(wanted: HubName | str) -> Iterator[None]:
    """Every error as a `ConfigurationError` that names the data set."""
    from huggingface_hub import get_token

    SECRETS.add([token for token in (get_token(),) if token])
    try:
        yield
    except ConfigurationError:
        raise
    except Exception as error:  # a stranger's repository makes the libraries raise anything
        raise ConfigurationError(f"{wanted}: {_why(error)}") from error


def _why(error: Exception) -> str:
    """What was wrong, and what to change."""
    # HTTPError is that of the library's HTTP client, another package from its version 2 on.
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        GatedRepoError,
        HfHubHTTPError,
        HTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, GatedRepoError):
        return (
            "access is granted one by one: ask for it on its page, and give your token by HF_TOKEN or `hf auth login`"
        )
    if isinstance(error, RepositoryNotFoundError):
        return "the hub has no such data set, or your token may not see it: correct the name, or HF_TOKEN"
    if isinstance(error, RevisionNotFoundError):
        return "it has no such revision; name a branch, a tag or a commit"
    if isinstance(error, OfflineModeIsEnabled | HTTPError) and not isinstance(error, HfHubHTTPError):
        return f"the hub can't be reached, {type(error).__name__}; go online, or name a directory with its files"
    said = SECRETS.masked(" ".join(str(error).split()))[:_MAX_REASON_CHARACTERS]
    return f"it can't be read, {type(error).__name__}: {said}"
