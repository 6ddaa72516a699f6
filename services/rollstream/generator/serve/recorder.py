"""Records answers into the spool, in a thread of its own, and gives them out to be published.

What becomes of an answer
  … the hook says drop, or keeps the text alone: that is done, and counted. If the hook raises, nothing is recorded: it
    may have been about to withhold something.
  … a record is larger than Kafka takes: it is recorded without its tokens, as failed.
  … the spool or its disk is full: new calls are refused when seven eighths are used, and the rest is for those in work.
    One that finds no room even so ends with an error for its client; or it is answered without a record, where the
    settings say so.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, Self

from rollstream.bus.message import OutRecord
from rollstream.bus.run import Run
from rollstream.generator.handler import without_tokens
from rollstream.generator.serve import metrics
from rollstream.generator.serve.call import ServedCall
from rollstream.generator.serve.hook import Hook, load_hook
from rollstream.generator.serve.record import can_train, rollouts_of, text_alone, without_messages
from rollstream.generator.serve.settings import ServeSettings
from rollstream.generator.serve.spool import Spool, Spooled
from rollstream.process.own_thread import OwnThread
from rollstream.schemas.errors import MachineError, RecordTooLargeError, SpoolFullError
from rollstream.schemas.rollout import GeneratorIdentity, RolloutGenerated
from rollstream.schemas.topics import SERVE_ROLLOUTS

_LOG = logging.getLogger(__name__)

_RESERVED_SHARE: Final = 8
"""One part in so many of the spool is for calls that are in work when it fills."""
_REST_SECONDS: Final = 5.0
"""Calls are refused for so long after an answer found no room: the disk may be full while the spool is not."""
_KEPT_SECONDS: Final = 30.0
"""A record that is not in the spool by then never will be: its hook hangs, or the disk."""


class SpoolRecorder:
    """A `Recorder`. `opened` makes one."""

    def __init__(self, settings: ServeSettings, run: Run, identity: GeneratorIdentity) -> None:
        self._settings = settings
        self._run = run
        self._identity = identity
        self._hook: Hook = load_hook(settings.hook)
        self._thread = OwnThread("spool")
        self._spool: Spool
        self._has_records = asyncio.Event()
        self._refusing_until = 0.0

    @classmethod
    async def opened(cls, settings: ServeSettings, run: Run, identity: GeneratorIdentity) -> Self:
        """Open the spool, with what a process before left in it. Raises what `Spool` and `load_hook` raise."""
        recorder = cls(settings, run, identity)
        run.make_codecs(SERVE_ROLLOUTS)
        open_spool = partial(Spool, settings.spool, run.name, settings.spool_bytes)
        recorder._spool = await recorder._thread.run(open_spool)
        recorder._has_records.set()
        return recorder

    @property
    def is_full(self) -> bool:
        """Whether new calls can't be recorded now."""
        most = self._settings.spool_bytes - self._settings.spool_bytes // _RESERVED_SHARE
        return self._spool.num_bytes >= most or time.monotonic() < self._refusing_until

    def refuse_if_full(self) -> None:
        if self._settings.when_spool_is_full == "refuse" and self.is_full:
            raise SpoolFullError("the spool is full: answers can't be recorded until the broker takes some")

    async def keep(self, call: ServedCall) -> None:
        """Record all choices. Raises `SpoolFullError` if they can't be, and must be."""
        rollouts = rollouts_of(call, run=self._run.name, identity=self._identity)
        try:
            async with asyncio.timeout(_KEPT_SECONDS):
                await self._thread.run(partial(self._record, rollouts))
        except (SpoolFullError, MachineError, TimeoutError) as error:
            self._note_full(error, len(rollouts))
        self._has_records.set()

    async def oldest(self) -> list[Spooled]:
        """The next answers to publish; waits until there are some."""
        while True:
            await self._has_records.wait()
            self._has_records.clear()
            if found := await self._thread.run(self._spool.oldest):
                self._has_records.set()
                return found

    async def published(self, numbers: Sequence[int]) -> None:
        """Forget answers that are on Kafka. While the disk is full it waits: else they would be published again."""
        while True:
            try:
                await self._thread.run(partial(self._spool.remove, numbers))
            except MachineError as error:
                _LOG.error("answers that are on Kafka can't be removed from the spool: %s", error)
                await asyncio.sleep(_REST_SECONDS)
            else:
                metrics.PUBLISHED.inc(len(numbers))
                return

    async def emptied(self) -> None:
        """Wait until all answers are on Kafka."""
        while self._spool.num_records:
            await asyncio.sleep(0.05)

    @property
    def num_records(self) -> int:
        """Answers that are not on Kafka yet."""
        return self._spool.num_records

    async def close(self) -> None:
        await self._thread.run(self._spool.close)

    def out_record(self, spooled: Spooled) -> OutRecord:
        """What is to be published of it."""
        return self._run.out_encoded(SERVE_ROLLOUTS, spooled.key, spooled.value)

    # From here on: in the thread of the spool.

    def _record(self, rollouts: Iterable[RolloutGenerated]) -> None:
        judged = [(rollout, self._judged(rollout)) for rollout in rollouts]
        kept = [(text_alone(rollout) if verdict == "text" else rollout, verdict) for rollout, verdict in judged]
        records = [self._encoded(rollout) for rollout, verdict in kept if verdict in ("recorded", "text")]
        if records:
            self._spool.append([(record.key or b"", record.value or b"") for record in records])
        for rollout, verdict in kept:
            metrics.ANSWERS.labels(outcome=verdict).inc()
            if verdict == "recorded" and can_train(rollout):
                metrics.MAY_TRAIN.inc()

    def _judged(self, rollout: RolloutGenerated) -> str:
        """The outcome that the hook wants."""
        try:
            verdict = self._hook(rollout)
            return {"keep": "recorded", "text": "text", "drop": "dropped"}[verdict]
        # BaseException: code of a user may also call sys.exit. Its answer must reach the client all the same.
        except BaseException as error:  # noqa: BLE001
            metrics.HOOK_FAILURES.inc()
            # Not the message: it may hold what the hook withholds.
            _LOG.error("serve.hook raised %s, so an answer is not recorded", type(error).__name__)
            return "unrecorded"

    def _encoded(self, rollout: RolloutGenerated) -> OutRecord:
        try:
            return self._run.out_record(SERVE_ROLLOUTS, rollout)
        except RecordTooLargeError as error:
            smaller = without_tokens(rollout, error)
        try:
            return self._run.out_record(SERVE_ROLLOUTS, smaller)
        except RecordTooLargeError:
            return self._run.out_record(SERVE_ROLLOUTS, without_messages(smaller))

    # In the event loop again.

    def _note_full(self, error: Exception, num_choices: int) -> None:
        self._refusing_until = time.monotonic() + _REST_SECONDS
        metrics.ANSWERS.labels(outcome="unrecorded").inc(num_choices)
        _LOG.error("an answer is not recorded: %s", error or "the spool does not answer")
        if self._settings.when_spool_is_full == "refuse":
            raise SpoolFullError("the answer can't be recorded, so it is not given: try again") from error
