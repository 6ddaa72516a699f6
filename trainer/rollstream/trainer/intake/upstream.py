"""Asks the broker every few seconds how far generators and scorers are; a thread of its own, off the hot path."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.run import Run
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.topics import PROMPTS, ROLLOUTS
from rollstream.trainer.intake.aging import Upstream

Clock = Callable[[], float]
"""Seconds that never run backwards, from any origin."""

_LOG = logging.getLogger(__name__)

ASK_EVERY_SECONDS: Final = 2.0
_FRESH_SECONDS: Final = 15.0
_JOIN_SECONDS: Final = 2.0


class UpstreamWatcher:
    """The newest answer; while the broker is away the last one stays, and is soon no longer fresh."""

    def __init__(self, run: Run, clock: Clock = time.monotonic) -> None:
        self._run = run
        self._latest = Upstream()
        self._clock = clock
        self._asked_at: float | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._ask_for_ever, name="upstream", daemon=True)
        self._thread.start()

    @property
    def latest(self) -> Upstream:
        """The newest answer, the same object until a newer one is there."""
        return self._latest

    @property
    def is_fresh(self) -> bool:
        """Whether the broker answered lately, so that an end of a topic that was seen is still its end."""
        return self._asked_at is not None and self._clock() - self._asked_at < _FRESH_SECONDS

    def close(self) -> None:
        """Ask no more."""
        self._closing.set()
        self._thread.join(timeout=_JOIN_SECONDS)

    def _ask_for_ever(self) -> None:
        admin = self._run.admin()
        while not self._closing.wait(ASK_EVERY_SECONDS):
            asked_at = self._clock()
            try:
                self._latest = _ask(admin, self._run)
            except RollstreamError as error:
                _LOG.warning("how far the other stages are is unknown for now: %s", error)
            else:
                self._asked_at = asked_at


def _ask(admin: KafkaAdmin, run: Run) -> Upstream:
    """In this order: a prompt that was committed has its samples below the end of `rollouts` asked after it."""
    rollouts = run.topic(ROLLOUTS)
    prompts_done = admin.committed_offsets(run.group("generators"), run.topic(PROMPTS))
    rollouts_end = {number: end for number, (_, end) in admin.bounds(rollouts).items()}
    rollouts_done = admin.committed_offsets(run.group("scorers"), rollouts)
    return Upstream(prompts_done=prompts_done, rollouts_end=rollouts_end, rollouts_done=rollouts_done)
