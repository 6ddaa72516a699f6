"""Reads `serve-scored` for the producer of states: prompts of the states, and how far they are submitted.

It reads on only when all that it has read is submitted. So the mark is a place in each partition, before which nothing
is left to do. Rollouts shortly before the mark are read again, to know what comes twice.
"""

import json
import logging
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Final

from rollstream.bus.message import KafkaMessage, Partition
from rollstream.bus.reader import TopicReader
from rollstream.bus.run import Run
from rollstream.producers.settings import ProducerSettings
from rollstream.producers.states import metrics
from rollstream.producers.states.starts import AGENT, drawn, prompts_of, starts_of
from rollstream.schemas.errors import ConfigurationError, FailedSampleError
from rollstream.schemas.prompt import PromptSubmitted, refuse_out_of_bounds
from rollstream.schemas.rollout import RolloutGenerated, Status
from rollstream.schemas.topics import SERVE_SCORED

_LOG = logging.getLogger(__name__)
DATASET: Final = "topic serve-scored/"
_LOOKED_BACK: Final = 1000
"""Records of each partition before the mark that are read again."""
_MOST_REMEMBERED: Final = 100_000
_MOST_AT_ONCE: Final = 100


class StateReader:
    """Prompts of states, in the order in which their rollouts were scored. For one thread."""

    def __init__(self, run: Run, settings: ProducerSettings) -> None:
        self._run = run
        self._settings = settings
        self.dataset = f"{DATASET}{run.admin().shape(run.topic(SERVE_SCORED)).topic_id}"
        self.pending: deque[PromptSubmitted] = deque()
        self._reading = ExitStack()
        self._mark: dict[int, int] = {}
        self._seen: OrderedDict[str, None] = OrderedDict()

    def close(self) -> None:
        self._reading.close()

    def go_on_from(self, mark: str) -> None:
        """Read on from a mark; "" is the start. What is no offset of a partition is passed over."""
        said, bounds = _read_mark(mark), self._run.bounds(SERVE_SCORED)
        self._mark = {one[1]: min(max(first, said.get(one[1], 0)), end) for one, (first, end) in bounds.items()}
        self._open({one: max(first, self._mark[one[1]] - _LOOKED_BACK) for one, (first, _) in bounds.items()})

    @property
    def mark(self) -> str:
        """Where to read on from, once nothing is pending."""
        return json.dumps({str(number): offset for number, offset in sorted(self._mark.items())})

    def read(self) -> None:
        """Take in what is there now, if nothing is pending. Raises `BrokerError`."""
        if self.pending:
            return
        try:
            messages = self._reader.poll(_MOST_AT_ONCE, timeout_seconds=0)
        except ConfigurationError as error:
            # Its credit was used up for so long that the broker has deleted what came meanwhile.
            _LOG.warning("%s", error)
            self._open({one: max(first, self._mark.get(one[1], 0)) for one, (first, _) in
                        self._run.bounds(SERVE_SCORED).items()})  # fmt: skip
            return
        for message in messages:
            self._take_in(message)

    def _open(self, start: Mapping[Partition, int]) -> None:
        self._reading.close()
        reader = self._run.reader(SERVE_SCORED, start=start, follows=True)
        self._reader: TopicReader = self._reading.enter_context(reader)

    def _take_in(self, message: KafkaMessage) -> None:
        scored = self._run.decoded(SERVE_SCORED, message)
        is_new = message.offset >= self._mark.get(message.partition, 0)
        if is_new:
            self._mark[message.partition] = message.offset + 1
        if scored is None:
            return
        rollout = scored.rollout
        is_repeat = rollout.rollout_id in self._seen
        # Another attempt may follow one that has not completed.
        if rollout.status is Status.COMPLETED:
            self._remember(rollout.rollout_id)
        if is_new:
            outcome = "repeat" if is_repeat else self._pose(rollout)
            metrics.ROLLOUTS.labels(outcome=outcome).inc()

    def _remember(self, rollout_id: str) -> None:
        self._seen[rollout_id] = None
        if len(self._seen) > _MOST_REMEMBERED:
            self._seen.popitem(last=False)

    def _pose(self, rollout: RolloutGenerated) -> str:
        """Have its states pending; what became of them."""
        if rollout.status is not Status.COMPLETED or rollout.prompt.agent.name != AGENT:
            return "no_cycles"
        if rollout.served is not None and not rollout.served.may_train:
            return "no_consent"
        try:
            self.pending.extend(self._prompts(rollout))
        except (FailedSampleError, ConfigurationError, ValueError) as error:
            _LOG.warning("its states can't be posed: %s", error, extra={"rollout_id": rollout.rollout_id})
            return "unusable"
        return "posed"

    def _prompts(self, rollout: RolloutGenerated) -> list[PromptSubmitted]:
        starts = drawn(starts_of(rollout, self._settings.agents), rollout, self._settings)
        return list(self._fitting(prompts_of(starts, rollout, self._settings, self.dataset)))

    @staticmethod
    def _fitting(prompts: Iterator[PromptSubmitted]) -> Iterator[PromptSubmitted]:
        for prompt in prompts:
            refuse_out_of_bounds(prompt)
            yield prompt


def _read_mark(mark: str) -> dict[int, int]:
    try:
        said = json.loads(mark or "{}")
    except (ValueError, RecursionError):
        said = {}
    items = said.items() if isinstance(said, dict) else ()
    return {int(n): at for n, at in items if n.isdecimal() and len(n) < 10 and type(at) is int and 0 <= at < 2**53}
