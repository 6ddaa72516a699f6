"""The fate of each row of `rollouts`: how the surviving ledger closed its group, and whether a step used the record."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds

from rollstream.archive.disk import readable
from rollstream.archive.tables import FATE, ROLLOUTS, SAMPLE, step_directory

OPEN: Final = "open"

_ONE_DAY: Final = timedelta(days=1)
_SECOND_DAY: Final = datetime.min + _ONE_DAY


class Fate(NamedTuple):
    """How a group closed. `trained`: (partition, offset) of the records that the step used."""

    outcome: str
    reason: str
    trained_step: int | None
    closed_in_step: int | None
    closed_by: int | None
    trained: frozenset[tuple[int, int]] = frozenset()


_NONE: Final = Fate(OPEN, "", None, None, None)


def fates_of(
    groups: Iterable[str], files: Sequence[Path], survives: Callable[[int, bool], bool], *, since: int = 0
) -> dict[str, Fate]:
    """The fates of those groups that a surviving entry at offset `since` or later closes.

    `files` are those of the table `groups`, `survives` gets an entry's offset and what its row says. The first entry
    that closes a group counts. Memory: these groups alone, however long the table is.
    """
    found: dict[str, Fate] = {}
    for row in _closings(list(groups), files, since):
        fate = _fate(row)
        if survives(row["ledger_offset"], row["survives"]) and _is_first(fate, found.get(row["group_id"])):
            found[row["group_id"]] = fate
    return found


def first_day(samples: pa.Table) -> str | None:
    """The first day on which a group of these samples may have closed: it closes after its prompt was submitted.

    A day is added for clocks of clients that are ahead. So a pass costs what is new, not what was archived before.
    None: there are no samples.
    """
    columns = (samples["submitted_at"], samples["appended_at"])
    moments: list[datetime] = [moment for column in columns for moment in column.to_pylist()]
    if not moments:
        return None
    first = min(moments)
    return (max(first.replace(tzinfo=None), _SECOND_DAY) - _ONE_DAY).date().isoformat()


def fates_in(rollouts: pa.Table) -> dict[str, Fate]:
    """The fates that archived rows have, without those of groups that are open."""
    columns = ["group_id", "partition", "offset", *FATE.names]
    found: dict[str, Fate] = {}
    places: dict[str, set[tuple[int, int]]] = {}
    for row in rollouts.select(columns).to_pylist():
        group = row["group_id"]
        if row["outcome"] == OPEN:
            continue
        if row["trained"]:
            places.setdefault(group, set()).add((row["partition"], row["offset"]))
        if group not in found:
            found[group] = Fate(
                row["outcome"], row["reason"], row["trained_step"], row["closed_in_step"], row["closed_by"]
            )
    return {group: fate._replace(trained=frozenset(places.get(group, ()))) for group, fate in found.items()}


def with_fates(samples: pa.Table, fates: Mapping[str, Fate]) -> pa.Table:
    """Samples with the columns of their fate; those that they have already are replaced."""
    places = zip(samples["partition"].to_pylist(), samples["offset"].to_pylist(), strict=True)
    rows = [
        _columns(fates.get(group, _NONE), place)
        for group, place in zip(samples["group_id"].to_pylist(), places, strict=True)
    ]
    plain = samples.select(SAMPLE.names)
    added = pa.Table.from_pylist(rows, schema=FATE)
    for field in FATE:
        plain = plain.append_column(field, added[field.name])
    return plain


def by_directory(rollouts: pa.Table) -> dict[str, pa.Table]:
    """Rows of `rollouts` by the directory that they go to, below that of the archive."""
    pairs = zip(_days(rollouts), rollouts["trained_step"].to_pylist(), strict=True)
    return _divided(rollouts, [f"{ROLLOUTS}/day={day}/{step_directory(step)}" for day, step in pairs])


def by_day(name: str, rows: pa.Table) -> dict[str, pa.Table]:
    """Rows of another table by their directory."""
    return _divided(rows, [f"{name}/day={day}" for day in _days(rows)])


def open_groups(rollouts: pa.Table) -> frozenset[str]:
    """The groups of which it is not known how they end."""
    pairs = zip(rollouts["group_id"].to_pylist(), rollouts["outcome"].to_pylist(), strict=True)
    return frozenset(group for group, outcome in pairs if outcome == OPEN)


def _closings(groups: Sequence[str], files: Sequence[Path], since: int) -> Iterator[Mapping[str, Any]]:
    if not groups:
        return
    chosen = ds.field("group_id").isin(groups) & (ds.field("ledger_offset") >= since)
    columns = [
        "group_id",
        "outcome",
        "reason",
        "trained_step",
        "closed_in_step",
        "ledger_offset",
        "survives",
        "trained",
    ]
    for path in files:
        with readable(path):
            for batch in ds.dataset(str(path), format="parquet").to_batches(columns=columns, filter=chosen):
                yield from batch.to_pylist()


def _days(rows: pa.Table) -> list[str]:
    return [f"{moment:%Y-%m-%d}" for moment in rows["appended_at"].to_pylist()]


def _divided(rows: pa.Table, directories: Sequence[str]) -> dict[str, pa.Table]:
    indices: dict[str, list[int]] = {}
    for index, directory in enumerate(directories):
        indices.setdefault(directory, []).append(index)
    return {directory: rows.take(pa.array(chosen)) for directory, chosen in indices.items()}


def _fate(row: Mapping[str, Any]) -> Fate:
    trained = frozenset((one["partition"], one["offset"]) for one in row["trained"])
    return Fate(
        row["outcome"], row["reason"], row["trained_step"], row["closed_in_step"], row["ledger_offset"], trained
    )


def _is_first(fate: Fate, other: Fate | None) -> bool:
    return other is None or (other.closed_by or 0) > (fate.closed_by or 0)


def _columns(fate: Fate, place: tuple[int, int]) -> dict[str, Any]:
    return {
        "outcome": fate.outcome,
        "reason": fate.reason,
        "trained": place in fate.trained,
        "trained_step": fate.trained_step,
        "closed_in_step": fate.closed_in_step,
        "closed_by": fate.closed_by,
    }
