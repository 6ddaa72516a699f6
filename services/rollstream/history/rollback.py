"""Rolls a run back to an older weight version: a version and a ledger entry in one transaction, as a trainer does."""

import uuid
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rollstream.bus.presence import require_no_trainer
from rollstream.bus.run import Run
from rollstream.bus.transaction import TransactionalPublisher
from rollstream.history.read import History, read
from rollstream.history.weight_store import open_weight_store
from rollstream.process.settings import StageSettings
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ledger import EntryKind, LedgerEntry
from rollstream.schemas.record import utc_now
from rollstream.schemas.topics import LEDGER, WEIGHTS
from rollstream.schemas.weights import WeightsPublished


def roll_back(settings: StageSettings, version: int, *, force: bool) -> WeightsPublished:
    """Publish the files of `version` as a new version, its child. A trainer that still runs is fenced.

    Raises `ConfigurationError` if a trainer lives (unless `force`), if the files of `version` are deleted or if no
    trainer could go on from it, and `CorruptWeightsError` if its files are damaged. Nothing is changed then.
    """
    require_no_trainer(settings.kafka, settings.run, force=force)
    run = Run(settings)
    # Before the trainer is fenced, so that a rollback that is refused stops nobody.
    _checked(settings, read(run), version)
    publisher = TransactionalPublisher(run.kafka, run.group("trainer"))
    publisher.init()
    # From here on no trainer can append. One may have committed a step since the check, so read and check again.
    history = read(run)
    older = _checked(settings, history, version)
    started = utc_now()
    # Above the versions of cut entries too: a version number never stands for two sets of weights.
    new = history.newest_version + 1
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
    publisher.commit([run.out_record(WEIGHTS, published), run.out_record(LEDGER, entry)])
    return published


def _checked(settings: StageSettings, history: History, version: int) -> WeightsPublished:
    surviving = sorted(history.surviving & set(history.published))
    if version not in surviving:
        raise ConfigurationError(
            f"version {version} is not on the surviving branch of run {settings.run}: there are "
            + (f"{surviving[0]} to {surviving[-1]}, {len(surviving)} in all" if surviving else "no versions")
        )
    older = history.published[version]
    store = open_weight_store(settings.weight_store, settings.storage)
    if store.holds(older.uri) is False:
        raise ConfigurationError(
            f"the files of version {version} are deleted: a trainer keeps only its newest versions; choose one that "
            "`rollstream weights list` does not mark as pruned"
        )
    store.fetch(older.uri, older.files)
    checkpoint = history.checkpoint_at(version)
    if checkpoint is not None and not checkpoint_exists(checkpoint):
        raise ConfigurationError(
            f"the newest checkpoint at or before version {version} is {checkpoint}, which is gone: "
            "no trainer could go on from there; choose a version at or after a checkpoint that "
            "`rollstream weights list` does not mark as pruned"
        )
    return older


def checkpoint_exists(uri: str) -> bool:
    """Whether the checkpoint that an entry names is still there."""
    parts = urlsplit(uri)
    # Only directories can be checked from here.
    return parts.scheme != "file" or Path(unquote(parts.path)).is_dir()
