"""Prompts that clients gave to `rollstream ingest`: the records of `ingest-prompts`, in their order. It never ends.

A row is a record, its number the record's offset: so a restart finds each again. Three kinds of records are no row. One
that can't be posed becomes a dead letter. One of a group that came before is a repeat: its client did not see the
answer, and asked again. And the broker deletes what is too old.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final, Self

from rollstream.agents.posable import refuse_unposable
from rollstream.bus.deliveries import Deliveries
from rollstream.bus.message import KafkaMessage, Partition
from rollstream.bus.reader import TopicReader
from rollstream.bus.run import Run
from rollstream.producers import metrics
from rollstream.producers.settings import ProducerSettings
from rollstream.producers.sources.identity import INGESTED
from rollstream.producers.sources.protocol import PromptRow
from rollstream.schemas.errors import BadMessageError, ConfigurationError
from rollstream.schemas.record import utc_now
from rollstream.schemas.topics import DEAD_LETTERS, INGEST_PROMPTS
from rollstream.stage.dead_letters import dead_letter

_LOG = logging.getLogger(__name__)

MOST_REMEMBERED: Final = 100_000
"""Prompts by which a repeat is known, the newest. A later repeat uses credit until its prompt expires."""
_READERS: Final = "ingest"
_MOST_AT_ONCE: Final = 100
_WAIT_SECONDS: Final = 0.1
_MOST_SILENT: Final = 100
_MOST_UNUSABLE: Final = 20


class IngestSource:
    """Reads `ingest-prompts`, without waiting where nothing is there. For one thread; use it as a context manager."""

    num_rows: None = None

    def __init__(self, settings: ProducerSettings) -> None:
        """Raises `ConfigurationError` if there is no such topic, `BrokerError` if no broker answers, as do `rows`."""
        self._settings = settings
        self._run = Run(settings)
        self._run.make_codecs(INGEST_PROMPTS)
        self._reading = ExitStack()
        self.dataset = f"{INGESTED}{self._run.admin().shape(self._run.topic(INGEST_PROMPTS)).topic_id}"
        self._publisher = self._run.publisher(self._run.group(_READERS))
        for outcome in ("posed", "repeat", "dead_letter"):
            metrics.INGESTED.labels(outcome=outcome)
        # Id of a prompt to the offset where it came first.
        self._firsts: OrderedDict[str, int] = OrderedDict()
        self._next = 0
        # What was read once is counted, and made a dead letter.
        self._seen_to = 0
        self._pending: deque[PromptRow] = deque()
        self._start: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reading.close()
        self._publisher.close()

    def rows(self, epoch: int, start: int) -> Iterator[PromptRow]:
        """The rows from the offset `start` on that are there now. Raises `BrokerError`."""
        if start != self._start:
            self._seek(start)
        while self._pending or self._read():
            row = self._pending.popleft()
            self._start = row.row + 1
            yield row

    def _seek(self, start: int) -> None:
        """Read from there on. The first time it begins earlier, to know what is a repeat."""
        self._pending.clear()
        self._start = start
        self._open(min(start, self._seen_to) if self._seen_to else max(0, start - MOST_REMEMBERED))

    def _open(self, offset: int) -> None:
        """Read from this offset on, or from the first that the broker still has."""
        self._reading.close()
        [(partition, (first, _))] = self._run.bounds(INGEST_PROMPTS).items()
        if first > offset:
            _LOG.warning("records %d to %d of %s are deleted: they can't be read any more", offset, first, partition[0])
        self._next = max(first, offset)
        start: dict[Partition, int] = {partition: self._next}
        reader = self._run.reader(INGEST_PROMPTS, start=start, follows=True)
        self._reader: TopicReader = self._reading.enter_context(reader)

    def _read(self) -> bool:
        """Read until there is a row, or no more is there; whether there is one.

        It also ends after many records that are no rows, since whoever asks has other things to do.
        """
        num_silent = num_unusable = 0
        while not self._pending and num_silent < _MOST_SILENT and num_unusable < _MOST_UNUSABLE:
            messages = self._polled()
            if messages:
                num_unusable += messages[-1].offset >= (self._start or 0)
                self._take_in(messages)
            elif self._reader.at_end():
                break
            else:
                num_silent += 1
        return bool(self._pending)

    def _polled(self) -> list[KafkaMessage]:
        try:
            return self._reader.poll(_MOST_AT_ONCE, 0 if self._reader.at_end() else _WAIT_SECONDS)
        except ConfigurationError as error:
            # Its credit was used up for so long that the broker has deleted what came meanwhile.
            _LOG.warning("%s", error)
            self._open(self._next)
            return []

    def _take_in(self, messages: list[KafkaMessage]) -> None:
        """Note the rows among the messages, and make dead letters of what can't be posed."""
        letters = Deliveries()
        for message in messages:
            is_wanted = message.offset >= (self._start or 0)
            outcome = "posed"
            try:
                row = self._row(message)
            except BadMessageError as error:
                outcome = "dead_letter"
                if is_wanted and message.offset >= self._seen_to:
                    self._refuse(message, error, letters)
            else:
                if self._is_repeat(row):
                    outcome = "repeat"
                elif is_wanted:
                    self._pending.append(row)
            if is_wanted and message.offset >= self._seen_to:
                metrics.INGESTED.labels(outcome=outcome).inc()
        letters.wait()
        self._next = messages[-1].offset + 1
        self._seen_to = max(self._seen_to, self._next)

    def _row(self, message: KafkaMessage) -> PromptRow:
        """The row in a message; raises `BadMessageError`."""
        prompt = self._run.codec(INGEST_PROMPTS).decode(message.checked_value())
        refuse_unposable(prompt, self._settings)
        return PromptRow(
            prompt_id=prompt.prompt_id,
            row=message.offset,
            messages=prompt.messages,
            reference_answer=prompt.reference_answer,
            tools=prompt.tools,
            metadata=prompt.metadata,
            whole=prompt,
        )

    def _is_repeat(self, row: PromptRow) -> bool:
        """Whether its prompt came before. The same record, read again, is none."""
        first = self._firsts.setdefault(row.prompt_id, row.row)
        if len(self._firsts) > MOST_REMEMBERED:
            self._firsts.popitem(last=False)
        return first < row.row

    def _refuse(self, message: KafkaMessage, error: BadMessageError, letters: Deliveries) -> None:
        _LOG.warning("a record of ingest-prompts becomes a dead letter: %s", error, extra=message.place())
        topic, group = self._run.topic(DEAD_LETTERS), self._run.group(_READERS)
        letter = dead_letter(message, topic=topic, group=group, error=error, failed_at=utc_now())
        self._publisher.send_blocking(letter, letters)
