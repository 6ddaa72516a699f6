"""Takes what clients send: checks it, writes it to its topic, and says what the broker has confirmed."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Literal, NamedTuple, TypeVar

from rollstream.bus.message import OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.bus.run import Run
from rollstream.bus.tracing import sending
from rollstream.ingest import metrics
from rollstream.ingest.entries import Entry, FeedbackEntry, PromptEntry, entries_in, invalid
from rollstream.ingest.memory import ConfirmedEntries, sum_of
from rollstream.ingest.records import Sender, entry_id, feedback_of, prompt_of
from rollstream.ingest.settings import IngestSettings
from rollstream.process.tracing.spans import OFF, Tracing
from rollstream.schemas.errors import BrokerError, EncodeError, RecordTooLargeError, RefusedRequestError
from rollstream.schemas.prompt import Purpose
from rollstream.schemas.record import Record
from rollstream.schemas.topics import FEEDBACK, INGEST_PROMPTS, SERVE_PROMPTS, Topic

_LOG = logging.getLogger(__name__)

R = TypeVar("R", bound=Record)
Kind = Literal["feedback", "prompt"]
TOPICS: Final[tuple[Topic[Any], ...]] = (FEEDBACK, INGEST_PROMPTS, SERVE_PROMPTS)
"""What is written to."""
_KINDS: Final[dict[Kind, type[Entry]]] = {"feedback": FeedbackEntry, "prompt": PromptEntry}


class Taken(NamedTuple):
    """What became of a request: the ids of the entries that are confirmed, and how many are not."""

    confirmed: list[dict[str, str]]
    num_unconfirmed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """An entry that can be written. `sum`: what its content is known by; empty if it has no idempotency key."""

    entry_id: str
    told: dict[str, str]
    topic: Topic[Any]
    record: OutRecord
    sum: str


@dataclass(frozen=True, slots=True)
class Inlet:
    """What takes requests. Any number of them may run: it keeps nothing that another would need."""

    settings: IngestSettings
    run: Run
    publisher: Publisher
    _: KW_ONLY
    confirmed: ConfirmedEntries
    tracing: Tracing = OFF

    async def take(self, kind: Kind, body: Any, sender: Sender, idempotency_key: str | None) -> Taken:
        """Write the entries of a request. Raises `RefusedRequestError`, and has written none then."""
        ready = self._ready(kind, body, sender, idempotency_key)
        known = await self._known(ready)
        fresh = [one for one in ready if one.entry_id not in known]
        written = await self._written([one.record for one in fresh])
        confirmed = {one.entry_id for one, is_there in zip(fresh, written, strict=True) if is_there}
        await self._remember([one for one in fresh if one.entry_id in confirmed and one.sum])
        metrics.ACCEPTED.labels(kind=kind).inc(len(confirmed))
        metrics.REPEATED.labels(kind=kind).inc(len(known))
        told = [one.told for one in ready if one.entry_id in known | confirmed]
        return Taken(told, len(ready) - len(told))

    def _ready(self, kind: Kind, body: Any, sender: Sender, idempotency_key: str | None) -> list[_Ready]:
        entries = entries_in(body, _KINDS[kind])
        raw = body if isinstance(body, list) else [body]
        ready = []
        for number, (entry, one) in enumerate(zip(entries, raw, strict=True)):
            own = entry.idempotency_key
            key, place = (idempotency_key, number) if own is None else (own, 0)
            named = entry_id(self.run.name, sender.client, key, place)
            try:
                ready.append(self._one(entry, named, sender, "" if key is None else sum_of(one)))
            except RefusedRequestError as error:
                raise RefusedRequestError(error.status, error.reason, f"entry {number}: {error}") from error
        if len({one.entry_id for one in ready}) < len(ready):
            raise invalid("two entries have the same idempotency key: give each its own")
        return ready

    def _one(self, entry: Entry, named: str, sender: Sender, content: str) -> _Ready:
        if isinstance(entry, FeedbackEntry):
            out = self._encoded(FEEDBACK, feedback_of(entry, named, sender))
            return _Ready(entry_id=named, told={"feedback_id": named}, topic=FEEDBACK, record=out, sum=content)
        assert isinstance(entry, PromptEntry)
        prompt = prompt_of(entry, named, sender, self.settings)
        topic = INGEST_PROMPTS if prompt.purpose is Purpose.TRAIN else SERVE_PROMPTS
        told = {"prompt_id": prompt.prompt_id, "group_id": prompt.group_id}
        return _Ready(entry_id=named, told=told, topic=topic, record=self._encoded(topic, prompt), sum=content)

    def _encoded(self, topic: Topic[R], record: R) -> OutRecord:
        try:
            return self.run.out_record(topic, record)
        except RecordTooLargeError as error:
            raise RefusedRequestError(413, "too_large", str(error)) from error
        except EncodeError as error:
            raise invalid(str(error)) from error

    async def _known(self, ready: Sequence[_Ready]) -> set[str]:
        """The ids of those that were confirmed before; raises if an id was another entry's."""
        known = set()
        for topic in TOPICS:
            asked = [one for one in ready if one.topic is topic and one.sum]
            found = await self.confirmed.sums(self.run.topic(topic), [one.entry_id for one in asked])
            for one, content in zip(asked, found, strict=True):
                if content is not None and content != one.sum:
                    raise RefusedRequestError(
                        422, "other_body", "its idempotency key was used for another entry: give each entry its own"
                    )
                if content is not None:
                    known.add(one.entry_id)
        return known

    async def _remember(self, ready: Sequence[_Ready]) -> None:
        for topic in TOPICS:
            sums = {one.entry_id: one.sum for one in ready if one.topic is topic}
            await self.confirmed.remember(self.run.topic(topic), sums)

    async def _written(self, records: Sequence[OutRecord]) -> list[bool]:
        """Publish the records; which of them the broker has confirmed in time. Others may still arrive."""
        if not records:
            return []
        with sending(self.tracing, records, operation="ingest") as sent:
            tasks = [asyncio.create_task(self.publisher.publish(record)) for record in sent]
            try:
                await asyncio.wait(tasks, timeout=self.settings.confirm_seconds)
            finally:
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
        failed = [one for one in ended if isinstance(one, BaseException)]
        for one in failed:
            if not isinstance(one, BrokerError | asyncio.CancelledError):
                raise one
        if failed:
            why = next((str(one) for one in failed if isinstance(one, BrokerError)), "the broker does not answer")
            _LOG.warning("%d of %d records were not confirmed: %s", len(failed), len(records), why)
        return [not isinstance(one, BaseException) for one in ended]
