"""Exports how far the offsets that the trainer commits for monitors lie behind the ends of what it reads."""

from collections.abc import Callable, Mapping

from rollstream.bus.message import Partition
from rollstream.bus.metrics import LAG
from rollstream.bus.run import Run
from rollstream.schemas.topics import PROMPTS, SCORED
from rollstream.trainer.intake.aging import Offsets, Upstream


def export_own_lag(
    group: str, source: Run, upstream: Callable[[], Upstream], committed: Callable[[], Mapping[Partition, int]]
) -> None:
    """Export it from now on. Each scrape computes it anew, so it grows also while a step runs or hangs.

    `source`: the run whose topics are read. `upstream`: the broker's newest answer. `committed`: the newest offsets.
    """
    prompts, scored = source.topic(PROMPTS), source.topic(SCORED)
    LAG.labels(group, prompts).set_function(lambda: _lag(prompts, upstream().prompts_end, committed()))
    LAG.labels(group, scored).set_function(lambda: _lag(scored, upstream().scored_end, committed()))


def _lag(topic: str, ends: Offsets, committed: Mapping[Partition, int]) -> float:
    return float(sum(max(0, end - committed.get((topic, number), 0)) for number, end in ends.items()))
