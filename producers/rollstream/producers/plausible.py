"""Which records of `producers` can be true: each is compared with the log. Pure.

Anybody who may write there may write in any producer's name. A record that says what the log contradicts is passed
over: else one record could stop a producer for good.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from rollstream.producers.numbering import read_mark
from rollstream.producers.sources.identity import INGESTED
from rollstream.schemas.producer import ProducerProgress

CLOCKS_DIFFER: Final = timedelta(minutes=10)
"""How far the clock of a producer may be from the broker's, and claims of the same moment from each other."""
_MOST_EMPTY_PASSES: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnds:
    """The next offset of each partition of `ledger`, and of `prompts` or `serve-prompts`, whichever is further, after
    the record was read. `ingested`: that of `ingest-prompts`; None where nobody poses what lies there.
    """

    prompts: Mapping[int, int]
    ledger: int
    ingested: int | None = None

    @property
    def num_prompts(self) -> int:
        """At most so many prompts were ever submitted."""
        return sum(self.prompts.values())


def why_untrue(record: ProducerProgress, appended_at: datetime, ends: LogEnds) -> str | None:
    """What the log contradicts in a record that the broker appended at `appended_at`; None if nothing."""
    return _untrue_times(record, appended_at) or _untrue_offsets(record, ends) or _untrue_place(record, ends)


def _untrue_times(record: ProducerProgress, appended_at: datetime) -> str | None:
    latest = appended_at + CLOCKS_DIFFER
    if is_early(record.incarnation, appended_at):
        return f"incarnation {record.incarnation} began after {latest}, more than 10 minutes after it was written"
    if record.claimed_at > latest:
        return f"claimed_at {record.claimed_at} is more than 10 minutes after it was written"
    return None


def _untrue_offsets(record: ProducerProgress, ends: LogEnds) -> str | None:
    if record.ledger_offset > ends.ledger:
        return f"ledger_offset {record.ledger_offset}: the ledger ends at {ends.ledger}"
    for name, offset in record.prompts_offsets.items():
        end = ends.prompts.get(int(name)) if name.isdecimal() and len(name) < 10 else None
        if end is None or offset > end:
            return f"prompts_offsets {name[:20]}: {offset}, where prompts end at {dict(ends.prompts)}"
    return None


def _untrue_place(record: ProducerProgress, ends: LogEnds) -> str | None:
    if record.next_sequence > ends.num_prompts:
        return f"next_sequence {record.next_sequence}: only {ends.num_prompts} prompts were ever submitted"
    position = record.mark.partition("/")[0]
    # A position there is an offset, and not every record is a prompt that was posed.
    ingested = ends.ingested if record.source.startswith(INGESTED) else None
    most = record.next_sequence if ingested is None else ingested
    if position.isdecimal() and (len(position) > 20 or int(position) > most):
        what = "next_sequence" if ingested is None else "the end of ingest-prompts"
        return f"mark {record.mark[:40]!r} is beyond {what} {most}"
    mark = read_mark(record.mark)
    if mark is not None and mark.of_pass is not None:
        epoch, first = mark.of_pass
        # A pass poses a row at least, unless it was begun anew.
        if first > mark.position or epoch > mark.position + _MOST_EMPTY_PASSES:
            return f"mark {record.mark[:40]!r}: there were not so many passes"
    return None


def why_not_after(record: ProducerProgress, source: str, claimed_at: datetime) -> str | None:
    """What a record contradicts in what its producer said before; None if nothing. A claim is kept with its source."""
    if record.source == source and abs(record.claimed_at - claimed_at) > CLOCKS_DIFFER:
        return f"claimed_at {record.claimed_at}: until then it had this source since {claimed_at}"
    return None


def why_not_further(record: ProducerProgress, before: ProducerProgress) -> str | None:
    """What a record contradicts in where its producer was in this source; None if nothing. A producer only goes on."""
    if record.source != before.source or record.incarnation < before.incarnation:
        return None
    mark, mark_before = read_mark(record.mark), read_mark(before.mark)
    if mark_before is None:
        return None
    is_on = mark is not None and (mark.of_pass or ()) >= (mark_before.of_pass or ())
    if is_on and mark is not None and mark.position >= mark_before.position and mark_before.seed in ("", mark.seed):
        return None
    return f"mark {record.mark[:40]!r}: this source, in the order of its seed, was read to {before.mark[:40]!r} before"


def is_early(incarnation: int, appended_at: datetime) -> bool:
    """Whether a process began, by its own clock, long after the broker appended what it wrote."""
    return incarnation > microseconds(appended_at + CLOCKS_DIFFER)


def microseconds(moment: datetime) -> int:
    """Microseconds since 1970."""
    return int(moment.timestamp() * 1_000_000)
