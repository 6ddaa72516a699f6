"""Records of runs that tests archive, and what their archive must be equal to."""

from pathlib import Path

import pandas as pd

from rollstream.archive.archiver import Archiver
from rollstream.archive.reading import identity_of
from rollstream.archive.store import Store
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome, LedgerEntry
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import LEDGER, SCORED
from tests.harness.builders import a_prompt, a_rollout, a_trained, an_entry
from tests.harness.running import Run
from tests.harness.trainer_runs import put_scored

Key = tuple[int, int, str]
"""Partition, offset and attempt of a record."""

GROUP_SIZE = 2


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


def num_archived(archive: Path) -> int:
    return Store(archive).num_rows("scored") if (archive / "archive.json").exists() else 0


def check_same_as_afresh(run: Run) -> None:
    """The archive is that of a single pass over all records."""
    archive, afresh = run.directory / "archive", run.directory / "afresh"
    with Store.writing(afresh, identity_of(run.on_bus)) as store:
        Archiver(run.on_bus, store).make_pass()
    for table, keys in {"rollouts": ["partition", "offset"], "groups": ["ledger_offset", "group_id"],
                        "steps": ["ledger_offset"], "prompts": ["partition", "offset"]}.items():  # fmt: skip
        killed, whole = (pd.read_parquet(one / table).sort_values(keys) for one in (archive, afresh))
        plain = [frame.astype(str).reset_index(drop=True) for frame in (killed, whole)]
        pd.testing.assert_frame_equal(*plain)
