"""Writes the groups of an archive that reasoned in cycles as a stream of files, as if `rc-actor` had collected them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from pydantic_core import to_json

from rollstream.agents.reasoning_cache import ReasoningCache
from rollstream.archive.archive import Archive
from rollstream.archive.tables import ROLLOUTS
from rollstream.archive.whole import whole_records
from rollstream.process.database import Database
from rollstream.process.settings.storage import StorageSettings
from rollstream.rc_actor.export_options import StreamExportOptions
from rollstream.rc_actor.file_streams import FileStreams
from rollstream.rc_actor.lines import SingleStreamSpec
from rollstream.rc_actor.streams import write_to_streams
from rollstream.rc_actor.texts import texts_of
from rollstream.rc_actor.training_text import TrainingText, group_of
from rollstream.rows.jsonl import json_value
from rollstream.schemas.errors import BadMessageError, ConfigurationError, RecordTooLargeError
from rollstream.schemas.rollout import Status
from rollstream.schemas.scored import RolloutScored

_TABLES: Final = """
CREATE TABLE samples (number INTEGER PRIMARY KEY, group_id TEXT, sample INTEGER, size INTEGER, texts BLOB,
    UNIQUE (group_id, sample));
"""
_GROUPS: Final = "SELECT group_id, COUNT(*), MAX(size) FROM samples GROUP BY group_id ORDER BY MIN(number)"
_TEXTS: Final = "SELECT texts FROM samples WHERE group_id = ? ORDER BY sample"


@dataclass(slots=True)
class StreamExportReport:
    """`left_out`: records and groups by reason. `gaps`: offsets of `scored` that are not archived."""

    num_groups: int = 0
    num_texts: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    gaps: list[str] = field(default_factory=list)


def export_streams(options: StreamExportOptions, storage: StorageSettings | None = None) -> StreamExportReport:
    """Write each group of which all samples completed. Memory: one file of the archive; the rest waits on the disk.

    Raises `ConfigurationError` if this is no archive, or has no such group.
    """
    archive = Archive.reading(options.directory, storage)
    report = StreamExportReport(gaps=archive.gaps(ROLLOUTS))
    backend, spec = FileStreams(), SingleStreamSpec(options.output_dir, "rc_actor")
    with Database(None, _TABLES) as database:
        for scored in whole_records(archive):
            _keep(scored, options, database, report)
        if database.one("SELECT 1 FROM samples") is None:
            why = ", ".join(f"{count} {reason}" for reason, count in report.left_out.items())
            raise ConfigurationError(f"{options.directory} has no sample in cycles that completed: {why}")
        with write_to_streams(spec, "w", backend=backend, max_entry_bytes=backend.max_bytes) as writer:
            for group_id, texts in _groups(database, report):
                try:
                    writer.write(texts, key=f"group {group_id}")
                except RecordTooLargeError:
                    report.left_out["a group that is larger than a line may be"] += 1
                    continue
                report.num_groups += 1
                report.num_texts += len(texts)
    return report


def _keep(scored: RolloutScored, options: StreamExportOptions, database: Database, report: StreamExportReport) -> None:
    """Keep the texts of a sample until its group is whole."""
    rollout = scored.rollout
    if rollout.status is not Status.COMPLETED:
        report.left_out["a sample that did not complete"] += 1
        return
    try:
        texts = texts_of(
            rollout,
            scored.scoring,
            ReasoningCache(**rollout.prompt.agent.options).options,
            attempts=options.attempts,
            with_resume_state=options.resume_state,
        )
    except BadMessageError:
        report.left_out["a sample of another agent"] += 1
        return
    added = database.run(
        "INSERT OR IGNORE INTO samples (group_id, sample, size, texts) VALUES (?, ?, ?, ?)",
        rollout.group_id, rollout.sample_index, rollout.group_size, to_json(texts),
    )  # fmt: skip
    if not added:
        report.left_out["another record of the same sample"] += 1


def _groups(database: Database, report: StreamExportReport) -> Iterator[tuple[str, list[TrainingText]]]:
    """The whole groups, in the order of their first samples."""
    for group_id, count, size in database.read(_GROUPS):
        if count < size:
            report.left_out["a group that lacks samples"] += 1
            continue
        samples = (json_value(texts.decode()) for (texts,) in database.read(_TEXTS, group_id))
        yield group_id, group_of([text for sample in samples for text in sample])
