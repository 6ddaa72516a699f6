"""Streams and the commands beside them: rows of a stream, rewards for it, and streams from an archive."""

import json
from pathlib import Path

import pytest

from rollstream.archive.archive import Archive
from rollstream.archive.whole import whole_records
from rollstream.rc_actor.export import export_streams
from rollstream.rc_actor.export_options import StreamExportOptions
from rollstream.rc_actor.file_streams import FileStreams, path_of
from rollstream.rc_actor.lines import SingleStreamSpec
from rollstream.rc_actor.streams import read_stream, write_to_streams
from rollstream.rc_actor.texts import texts_of
from rollstream.rows.open import open_rows
from rollstream.rows.row import BadRow, ReadRow
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.prompt import AgentChoice
from rollstream.schemas.rollout import Status
from rollstream.schemas.scored import RolloutScored
from tests.harness.archiving import write_archive
from tests.harness.builders import a_generated, a_prompt, a_rollout, a_text_turn, a_tool_turn
from tests.harness.cycles import OPTIONS, TEMPLATES, cycle_turns, scored_by_turns


def in_cycles(row: int, sample_index: int = 0) -> RolloutScored:
    prompt = a_prompt(row, group_size=2, agent=AgentChoice(name="reasoning_cache", options=TEMPLATES))
    scoring = scored_by_turns({0: 0.0, 2: None, 4: 1.0})
    return a_rollout(prompt=prompt, sample_index=sample_index, turns=cycle_turns(3), scoring=scoring)


def test_an_archived_record_comes_back_as_it_was(tmp_path: Path) -> None:
    records = [
        in_cycles(1),
        a_rollout(turns=(a_tool_turn(), a_text_turn()), observations={"verdict": "1"}),
        a_rollout(None),
        a_rollout(status=Status.FAILED),
    ]
    found = list(whole_records(Archive.reading(write_archive(tmp_path / "archive", records))))
    assert found == records


def test_the_exporter_writes_whole_groups_as_the_actor_does_and_counts_the_rest(tmp_path: Path) -> None:
    first, second = in_cycles(1), in_cycles(1, 1)
    alone, other, failed = (
        in_cycles(2),
        a_rollout(prompt=a_prompt(3)),
        a_rollout(prompt=a_prompt(4), status=Status.FAILED),
    )
    archive = write_archive(tmp_path / "archive", [second, alone, other], [failed, first, first])
    report = export_streams(StreamExportOptions(directory=str(archive), output_dir=tmp_path))
    with read_stream(SingleStreamSpec(tmp_path, "rc_actor"), backend=FileStreams()) as reader:
        groups = list(reader.groups())
    texts = [text for one in (first, second) for text in texts_of(one.rollout, one.scoring, OPTIONS)]
    assert groups == [texts]
    assert (report.num_groups, report.num_texts) == (1, 12)
    assert report.left_out == {
        "a group that lacks samples": 1,
        "a sample of another agent": 1,
        "a sample that did not complete": 1,
        "another record of the same sample": 1,
    }


def test_an_archive_without_cycles_leaves_the_stream_that_is_there(tmp_path: Path) -> None:
    spec = SingleStreamSpec(tmp_path, "rc_actor")
    with write_to_streams(spec, backend=FileStreams()) as writer:
        writer.write(["before"])
    archive = write_archive(tmp_path / "archive", [a_rollout()])
    with pytest.raises(ConfigurationError, match="no sample in cycles that completed: 1 a sample of another agent"):
        export_streams(StreamExportOptions(directory=str(archive), output_dir=tmp_path))
    assert path_of(spec, 0).read_bytes() == b'["before"]\n'


def test_each_text_of_a_stream_but_a_summary_is_a_row(tmp_path: Path) -> None:
    spec = SingleStreamSpec(tmp_path, "rc_actor")
    scored = in_cycles(1)
    with write_to_streams(spec, backend=FileStreams()) as writer:
        writer.write(texts_of(scored.rollout, scored.scoring, OPTIONS, with_resume_state=True))
        writer.write(texts_of(a_generated(turns=cycle_turns(1)), None, OPTIONS))
    with path_of(spec, 0).open("ab") as stream:
        stream.write(b'[{"text": "a", "n_predicted": 2}]\n[1,\n[{"text": "torn')
    rows = open_rows(path_of(spec, 0))
    found = list(rows)
    good = [row.fields for row in found if isinstance(row, ReadRow)]
    assert [(row["prompt"], row["completion"], row.get("reward")) for row in good] == [
        ("P:52910= S:", "r1", 0.0),
        ("P:52910= S:s1", "r2", None),
        ("P:52910= S:s2", "r3", 1.0),
        ("P:52910= S:s3", None, None),
        ("P:52910= S:", "r1", None),
    ]
    assert {row["reference_answer"] for row in good} == {"01259"}
    bad = [(row.where, row.why) for row in found if isinstance(row, BadRow)]
    assert [where for where, _ in bad] == ["0.jsonl line 3 text 1", "0.jsonl line 4"]
    assert [row.number for row in found] == list(range(7))
    assert rows.identity().startswith("0.jsonl@")
    assert rows.num_rows == len(found)


def test_a_stream_is_told_from_other_rows_by_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "1+1="}) + "\n")
    assert [row.fields for row in open_rows(path) if isinstance(row, ReadRow)] == [{"prompt": "1+1="}]
