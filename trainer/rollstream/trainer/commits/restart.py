"""Taking over a run: what the surviving ledger says, which checkpoint to restore, where to read on."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rollstream.bus.admin import ClusterIdentity
from rollstream.bus.message import Message, Partition
from rollstream.bus.reader import TopicReader
from rollstream.history.ledger import LedgerFold
from rollstream.process.settings import KafkaSettings
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import BrokenWorldError, ConfigurationError, DecodeError
from rollstream.schemas.ledger import EntryKind, LedgerEntry
from rollstream.schemas.registry import SchemaRegistry
from rollstream.schemas.topics import LEDGER, WEIGHTS
from rollstream.trainer.commits.checkpoint import Position

_LATEST_STEPS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPlan:
    """What the first act publishes: `version` with the weights of `parent`, restored from `checkpoint`.

    The first start of a run, and one whose first trainer died before any checkpoint, begin with the initial model.
    """

    version: int
    parent: int | None
    step: int
    checkpoint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingStart:
    """Next offset of every partition, and whether records before it expired unread."""

    offsets: dict[Partition, int]
    is_loss_accepted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLedger:
    """The whole ledger, folded; the largest version on `weights` (-1: none); the latest step entries, cut ones too."""

    fold: LedgerFold
    newest_published: int
    latest_steps: Sequence[LedgerEntry]


def read_ledger(kafka: KafkaSettings, run: str, registry: SchemaRegistry) -> FoundLedger:
    """What trainers before this one left behind.

    Call it after the transactional id was taken over: nobody else can append any more, and an open transaction of a
    predecessor is aborted. Raises `BrokerError`, `InconsistentLedgerError`.
    """
    ledger, weights = AvroCodec(LEDGER, registry), AvroCodec(WEIGHTS, registry)
    fold = LedgerFold()
    newest = -1
    latest: deque[LedgerEntry] = deque(maxlen=_LATEST_STEPS)
    with TopicReader(kafka, [LEDGER.of(run), WEIGHTS.of(run)]) as reader:
        for message in reader.read_to_end():
            try:
                if message.topic == LEDGER.of(run):
                    entry = ledger.decode(message.value)
                    fold.add(entry)
                    if entry.kind is EntryKind.STEP:
                        latest.append(entry)
                else:
                    newest = max(newest, weights.decode(message.value).weight_version)
            except DecodeError as error:
                raise BrokenWorldError(
                    f"{_at(message)} is not readable, and only trainers and rollbacks write there: {error}"
                ) from error
    return FoundLedger(fold=fold, newest_published=newest, latest_steps=latest)


def plan_restart(fold: LedgerFold, newest_published: int) -> RestartPlan:
    """Where to go on: the newest surviving checkpoint, else the initial model."""
    version = max(fold.max_version, newest_published) + 1
    newest = fold.checkpoint
    if newest is not None:
        return RestartPlan(
            version=version, parent=newest.weight_version, step=newest.step, checkpoint=newest.checkpoint
        )
    parent = fold.chain[0].weight_version if fold.chain else None
    return RestartPlan(version=version, parent=parent, step=0, checkpoint=None)


def check_position(position: Position, identity: ClusterIdentity) -> None:
    """Refuse a checkpoint of another cluster, or of topics that were made anew; raises `ConfigurationError`."""
    if position.cluster_id != identity.cluster_id:
        raise ConfigurationError(
            f"the checkpoint of version {position.weight_version} belongs to cluster {position.cluster_id}, "
            f"this is {identity.cluster_id}: its offsets mean nothing here; connect to the old one or start a new run"
        )
    for topic, topic_id in position.topic_ids.items():
        if identity.topic_ids.get(topic) != topic_id:
            raise ConfigurationError(
                f"topic {topic} was deleted and made again (id {identity.topic_ids.get(topic)}, the checkpoint has "
                f"{topic_id}): the checkpoint's offsets mean nothing; start a new run"
            )


def reading_start(
    wanted: Mapping[Partition, int], log_starts: Mapping[Partition, int], *, accept_loss: bool
) -> ReadingStart:
    """Where to read on, partition by partition; raises `ConfigurationError` if records expired and that isn't accepted.

    A partition that the checkpoint doesn't know is wanted from offset 0.
    """
    expired = {
        partition: (wanted.get(partition, 0), start)
        for partition, start in log_starts.items()
        if wanted.get(partition, 0) < start
    }
    if expired and not accept_loss:
        (topic, number), (offset, start) = next(iter(expired.items()))
        raise ConfigurationError(
            f"{topic}/{number}: offset {offset} is wanted and the log starts at {start}: {start - offset} records "
            f"expired unread ({len(expired)} partitions in all); start with --accept-loss to close their groups as "
            "expired, and raise the topic's retention"
        )
    offsets = {partition: max(wanted.get(partition, 0), start) for partition, start in log_starts.items()}
    return ReadingStart(offsets=offsets, is_loss_accepted=bool(expired))


def _at(message: Message) -> str:
    return f"{message.topic}/{message.partition}@{message.offset}"
