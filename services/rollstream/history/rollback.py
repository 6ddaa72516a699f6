"""Going back to an older weight version: an entry and a version in one transaction, as a trainer would write them."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rollstream.bus.message import OutRecord
from rollstream.bus.presence import GONE_AFTER_SECONDS, is_trainer_present
from rollstream.bus.reader import TopicReader
from rollstream.bus.records import up_to_the_end
from rollstream.bus.transaction import TransactionalPublisher
from rollstream.history.ledger import LedgerFold
from rollstream.history.weight_store import open_weight_store
from rollstream.process.settings import StageSettings
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ledger import EntryKind, LedgerEntry
from rollstream.schemas.record import utc_now
from rollstream.schemas.topics import LEDGER, WEIGHTS
from rollstream.schemas.weights import WeightsPublished


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionHistory:
    """What the topics say about a run's versions."""

    published: Mapping[int, WeightsPublished]
    entries: Mapping[int, LedgerEntry]
    """Version → the entry that made it."""
    fold: LedgerFold

    @property
    def surviving(self) -> set[int]:
        """The versions on the surviving branch."""
        return {link.weight_version for link in self.fold.chain}

    def checkpoint_at(self, version: int) -> str | None:
        """The checkpoint from which a trainer goes on after a rollback to a surviving version; None: initial model."""
        older = [link.checkpoint for link in self.fold.chain if link.weight_version <= version]
        return next((checkpoint for checkpoint in reversed(older) if checkpoint is not None), None)


def read_versions(settings: StageSettings) -> VersionHistory:
    """Read `weights` and `ledger` to their ends."""
    fold, entries = LedgerFold(), {}
    with TopicReader(settings.kafka, [WEIGHTS.of(settings.run)]) as reader:
        found = up_to_the_end(reader, AvroCodec(WEIGHTS, settings.registry()))
        published = {weights.weight_version: weights for weights in found if weights.model == settings.model}
    with TopicReader(settings.kafka, [LEDGER.of(settings.run)]) as reader:
        for entry in up_to_the_end(reader, AvroCodec(LEDGER, settings.registry())):
            fold.add(entry)
            if entry.kind is not EntryKind.DROPS:
                entries[entry.weight_version] = entry.model_copy(update={"trained": (), "closed": ()})
    return VersionHistory(published=published, entries=entries, fold=fold)


def roll_back(settings: StageSettings, version: int, *, force: bool) -> WeightsPublished:
    """Publish the files of `version` as a new version whose parent it is; whoever held the trainer's id is fenced.

    Raises `ConfigurationError` if a trainer lives (unless `force`) or the version can't be gone back to, and
    `CorruptWeightsError` if its files are damaged; nothing is changed then.
    """
    if not force and is_trainer_present(settings.kafka, settings.run):
        raise ConfigurationError(
            f"a trainer of run {settings.run} lives, or was killed less than {GONE_AFTER_SECONDS} s ago: "
            "stop it first, or fence it with --force (it exits with 75)"
        )
    _checked(settings, read_versions(settings), version)
    publisher = TransactionalPublisher(settings.kafka, f"{settings.run}.trainer")
    publisher.init()
    # From here on nobody else appends; a step may have landed between the check and now.
    history = read_versions(settings)
    older = _checked(settings, history, version)
    started = utc_now()
    new = max(history.fold.max_version, *history.published) + 1
    published = older.model_copy(update={"weight_version": new, "parent_version": version, "created_at": started})
    entry = LedgerEntry(
        kind=EntryKind.ROLLBACK,
        incarnation=f"rollback-{uuid.uuid4().hex[:12]}",
        step=older.step,
        weight_version=new,
        parent_version=version,
        started_at=started,
        finished_at=utc_now(),
    )
    publisher.commit(_records(settings, published, entry))
    return published


def _checked(settings: StageSettings, history: VersionHistory, version: int) -> WeightsPublished:
    surviving = sorted(history.surviving & set(history.published))
    if version not in surviving:
        there = (
            "there is none"
            if not surviving
            else f"there are {surviving[0]} to {surviving[-1]}, {len(surviving)} in all"
        )
        raise ConfigurationError(f"version {version} is not on the surviving branch of run {settings.run}: {there}")
    older = history.published[version]
    open_weight_store(settings.weight_store).fetch(older.uri, older.files)
    checkpoint = history.checkpoint_at(version)
    if checkpoint is not None and not _exists(checkpoint):
        raise ConfigurationError(
            f"the newest checkpoint at or before version {version} is {checkpoint}, which is gone: "
            "no trainer could go on from there; choose a version whose checkpoint is kept (`rollstream weights list`)"
        )
    return older


def _exists(uri: str) -> bool:
    parts = urlsplit(uri)
    # What is no directory is somebody else's to judge.
    return parts.scheme != "file" or Path(unquote(parts.path)).is_dir()


def _records(settings: StageSettings, published: WeightsPublished, entry: LedgerEntry) -> list[OutRecord]:
    registry = settings.registry()
    weights, ledger = AvroCodec(WEIGHTS, registry), AvroCodec(LEDGER, registry)
    return [
        OutRecord(topic=WEIGHTS.of(settings.run), key=settings.model.encode(), value=weights.encode(published)),
        OutRecord(topic=LEDGER.of(settings.run), key=settings.run.encode(), value=ledger.encode(entry)),
    ]
