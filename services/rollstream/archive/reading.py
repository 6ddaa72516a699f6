"""An archive as tables of pandas: each record counts once, with what became of it. The same as `views.sql`.

from rollstream.archive.reading import joined
tables = joined("archive", columns=["reward", "num_completion_tokens"])
tables.rollouts.groupby("closed_in_step").reward.mean()
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pandas as pd

from rollstream.archive.archive import Archive
from rollstream.archive.tables import GROUPS, PASSED_OVER, PROMPTS, ROLLOUTS, SCHEMAS, STEPS
from rollstream.process.settings.storage import StorageSettings
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ledger import EntryKind

OPEN: Final = "open"
_CUTS: Final = (EntryKind.RESTART.value, EntryKind.ROLLBACK.value)
_OF_OUTCOME: Final = ("group_id", "outcome", "reason", "trained_step", "closed_in_step", "closed_by")
_OF_RECORD: Final = ("partition", "offset", "group_id", "rollout_id")


class Joined(NamedTuple):
    """`rollouts`: each once, with `outcome` (of its group: trained, dropped or open), `reason`, `trained`
    (whether a step used this record), `trained_step`, `closed_in_step`, `closed_by` (an offset of the ledger).
    `groups`: each closing; `survives`: it is the group's outcome. `steps`: each entry of the ledger; `survives`: no
    restart or rollback has cut it. `prompts`: each group once.
    """

    rollouts: pd.DataFrame
    groups: pd.DataFrame
    steps: pd.DataFrame
    prompts: pd.DataFrame


def joined(
    location: str | Path, *, storage: StorageSettings | None = None, columns: Sequence[str] | None = None
) -> Joined:
    """The tables of the archive in a directory or at s3://bucket/prefix, gs:// or az://.

    `columns`: those of `rollouts` that are wanted besides ids and outcomes; tokens and texts take most of the memory.
    `storage`: how to reach the bucket; None: as the variables of its cloud say. Raises `ConfigurationError` if this is
    no archive, or files of `steps` or `groups` are gone or damaged.
    """
    archive = Archive.reading(location, storage)
    steps = steps_of(archive)
    groups = groups_of(archive, steps)
    wanted = None if columns is None else [name for name in SCHEMAS[ROLLOUTS].names if name in {*_OF_RECORD, *columns}]
    prompts = archive.tables(PROMPTS).to_pandas().sort_values(["partition", "offset"])
    return Joined(
        rollouts=_rollouts(archive.tables(ROLLOUTS, wanted).to_pandas(), groups),
        groups=groups,
        steps=steps,
        prompts=prompts.drop_duplicates("group_id", ignore_index=True),
    )


def steps_of(archive: Archive, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """The entries of the ledger in their order, with `survives`."""
    _refuse_gaps(archive, STEPS)
    steps = archive.tables(STEPS, columns).to_pandas()
    steps = steps.sort_values("ledger_offset").drop_duplicates("ledger_offset", ignore_index=True)
    told = archive.tables(PASSED_OVER).to_pandas().sort_values("known_at")
    told = told.drop_duplicates("ledger_offset", keep="last")
    is_out = steps.ledger_offset.isin(told.ledger_offset[~told.counts.astype(bool)])
    counts = ~is_out & (steps.kind != EntryKind.SKIP.value)
    parents = steps.parent_version.where(counts & steps.kind.isin(_CUTS)).fillna(math.inf)
    # The oldest version that a later entry goes back to.
    back_to = parents[::-1].cummin()[::-1].shift(-1, fill_value=math.inf)
    is_drops = steps.kind == EntryKind.DROPS.value
    is_cut = (steps.weight_version > back_to) | ((steps.weight_version == back_to) & is_drops)
    return steps.assign(survives=counts & ~is_cut)


def groups_of(archive: Archive, steps: pd.DataFrame, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """The closings of groups in their order. `survives`: the first one of a surviving entry, which is its outcome."""
    _refuse_gaps(archive, GROUPS)
    groups = archive.tables(GROUPS, columns).to_pandas()
    groups = groups.sort_values("ledger_offset").drop_duplicates(["ledger_offset", "group_id"], ignore_index=True)
    is_on = groups.ledger_offset.isin(steps.ledger_offset[steps.survives])
    return groups.assign(survives=is_on & ~groups.group_id.where(is_on).duplicated())


def _rollouts(records: pd.DataFrame, groups: pd.DataFrame) -> pd.DataFrame:
    outcomes = groups[groups.survives].rename(columns={"ledger_offset": "closed_by"})
    places = pd.DataFrame([(one["partition"], one["offset"]) for used in outcomes.trained for one in used],
                          columns=["partition", "offset"]).drop_duplicates()  # fmt: skip
    found = records.merge(outcomes[list(_OF_OUTCOME)], on="group_id", how="left")
    found = found.merge(places.astype("int64").assign(trained=True), on=["partition", "offset"], how="left")
    found = found.assign(
        outcome=found.outcome.fillna(OPEN), reason=found.reason.fillna(""), trained=found.trained.notna()
    )
    found = found.sort_values(["trained", "partition", "offset"], ascending=[False, True, True])
    found = found.drop_duplicates("rollout_id")
    return found.sort_values(["partition", "offset"], ignore_index=True)


def _refuse_gaps(archive: Archive, table: str) -> None:
    """An entry that is not there may have cut others. Before the first file there may have been a loss."""
    if gaps := archive.gaps(table, since=None):
        raise ConfigurationError(
            f"{archive.place}/{table} lacks {gaps[0]}: put the deleted file back, or make the archive anew"
        )
