"""The trainer's spans: one of each optimizer step, and one at the end of each group.

A step consumes samples of many traces, so its span begins a trace of its own and has links to their scoring, to
`MAX_LINKS` of them at most. Each group's own trace ends with a short span: trained, with a link to the step, or
dropped, with the reason.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from rollstream.process.tracing.context import TraceContext
from rollstream.process.tracing.spans import GROUP_ID, WEIGHT_VERSION, Span, Tracing
from rollstream.schemas.ledger import GroupOutcome, LedgerEntry
from rollstream.trainer.intake.admission import Admitted
from rollstream.trainer.intake.groups import DroppedGroup, Group

STEP: Final = "rollstream.step"
OUTCOME: Final = "rollstream.outcome"


def step_span(tracing: Tracing, batch: Sequence[Admitted]) -> Span:
    """The span of a step that begins now. There are few, so it is exported whatever the ratio."""
    if not tracing.is_on:
        return tracing.start("train")
    traces = (sample.trace for admitted in batch for sample in admitted.scored)
    links = [trace for trace in traces if trace is not None and tracing.samples(trace)]
    span = tracing.start("train", links=links, is_always_sampled=True)
    span.set({"rollstream.num_samples": sum(len(admitted.scored) for admitted in batch)})
    return span


def end_step(tracing: Tracing, span: Span, batch: Sequence[Admitted], entry: LedgerEntry) -> None:
    """End the span of a step that is committed, and the traces of its groups."""
    span.set({STEP: entry.step, WEIGHT_VERSION: entry.weight_version, "rollstream.num_groups": len(batch)})
    span.end()
    links = () if span.context is None else (span.context,)
    for admitted in batch if tracing.is_on else ():
        _end_group(tracing, admitted.group, entry, GroupOutcome.TRAINED, links=links)


def end_dropped(tracing: Tracing, drops: Iterable[DroppedGroup], entry: LedgerEntry) -> None:
    """End the traces of groups that `entry` closes without training on them."""
    for drop in drops if tracing.is_on else ():
        _end_group(tracing, drop.group, entry, GroupOutcome.DROPPED, reason=drop.reason.value)


def _end_group(
    tracing: Tracing,
    group: Group,
    entry: LedgerEntry,
    outcome: GroupOutcome,
    *,
    reason: str = "",
    links: Sequence[TraceContext] = (),
) -> None:
    if group.trace is None or not tracing.samples(group.trace):
        return
    span = tracing.start(f"close {outcome.value}", parent=group.trace, links=links)
    span.set({GROUP_ID: group.group_id, STEP: entry.step, OUTCOME: outcome.value, "rollstream.reason": reason})
    span.end()
