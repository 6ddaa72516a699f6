"""Which open groups of a producer's own record are real: a group that nobody submitted would never close.

Such a group would use credit for ever. Real is one whose prompt lies on `prompts`: the trainer opens it there, and
closes it. Where prompts have expired, it is real if the producer's source gives it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from rollstream.bus.message import Partition
from rollstream.bus.run import Run
from rollstream.schemas.topics import PROMPTS

LOOKED_BACK_ROWS: Final = 2000
"""Rows of the source that are looked at before the producer's place. Few groups are open longer than the next ones."""
_LEAST_WINDOW: Final = 500


def not_on_prompts(run: Run, groups: Iterable[str], read_to: Mapping[int, int]) -> set[str]:
    """Those of the groups without a prompt on the topic. Looks first shortly before `read_to`, where most are."""
    missing = set(groups)
    if not missing:
        return missing
    bounds = run.bounds(PROMPTS)
    firsts = {place: first for place, (first, _) in bounds.items()}
    window = _LEAST_WINDOW + 4 * len(missing)
    near = {place: min(max(first, read_to.get(place[1], end) - window), end) for place, (first, end) in bounds.items()}
    missing = _without_found(run, missing, near)
    return missing if near == firsts or not missing else _without_found(run, missing, firsts)


def have_prompts_expired(run: Run) -> bool:
    """Whether `prompts` has lost its first records, so that what is not there may have been there."""
    return any(first > 0 for first, _ in run.bounds(PROMPTS).values())


def _without_found(run: Run, groups: set[str], start: Mapping[Partition, int]) -> set[str]:
    missing = set(groups)
    keys = {group.encode("utf-8", "replace") for group in groups}
    with run.reader(PROMPTS, start=start) as reader:
        for message in reader.to_end():
            if message.key in keys and (prompt := run.decoded(PROMPTS, message)) is not None:
                missing.discard(prompt.group_id)
                if not missing:
                    break
    return missing
