"""Rolls a run back to an older weight version: a version and a ledger entry in one transaction, as a trainer does."""

import uuid
from functools import partial

from rollstream.bus.presence import require_no_trainer
from rollstream.bus.run import Run
from rollstream.bus.transaction import TransactionalPublisher
from rollstream.history.read import History, read
from rollstream.history.restorable import checkpoint_is_there, choices, restorable
from rollstream.history.weight_store import open_weight_store
from rollstream.process.settings.base import StageSettings
from rollstream.process.terminal import shown
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ledger import EntryKind, LedgerEntry
from rollstream.schemas.record import utc_now
from rollstream.schemas.topics import LEDGER, WEIGHTS
from rollstream.schemas.weights import WeightsPublished


def roll_back(settings: StageSettings, version: int, *, force: bool, unseen: bool = False) -> WeightsPublished:
    """Publish the files of `version` as a new version, its child. A trainer that still runs is fenced.

    Raises `ConfigurationError` if a trainer lives (unless `force`), if the files of `version` or the checkpoint that
    the next trainer needs are deleted, or if that checkpoint can't be seen from here (unless `unseen`), and
    `CorruptWeightsError` if the files are damaged. Nothing is changed then.
    """
    require_no_trainer(settings.kafka, settings.run, force=force)
    run = Run(settings)
    # Before the trainer is fenced, so that a rollback that is refused stops nobody.
    _checked(settings, read(run), version, unseen=unseen)
    publisher = TransactionalPublisher(run.kafka, run.group("trainer"))
    publisher.init()
    # From here on no trainer can append. One may have committed a step since the check, so read and check again.
    history = read(run)
    older = _checked(settings, history, version, unseen=unseen)
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


def _checked(settings: StageSettings, history: History, version: int, *, unseen: bool) -> WeightsPublished:
    store = open_weight_store(settings.weight_store, settings.storage)
    look_up = partial(checkpoint_is_there, storage=settings.storage)

    def refused(why: str) -> ConfigurationError:
        return ConfigurationError(f"{why}; {choices(restorable(history, store.holds, look_up))}")

    if not history.fold.is_surviving(version) or version not in history.published:
        raise refused(f"version {version} is not on the surviving branch of run {settings.run}")
    older, needed = history.published[version], history.checkpoint_at(version)
    if store.holds(older.uri) is False:
        raise refused(f"the files of version {version} are deleted: a trainer keeps only its newest versions")
    store.fetch(older.uri, older.files)
    is_there = needed is None or look_up(needed.uri)
    if needed is None or is_there or (is_there is None and unseen):
        return older
    start = f"the checkpoint of version {needed.weight_version}, {shown(needed.uri)}"
    if is_there is None:
        raise ConfigurationError(
            f"after a rollback to version {version} the next trainer starts from {start}, and from here it can't be "
            "seen whether that is still there: run this where the trainers' checkpoints can be reached, or look there "
            "yourself and add --unseen-checkpoint"
        )
    raise refused(f"no trainer could go on from version {version}: it would need {start}, which is gone")
