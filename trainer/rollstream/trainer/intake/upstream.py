"""Asks the broker every few seconds how far generators and scorers are, in a thread of its own.

What the trainer's own lag is follows from the answers, so it is exported here too.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Final

from rollstream.bus.admin import CommittedOffsets, KafkaAdmin
from rollstream.bus.commit_notes import marks_in
from rollstream.bus.message import Partition
from rollstream.bus.metrics import LAG
from rollstream.bus.run import Run
from rollstream.schemas.errors import BrokerError
from rollstream.schemas.topics import LEDGER, PROMPTS, ROLLOUTS, SCORED, WEIGHTS
from rollstream.trainer.intake.aging import Offsets, Upstream
from rollstream.trainer.metrics import TOPIC_RECORDS

Clock = Callable[[], float]
"""Gives seconds since any fixed moment; they never go back."""

_LOG = logging.getLogger(__name__)

ASK_EVERY_SECONDS: Final = 2.0
_SIZES_EVERY_SECONDS: Final = 30.0
_MEASURED: Final = (PROMPTS, ROLLOUTS, SCORED, WEIGHTS, LEDGER)
_FRESH_SECONDS: Final = 15.0
_JOIN_SECONDS: Final = 2.0


class UpstreamWatcher:
    """Keeps the broker's newest answer. While the broker is away the last one stays, and soon is not fresh any more."""

    def __init__(
        self, run: Run, clock: Clock = time.monotonic, *, ask_every_seconds: float = ASK_EVERY_SECONDS
    ) -> None:
        self._run = run
        self._ask_every_seconds = ask_every_seconds
        self.latest = Upstream()
        """The newest answer: the same object until there is a newer one."""
        self._clock = clock
        self._asked_at: float | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._ask_for_ever, name="upstream", daemon=True)
        self._thread.start()

    @property
    def is_fresh(self) -> bool:
        """Whether the broker answered lately."""
        return self._asked_at is not None and self._clock() - self._asked_at < _FRESH_SECONDS

    def close(self) -> None:
        self._closing.set()
        self._thread.join(timeout=_JOIN_SECONDS)

    def _ask_for_ever(self) -> None:
        run, admin = self._run, self._run.admin()
        # Both stay open: a client takes threads and connections to every broker.
        sizes_at = -_SIZES_EVERY_SECONDS
        with closing(run.committed_by("generators")) as generators, closing(run.committed_by("scorers")) as scorers:
            while not self._closing.wait(self._ask_every_seconds):
                asked_at = self._clock()
                try:
                    self.latest = _ask(run, admin, generators, scorers)
                    self._asked_at = asked_at
                    if time.monotonic() - sizes_at >= _SIZES_EVERY_SECONDS:
                        _export_sizes(run, admin)
                        sizes_at = time.monotonic()
                # Whatever it is: without this thread no group would be given up any more, and nobody would know why.
                except Exception as error:  # noqa: BLE001
                    _LOG.warning("cannot tell how far the other stages are, no group is given up meanwhile: %s", error)


def export_own_lag(
    group: str, source: Run, upstream: Callable[[], Upstream], committed: Callable[[], Mapping[Partition, int]]
) -> None:
    """Export how far the offsets that the trainer commits for monitors lie behind the ends of what it reads.

    Each scrape computes it anew, so it grows also while a step runs or hangs.

    `source`: the run whose topics are read. `upstream`: the broker's newest answer. `committed`: the newest offsets.
    """
    prompts, scored = source.topic(PROMPTS), source.topic(SCORED)
    LAG.labels(group, prompts).set_function(lambda: _lag(prompts, upstream().prompts_end, committed()))
    LAG.labels(group, scored).set_function(lambda: _lag(scored, upstream().scored_end, committed()))


def _lag(topic: str, ends: Offsets, committed: Mapping[Partition, int]) -> float:
    return float(sum(max(0, end - committed.get((topic, number), 0)) for number, end in ends.items()))


def _ask(run: Run, admin: KafkaAdmin, generators: CommittedOffsets, scorers: CommittedOffsets) -> Upstream:
    """The order of the questions matters: an end covers the effects of whatever was committed before it was asked for.

    So samples of a committed prompt lie below the end of `rollouts`, and those of committed rollouts below that of
    `scored`. Ends and commits of different topics of one name say nothing together, so an answer during which
    `rollouts` was made anew is none. (The trainer's reader ends the process if the others were.)
    """
    prompts, rollouts, scored = run.topic(PROMPTS), run.topic(ROLLOUTS), run.topic(SCORED)
    rollouts_shape = admin.shape(rollouts)
    prompts_commits, prompts_bounds = generators.commits(prompts, admin.shape(prompts)), admin.bounds(prompts)
    prompts_done = {number: commit.offset for number, commit in prompts_commits.items()}
    rollouts_bounds = admin.bounds(rollouts)
    rollouts_done = scorers.of(rollouts, rollouts_shape)
    if admin.shape(rollouts).topic_id != rollouts_shape.topic_id:
        raise BrokerError(f"{rollouts} was made anew meanwhile")
    return Upstream(
        prompts_end=_ends(prompts_bounds),
        prompts_done=_done(prompts_done, prompts_bounds),
        rollouts_end=_ends(rollouts_bounds),
        rollouts_done=_done(rollouts_done, rollouts_bounds),
        scored_end=_ends(admin.bounds(scored)),
        begun={number: marks_in(commit.note) for number, commit in prompts_commits.items()},
        rollouts_id=rollouts_shape.topic_id,
    )


def _export_sizes(run: Run, admin: KafkaAdmin) -> None:
    for topic in _MEASURED:
        bounds = admin.bounds(run.topic(topic))
        TOPIC_RECORDS.labels(topic.name).set(sum(end - start for start, end in bounds.values()))


def _ends(bounds: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    return {number: end for number, (_, end) in bounds.items()}


def _done(committed: Mapping[int, int], bounds: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """What a group committed; what expired before it did is done as well, since nobody can read it any more."""
    return {number: max(committed.get(number, 0), start) for number, (start, _) in bounds.items()}
