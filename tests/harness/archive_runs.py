"""Records of runs that tests archive, and what their archive must be equal to."""

from collections import Counter
from pathlib import Path

import pandas as pd

from rollstream.archive.reading import joined
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome, LedgerEntry
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import LEDGER, SCORED
from tests.harness.archiving import archive_whole
from tests.harness.builders import a_prompt, a_rollout, a_trained, an_entry
from tests.harness.running import Run
from tests.harness.trainer_runs import put_scored

Key = tuple[int, int, str]
"""Partition, offset and attempt of a record."""

GROUP_SIZE = 2
KEYS = {
    "rollouts": ["partition", "offset"],
    "groups": ["ledger_offset", "group_id"],
    "steps": ["ledger_offset"],
    "prompts": ["partition", "offset"],
    "passed_over": ["known_at", "ledger_offset"],
    "unreadable": ["topic", "partition", "offset"],
}
"""Table -> the columns that tell its rows apart."""


def prompts_of(run: Run, *rows: int) -> list[PromptSubmitted]:
    prompts = [a_prompt(row, run=run.name, group_size=GROUP_SIZE) for row in rows]
    run.submit(*prompts)
    put_scored(run, [a_rollout(float(index), index, prompt=one) for one in prompts for index in range(GROUP_SIZE)])
    return prompts


def put_entries(run: Run, *entries: LedgerEntry) -> list[int]:
    codec = AvroCodec(LEDGER)
    return [offset for _, offset in run.publish("ledger", [(run.name, codec.encode(entry)) for entry in entries])]


def a_start() -> LedgerEntry:
    return an_entry(EntryKind.RESTART, step=0, weight_version=0, parent_version=None)


def on_topic(run: Run) -> dict[Key, RolloutScored]:
    """Every readable record of `scored`."""
    found = ((message, run.on_bus.decoded(SCORED, message)) for message in run.messages("scored"))
    return {(m.partition, m.offset, one.rollout.attempt_id): one for m, one in found if one is not None}


def a_step(
    there: dict[Key, RolloutScored], version: int, *prompts: PromptSubmitted, parent: int, number: int
) -> LedgerEntry:
    """A step that used each record of these groups, where it lies on `scored`."""
    groups = {prompt.group_id for prompt in prompts}
    trained = tuple(
        a_trained(record, partition=partition, offset=offset)
        for (partition, offset, _), record in there.items()
        if record.rollout.group_id in groups
    )
    closed = tuple(ClosedGroup(group_id=group, outcome=GroupOutcome.TRAINED) for group in sorted(groups))
    return an_entry(step=number, weight_version=version, parent_version=parent, trained=trained, closed=closed)


def rows(archive: Path, table: str) -> pd.DataFrame:
    """The rows in all files of a table, as any program reads them."""
    return pd.read_parquet(archive / table).sort_values(KEYS[table], ignore_index=True)


def archived_keys(archive: Path) -> Counter[Key]:
    """Of all rows of `rollouts`, also while somebody writes."""
    found = Counter[Key]()
    for path in (archive / "rollouts").glob("scored-*.parquet"):
        keys = pd.read_parquet(path, columns=["partition", "offset", "attempt_id"])
        found.update(keys.itertuples(index=False, name=None))
    return found


def check_same_as_afresh(run: Run) -> None:
    """The archive is that of a single pass over all records: in its files, and in what becomes of them."""
    archive, afresh = run.directory / "archive", run.directory / "afresh"
    archive_whole(run.config, afresh)
    pairs = [(rows(archive, table), rows(afresh, table)) for table in KEYS]
    for found, expected in (*pairs, *zip(joined(archive), joined(afresh), strict=True)):
        pd.testing.assert_frame_equal(found.astype(str), expected.astype(str))
