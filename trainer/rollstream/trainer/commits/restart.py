"""How a trainer takes over a run: which checkpoint to restore, whether it fits this cluster, where to read on. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rollstream.bus.admin import ClusterIdentity
from rollstream.bus.message import Partition
from rollstream.history.ledger import LedgerFold
from rollstream.schemas.errors import ConfigurationError
from rollstream.trainer.commits.checkpoint import Position

# The broker deletes a little later than it may, and clocks differ.
_MOST_MARGIN_SECONDS: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPlan:
    """What the first entry publishes: `version` with the weights of `parent`, restored from `checkpoint`.

    Without a checkpoint it is the initial model: at the first start of a run, or if no checkpoint was written yet.
    `non_finite`: groups of the cut steps of which an update was skipped. The first entry closes them again: else they
    would come again after every restart, and three such steps end the process.
    """

    version: int
    parent: int | None
    step: int
    checkpoint: str | None
    non_finite: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingStart:
    """Next offset of every partition. `expired_before`: after an accepted loss, where each one ended; else empty."""

    offsets: dict[Partition, int]
    expired_before: dict[Partition, int]


def plan_restart(fold: LedgerFold, newest_version: int) -> RestartPlan:
    """Go on from the newest surviving checkpoint, else from the initial model; `newest_version` as in `History`."""
    version = newest_version + 1
    newest = fold.checkpoint
    if newest is not None:
        return RestartPlan(
            version=version, parent=newest.weight_version, step=newest.step, checkpoint=newest.uri,
            non_finite=fold.non_finite_after(newest.weight_version),
        )  # fmt: skip
    parent = fold.first_version
    non_finite = () if parent is None else fold.non_finite_after(parent)
    return RestartPlan(version=version, parent=parent, step=0, checkpoint=None, non_finite=non_finite)


def check_position(position: Position, identity: ClusterIdentity) -> None:
    """Raise `ConfigurationError` for a checkpoint of another cluster, or of topics that were deleted and made again."""
    if position.cluster_id != identity.cluster_id:
        raise ConfigurationError(
            f"the checkpoint of version {position.weight_version} belongs to cluster {position.cluster_id}, "
            f"this is {identity.cluster_id}: its offsets mean nothing here; connect to the old one or start a new run"
        )
    check_topics(position, identity.topic_ids)


def check_topics(position: Position, topic_ids: Mapping[str, str]) -> None:
    """Raise `ConfigurationError` if topics have other ids than those whose offsets the position holds."""
    for topic, topic_id in position.topic_ids.items():
        if topic_ids.get(topic) != topic_id:
            raise ConfigurationError(
                f"topic {topic} was deleted and made again (id {topic_ids.get(topic)}, the checkpoint has "
                f"{topic_id}): the checkpoint's offsets mean nothing; start a new run"
            )


def check_noted(noted: Iterable[tuple[str, str]], topic_ids: Mapping[str, str]) -> None:
    """Raise `ConfigurationError` if trainers of this run noted other ids of these topics, and wrote no checkpoint."""
    for topic, topic_id in noted:
        if topic_ids.get(topic, topic_id) != topic_id:
            raise ConfigurationError(
                f"topic {topic} was deleted and made again (id {topic_ids[topic]}, the trainer before this one read "
                f"{topic_id}): the groups of the ledger are not there any more; start a new run"
            )


def check_first_start(
    positions: Iterable[tuple[str, Position]],
    noted: Iterable[tuple[str, str]],
    *,
    run: str,
    topic_ids: Mapping[str, str],
    newest_version: int,
) -> None:
    """Raise `ConfigurationError` if the ledger is empty although trainers of this run have committed.

    `positions`: the checkpoints that lie there. `noted`: the topics that trainers read, with their ids; none notes any
    before its first entry. `topic_ids`: of the topics that are read now: a run that was begun anew has new ones.
    `newest_version`: of `weights`, -1 without any. A version and its entry are committed together.
    """
    left = [f"version {newest_version} on weights"] if newest_version >= 0 else []
    left += [f"how far a trainer read {topic}" for topic, known in sorted(noted) if topic_ids.get(topic) == known][:1]
    of_run = (name for name, position in positions if position.run == run and position.topic_ids == topic_ids)
    if (name := next(of_run, None)) is not None:
        left.append(f"checkpoint {name}")
    if left:
        raise ConfigurationError(
            f"the ledger of run {run} is empty, and there is {' and '.join(left)}: it was deleted and made again, and "
            "what it said is lost; begin a new run, under another name or after `rollstream topics delete`"
        )


def reading_start(
    wanted: Mapping[Partition, int], bounds: Mapping[Partition, tuple[int, int]], *, accept_loss: bool
) -> ReadingStart:
    """The offset to read from, of every partition.

    `wanted`: the checkpoint's offsets; a partition that it does not name is wanted from offset 0. `bounds`: the
    lowest offset that is left, and the end. Raises `ConfigurationError` if wanted records expired and that is not
    accepted.
    """
    offsets = {partition: max(wanted.get(partition, 0), start) for partition, (start, _) in bounds.items()}
    expired = [partition for partition, offset in offsets.items() if wanted.get(partition, 0) < offset]
    if expired and not accept_loss:
        topic, number = expired[0]
        offset, start = wanted.get(expired[0], 0), bounds[expired[0]][0]
        raise ConfigurationError(
            f"{topic}/{number}: offset {offset} is wanted and the log starts at {start}: {start - offset} records "
            f"expired unread ({len(expired)} partitions in all); start with --accept-loss to close their groups as "
            "expired, and raise the topic's retention"
        )
    ends = {partition: end for partition, (_, end) in bounds.items()}
    return ReadingStart(offsets=offsets, expired_before=ends if expired else {})


def with_margin(kept_seconds: float) -> float:
    """How long a closed group is remembered whose records are kept for so long: a day longer, twice as long at most."""
    return kept_seconds + min(kept_seconds, _MOST_MARGIN_SECONDS)
