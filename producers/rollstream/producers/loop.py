"""The producer stage: submits prompts, with as many groups open as its share allows. That bounds policy lag
(`credit.py`).

Consumes   `ledger`: which groups are closed; at the start also `prompts`: its own and what others submitted.
Produces   `prompts`.
Waits for  credit, i.e. for its groups to close.
Unblocked  by the trainer, which closes every group, trained on or dropped.

What happens when …
  … this process is killed: it keeps nothing on disk. The next one rebuilds its sequence number and its credit from
    `prompts` and `ledger`, and submits those prompts of the last batch that are missing on the topic.
  … it is asked to stop: it waits until Kafka has confirmed the current batch, then it ends.
  … a prompt is submitted twice: the same row and epoch have the same group_id, which is one group for the trainer
    and counts once against the share.
  … a record of `prompts` or `ledger` can't be read: it is passed over. Generators put the prompt into dead-letters.
    If it was an entry of drops, the credit of its groups comes back only if a later entry closes them too. If it was
    a step, a restart or a rollback, a later entry's parent is unknown: the process ends, non-zero.
  … the trainer stops, or falls behind: the share is used up, so nothing is submitted that would become too old.
  … the trainer restarts from a checkpoint: groups closed by the steps that were cut are open again, and count again.
  … the broker takes no more records: the process ends, non-zero.
"""

import logging
from collections.abc import Iterable, Iterator
from itertools import islice

from rollstream.bus.message import Message
from rollstream.bus.publisher import DELIVERY_TIMEOUT_SECONDS, Publisher
from rollstream.bus.reader import TopicReader
from rollstream.bus.run import Run
from rollstream.engines.settings import EngineSettings
from rollstream.process.health import Health
from rollstream.process.stop import Stop
from rollstream.producers import metrics
from rollstream.producers.credit import Credit
from rollstream.producers.numbering import last_sequence, numbered_rows, prompt_of_row
from rollstream.producers.settings import ProducerSettings
from rollstream.producers.shares import reported
from rollstream.producers.sources.build import build_source, sampling_of
from rollstream.producers.sources.protocol import Source
from rollstream.schemas.errors import BrokerError
from rollstream.schemas.prompt import PromptSubmitted, Sampling
from rollstream.schemas.topics import LEDGER, PROMPTS

_LOG = logging.getLogger(__name__)
# One batch. After a kill the next process looks this far back for prompts that are missing on the topic.
_MOST_AT_ONCE = 500
_WAIT_SECONDS = 0.5


class Producer:
    """One producer; `run` returns when a finite source is done, or when it is asked to stop."""

    def __init__(self, settings: ProducerSettings, source: Source, *, sampling: Sampling, health: Health) -> None:
        self._settings = settings
        self._source = source
        self._sampling = sampling
        self._health = health
        self._credit = Credit(settings.share)
        self._uncounted: set[str] = set()
        self._next_sequence = 0
        self._run = Run(settings)
        self._run.make_codecs(PROMPTS, LEDGER)

    def run(self, stop: Stop) -> None:
        """Rebuild the credit, then submit as it allows; raises `BrokerError` when the broker takes no more records."""
        with self._run.reader(LEDGER) as ledger:
            self._rebuild(ledger)
            with self._run.publisher(self._run.group(f"producer.{self._settings.name}")) as publisher:
                self._submit_all(ledger, publisher, stop)

    def _rebuild(self, ledger: TopicReader) -> None:
        self._fold_in(ledger.to_end())
        for prompt in self._run.read(PROMPTS):
            self._remember(prompt)
        self._report()
        self._health.check("credit", True, "rebuilt from prompts and ledger")
        _LOG.info(
            "producer %s looks for prompts to submit from %d on, with %d of %d groups outstanding",
            self._settings.name, self._next_sequence, self._credit.num_outstanding, self._credit.share,
        )  # fmt: skip

    def _fold_in(self, messages: Iterable[Message]) -> None:
        for message in messages:
            entry = self._run.decoded(LEDGER, message)
            if entry is not None:
                self._credit.fold_in(entry)

    def _remember(self, prompt: PromptSubmitted) -> None:
        if prompt.producer != self._settings.name:
            self._uncounted.add(prompt.group_id)
            return
        # After a kill any prompt of the last batch may be missing on the topic. So the whole batch is gone through
        # again, and the prompts that are there are left out.
        self._next_sequence = max(self._next_sequence, prompt.sequence + 1 - _MOST_AT_ONCE)
        if self._needs_credit:
            self._credit.submitted(prompt.group_id)
        else:
            self._uncounted.add(prompt.group_id)

    def _submit_all(self, ledger: TopicReader, publisher: Publisher, stop: Stop) -> None:
        prompts = self._new_prompts()
        is_exhausted = False
        while not stop.is_asked:
            self._health.heartbeat("loop", max_age_seconds=DELIVERY_TIMEOUT_SECONDS + 60)
            batch = [] if is_exhausted else list(islice(prompts, self._room))
            is_exhausted = is_exhausted or (not batch and self._room > 0)
            self._publish(publisher, batch)
            if is_exhausted and self._is_done:
                _LOG.info("producer %s is done: %d prompts", self._settings.name, self._next_sequence)
                return
            self._fold_in(ledger.poll(timeout_seconds=0 if batch else _WAIT_SECONDS))
            self._report()

    @property
    def _needs_credit(self) -> bool:
        return self._settings.purpose == "train"

    @property
    def _room(self) -> int:
        return min(_MOST_AT_ONCE, self._credit.free) if self._needs_credit else _MOST_AT_ONCE

    @property
    def _is_done(self) -> bool:
        return not (self._settings.wait_until_closed and self._credit.num_outstanding)

    def _new_prompts(self) -> Iterator[PromptSubmitted]:
        """The prompts that are still to be submitted, each counted against credit as it is handed out."""
        stop_before = last_sequence(self._source, epochs=self._settings.epochs, num_prompts=self._settings.num_prompts)
        for numbered in numbered_rows(self._source, first=self._next_sequence, stop_before=stop_before):
            self._next_sequence = numbered.sequence + 1
            prompt = prompt_of_row(
                numbered, settings=self._settings, dataset=self._source.dataset, sampling=self._sampling
            )
            if prompt.group_id in self._uncounted or self._credit.is_known(prompt.group_id):
                continue
            if self._needs_credit:
                self._credit.submitted(prompt.group_id)
            yield prompt

    def _publish(self, publisher: Publisher, batch: list[PromptSubmitted]) -> None:
        deliveries = [publisher.publish_soon(self._run.out_record(PROMPTS, prompt)) for prompt in batch]
        for delivery in deliveries:
            try:
                delivery.result(DELIVERY_TIMEOUT_SECONDS + 30)
            except TimeoutError as error:
                topic = self._run.topic(PROMPTS)
                raise BrokerError(f"no delivery report from {topic} in {DELIVERY_TIMEOUT_SECONDS + 30} s") from error
        metrics.SUBMITTED.inc(len(batch))

    def _report(self) -> None:
        metrics.SHARE.set(self._credit.share)
        metrics.OUTSTANDING.set(self._credit.num_outstanding)
        metrics.SEQUENCE.set(self._next_sequence)


def idle_engine_warning(settings: ProducerSettings) -> str | None:
    """A warning if the share is too small to keep the run's engine busy; else None.

    The engine is described in the generator's table of the run's file.
    """
    engine = settings.table_of("generator").get("engine")
    num_samples = settings.share * settings.group_size
    if settings.purpose != "train" or not isinstance(engine, dict):
        return None
    wanted = engine.get("max_num_seqs", EngineSettings.model_fields["max_num_seqs"].default)
    if num_samples >= wanted:
        return None
    return (
        f"share {settings.share} x group_size {settings.group_size} = {num_samples} samples in flight at most, the "
        f"engine runs {wanted} side by side: raise groups_per_step or max_policy_lag and the share with them, or lower "
        "max_num_seqs"
    )


def run_producer(settings: ProducerSettings, stop: Stop) -> None:
    """Build a producer and its health endpoint, run it, close both."""
    settings.log_resolved()
    warning = idle_engine_warning(settings)
    if warning:
        _LOG.warning(warning)
    health = Health()
    health.serve(settings.health_port)
    try:
        producer = Producer(settings, build_source(settings), sampling=sampling_of(settings), health=health)
        with reported(settings):
            producer.run(stop)
    finally:
        health.close()
