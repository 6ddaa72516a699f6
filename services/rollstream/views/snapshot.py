"""What `rollstream status` shows: topics, consumer lag, processes and newest step of a run, from Kafka and Redis."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rollstream.bus.admin import TopicDescription
from rollstream.bus.run import Run
from rollstream.history.passing import RecordPlace, all_skipped
from rollstream.process.fleet import Fleet, Shares, shares_of
from rollstream.process.settings.address import revealed
from rollstream.process.settings.base import StageSettings
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ledger import EntryKind, LedgerEntry
from rollstream.schemas.producer import ProducerProgress
from rollstream.schemas.topics import (
    EVAL_PROMPTS,
    EVAL_ROLLOUTS,
    LEDGER,
    PRODUCERS,
    PROMPTS,
    ROLLOUTS,
    SCORED,
    SERVE_PROMPTS,
    SERVE_ROLLOUTS,
    WEIGHTS,
    WEIGHTS_APPLIED,
    Topic,
)
from rollstream.schemas.weights import WeightsApplied, WeightsPublished
from rollstream.views.reading import Decoder, last_messages
from rollstream.views.rendering import plain

_CONSUMERS: Final[tuple[tuple[str, Topic[Any]], ...]] = (
    ("generators", PROMPTS),
    ("scorers", ROLLOUTS),
    ("trainer", SCORED),
    ("generators", EVAL_PROMPTS),
    ("scorers", EVAL_ROLLOUTS),
    ("generators", SERVE_PROMPTS),
    ("scorers", SERVE_ROLLOUTS),
)
# The newest step is among the last entries unless nothing but drops came after it. Records that can't be read may have
# come after it too, and after the newest version.
_NEWEST_ENTRIES: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """Records that a consumer group has not committed yet; None: it has never committed."""

    group: str
    topic: str
    num_records: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of a run at one moment. `step` is the newest optimizer step, `published` the newest weight version."""

    run: str
    taken_at: datetime
    topics: tuple[TopicDescription, ...]
    lags: tuple[GroupLag, ...]
    entry: LedgerEntry | None
    step: LedgerEntry | None
    published: WeightsPublished | None
    applied: tuple[WeightsApplied, ...]
    producers: tuple[ProducerProgress, ...]
    members: dict[str, dict[str, Any]]

    @property
    def shares(self) -> Shares | None:
        """The shares of the producers that live; None without any, or without Redis."""
        return shares_of(self.members)

    def as_plain(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "taken_at": self.taken_at.isoformat(),
            "topics": [asdict(topic) for topic in self.topics],
            "lag": [asdict(lag) for lag in self.lags],
            "newest_entry": plain(self.entry),
            "newest_step": plain(self.step),
            "newest_version": plain(self.published),
            "applied": plain(self.applied),
            "producers": plain(self.producers),
            "fleet": self.members,
            "shares": None if self.shares is None else {"sum": self.shares.total, "bound": self.shares.bound},
        }


class StatusSource:
    """Takes snapshots of one run."""

    def __init__(self, settings: StageSettings) -> None:
        self._run = Run(settings)
        self._admin = self._run.admin()
        self._decoder = Decoder(self._run)
        self._fleet = Fleet(revealed(settings.redis_url), settings.run)

    def snapshot(self) -> Snapshot:
        """The state now. Raises `ConfigurationError` if the run has no topics, `BrokerError` if no broker answers."""
        run = self._run.name
        # First: without a broker it fails after 5 s and says why; what follows would wait for 30 s.
        topics = tuple(self._admin.describe_topics(run))
        if not topics:
            raise ConfigurationError(
                f"run {run} has no topics on this cluster; make them with `rollstream topics create`"
            )
        placed = self._newest(LEDGER)
        skipped = all_skipped(entry for _, entry in placed)
        entries, published = (
            [record for place, record in found if place not in skipped] for found in (placed, self._newest(WEIGHTS))
        )
        return Snapshot(
            run=run,
            taken_at=datetime.now(UTC),
            topics=topics,
            lags=tuple(self._lag(group, topic) for group, topic in _CONSUMERS),
            entry=entries[-1] if entries else None,
            step=next((entry for entry in reversed(entries) if entry.kind is EntryKind.STEP), None),
            published=published[-1] if published else None,
            applied=self._newest_by_key(WEIGHTS_APPLIED),
            producers=self._newest_by_key(PRODUCERS),
            members=self._fleet.members(),
        )

    def _newest(self, topic: Topic[Any]) -> list[tuple[RecordPlace, Any]]:
        decoded = map(self._decoder.decode, last_messages(self._run, topic, _NEWEST_ENTRIES))
        return [(RecordPlace(topic.name, one.message.offset), one.record) for one in decoded if one.record is not None]

    def _newest_by_key(self, topic: Topic[Any]) -> tuple[Any, ...]:
        """The newest readable record of each key of a compacted topic."""
        # `Run.read` logs each unreadable one: every two seconds, over what is shown.
        with self._run.reader(topic) as reader:
            decoded = [self._decoder.decode(message) for message in reader.to_end()]
        newest = {one.message.key or b"": one.record for one in decoded if one.record is not None}
        return tuple(record for _, record in sorted(newest.items()))

    def _lag(self, group: str, topic: Topic[Any]) -> GroupLag:
        behind = self._admin.lag(self._run.group(group), self._run.topic(topic))
        return GroupLag(group=group, topic=topic.name, num_records=behind)
