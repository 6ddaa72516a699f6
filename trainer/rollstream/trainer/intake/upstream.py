"""Asks the broker every few seconds how far generators and scorers are, in a thread of its own."""

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
"""Gives seconds since any fixed moment; they never go back."""

_LOG = logging.getLogger(__name__)

ASK_EVERY_SECONDS: Final = 2.0
_FRESH_SECONDS: Final = 15.0
_JOIN_SECONDS: Final = 2.0


class UpstreamWatcher:
    """Keeps the broker's newest answer. While the broker is away the last one stays, and soon is not fresh any more."""

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
        """The newest answer: the same object until there is a newer one."""
        return self._latest

    @property
    def is_fresh(self) -> bool:
        """Whether the broker answered lately; if not, topics may have grown beyond the ends that were seen."""
        return self._asked_at is not None and self._clock() - self._asked_at < _FRESH_SECONDS

    def close(self) -> None:
        """Stop asking."""
        self._closing.set()
        self._thread.join(timeout=_JOIN_SECONDS)

    def _ask_for_ever(self) -> None:
        admin = self._run.admin()
        while not self._closing.wait(ASK_EVERY_SECONDS):
            asked_at = self._clock()
            try:
                self._latest = _ask(admin, self._run)
            except RollstreamError as error:
                _LOG.warning("cannot tell how far the other stages are, no group is given up meanwhile: %s", error)
            else:
                self._asked_at = asked_at


def _ask(admin: KafkaAdmin, run: Run) -> Upstream:
    """The order of the questions matters: samples of a prompt that is committed lie below an end asked for after it."""
    rollouts = run.topic(ROLLOUTS)
    prompts_done = admin.committed_offsets(run.group("generators"), run.topic(PROMPTS))
    rollouts_end = {number: end for number, (_, end) in admin.bounds(rollouts).items()}
    rollouts_done = admin.committed_offsets(run.group("scorers"), rollouts)
    return Upstream(prompts_done=prompts_done, rollouts_end=rollouts_end, rollouts_done=rollouts_done)
