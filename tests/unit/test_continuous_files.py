"""Continuous collections of files and environments: new rows become parts, and no row is ever taken twice."""

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import click
import pytest

from rollstream.cli.options import Period
from rollstream.engines.http.settings import HttpSettings
from rollstream.engines.settings import EngineSettings
from rollstream.offline.continuous import batches
from rollstream.offline.continuous.production import PROGRESS
from rollstream.offline.continuous.run import run_continuous
from rollstream.offline.continuous.sources import FilesSource
from rollstream.offline.continuous.taken import TakenRows
from rollstream.offline.job import Job
from rollstream.process.stop import Stop
from rollstream.rows.open import open_rows
from rollstream.rows.write import write_rows
from rollstream.schemas.errors import ConfigurationError, EngineDeadError
from tests.harness.collecting import a_job, lines_of

NOBODY = HttpSettings(urls=("http://127.0.0.1:9",), model="tiny", ready_seconds=0.1)


def job(tmp_path: Path, source: Path | str, **fields: Any) -> Job:
    return a_job(source, **{"output": tmp_path / "out", "max_tokens": 8, **fields})


def looked(chosen: Job) -> list[str]:
    """What one look said."""
    said: list[str] = []
    run_continuous(chosen, Stop(), said.append)
    return said


def prompts(directory: Path) -> list[str]:
    """What was asked in all parts, in their order."""
    outputs = sorted(
        file for file in directory.glob("part-*") if re.fullmatch(r"part-\d{6}\.(jsonl|parquet)", file.name)
    )
    return [row.fields["prompt"] for output in outputs for row in open_rows(output)]


def put(path: Path, *rows: str) -> Path:
    with path.open("a") as stream:
        stream.write("".join(json.dumps({"prompt": row}) + "\n" for row in rows))
    return path


def test_rows_that_were_taken_are_known_in_any_order_file_and_format(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    chosen = job(tmp_path, folder)
    put(folder / "one.jsonl", "a", "b")
    looked(chosen)
    assert prompts(tmp_path / "out") == ["a", "b"]
    put(folder / "one.jsonl", "c")
    put(folder / "turned.jsonl", "b", "a", "d")
    with write_rows(folder / "same.parquet", "parquet") as writer:
        writer.write({"prompt": "a"})
        writer.write({"prompt": "e"})
    put(folder / ".hidden.jsonl", "h")
    put(folder / "other.txt", "o")
    looked(chosen)
    assert prompts(tmp_path / "out") == ["a", "b", "c", "e", "d"]
    (folder / "one.jsonl").unlink()
    put(folder / "two.jsonl", "a", "f")
    looked(chosen)
    looked(chosen)
    assert prompts(tmp_path / "out") == ["a", "b", "c", "e", "d", "f"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        PROGRESS,
        *(f"part-00000{number}.jsonl" for number in (1, 2, 3)),
    ]
    with TakenRows(tmp_path / "out" / PROGRESS) as taken:
        assert [taken.progress_of(number).begun_with for number in (1, 2, 3)] == [None] * 3, "finished, so forgotten"


def test_a_row_says_where_it_comes_from_and_is_scored_by_the_environment_that_is_named(tmp_path):
    source = tmp_path / "digits.jsonl"
    source.write_text('{"prompt": "31=", "answer": "13"}\n')
    looked(job(tmp_path, source, environment="sort_digits", format="parquet"))
    [row] = (row.fields for row in open_rows(tmp_path / "out" / "part-000001.parquet"))
    assert row["original_collected_from"] == "digits.jsonl line 1"
    assert row["reward"] in (0.0, 1.0)


def test_what_can_not_be_asked_is_listed_once_and_the_rest_goes_on(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "bad.jsonl").write_bytes(b'{"prompt": "a"}\n{"promp\n{"x": 1}\n\x00\n[]\n{"prompt": null}\n')
    (folder / "empty.jsonl").touch()
    (folder / "torn.parquet").write_bytes(b"PAR1 and no more")
    said = looked(job(tmp_path, folder))
    assert prompts(tmp_path / "out") == ["a"]
    listed = lines_of(tmp_path / "out" / "part-000001_bad_rows.jsonl")
    assert len(listed) == 7
    assert [line["row"] for line in listed if line["row"] is not None] == [{"x": 1}, {"prompt": None}]
    assert {Path(line["where"]).name.partition(" ")[0] for line in listed} == {
        "bad.jsonl", "empty.jsonl", "torn.parquet"
    }  # fmt: skip
    assert any("7 rows can't be asked" in line for line in said)
    put(folder / "bad.jsonl", "b")
    looked(job(tmp_path, folder))
    assert prompts(tmp_path / "out") == ["a", "b"]
    assert not (tmp_path / "out" / "part-000002_bad_rows.jsonl").exists()


def test_only_bad_rows_make_a_list_and_no_rollouts(tmp_path):
    source = tmp_path / "bad.jsonl"
    source.write_text("{}\n")
    looked(job(tmp_path, source))
    assert len(lines_of(tmp_path / "out" / "part-000001_bad_rows.jsonl")) == 1
    assert prompts(tmp_path / "out") == []
    with TakenRows(tmp_path / "out" / PROGRESS) as taken:
        assert (taken.open_batches(), taken.next_batch) == ([], 2)
    looked(job(tmp_path, put(source, "a")))
    assert prompts(tmp_path / "out") == ["a"]


def test_each_look_at_an_environment_takes_its_next_tasks_until_there_are_no_more(tmp_path):
    chosen = job(tmp_path, "word_count", num_tasks=40, environment="")
    for _ in range(2):
        looked(chosen)
    ids = [row["original_task_id"] for part in (1, 2) for row in lines_of(tmp_path / "out" / f"part-00000{part}.jsonl")]
    assert ids == [str(number) for number in range(80)]
    # With a period it ends by itself: the data set has 100 tasks.
    said = looked(job(tmp_path, "word_count", num_tasks=40, environment="", every=0.01, watch=True))
    assert said[-1] == "word_count/train/0 has no more tasks: nothing is left to collect"
    assert len(lines_of(tmp_path / "out" / "part-000003.jsonl")) == 20


def test_a_restart_waits_until_the_next_look_is_due(tmp_path):
    looked(job(tmp_path, "word_count", num_tasks=3, environment=""))
    stop, said = Stop(), []

    def say(line: str) -> None:
        said.append(line)
        stop.ask()

    run_continuous(job(tmp_path, "word_count", num_tasks=3, environment="", every=3600.0), stop, say)
    assert said[0].startswith("the next look at word_count/train/0 is at ")
    assert len(list((tmp_path / "out").glob("*.jsonl"))) == 1


def test_a_batch_that_was_begun_is_finished_where_a_look_takes_another_number_of_tasks_by_now(tmp_path):
    def killed(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_continuous(job(tmp_path, "word_count", num_tasks=3, environment="", watch=True), Stop(), killed)
    stop = Stop()
    chosen = job(tmp_path, "word_count", num_tasks=4, environment="", watch=True)
    run_continuous(chosen, stop, lambda line: stop.ask() if "part-000002" in line else None)
    assert len(prompts(tmp_path / "out")) == 7


def test_a_file_that_is_being_written_is_left_for_the_next_look(tmp_path):
    source = put(tmp_path / "rows.jsonl", "a")
    with TakenRows(tmp_path / "state") as taken:
        files = FilesSource(source, settled_seconds=60.0)
        assert list(files.look(taken)) == []
        old = time.time() - 61
        os.utime(source, (old, old))
        assert [found.file for found in files.look(taken)] == [str(source)]


def test_more_rows_than_a_part_takes_make_several(tmp_path, monkeypatch):
    monkeypatch.setattr(batches, "MOST_ROWS", 4)
    looked(job(tmp_path, put(tmp_path / "rows.jsonl", *"abcdefghij")))
    sizes = [len(lines_of(tmp_path / "out" / f"part-00000{number}.jsonl")) for number in (1, 2, 3)]
    assert sizes == [4, 4, 2]


def test_rows_are_known_as_long_as_their_file_is_there_and_others_for_some_days(tmp_path):
    with TakenRows(tmp_path / "state") as taken:
        assert taken.is_new(b"of a file", "/in/one.jsonl")
        assert taken.is_new(b"of a topic", "")
        taken.note_marks({"/in/one.jsonl": [1, 2]})
        assert taken.forget(days=1) == 0
        # Older than tomorrow.
        assert taken.forget(days=-1) == 1
        assert not taken.is_new(b"of a file", "/in/one.jsonl")
        taken.unmark("/in/one.jsonl")
        assert taken.forget(days=-1) == 1
        assert taken.is_new(b"of a topic", "")


def test_a_directory_belongs_to_one_source(tmp_path):
    put(tmp_path / "one.jsonl", "a")
    put(tmp_path / "two.jsonl", "b")
    looked(job(tmp_path, tmp_path / "one.jsonl"))
    with pytest.raises(ConfigurationError, match=r"source = .*one\.jsonl.*two\.jsonl"):
        looked(job(tmp_path, tmp_path / "two.jsonl"))


def test_rows_of_another_column_need_another_directory(tmp_path):
    (tmp_path / "one.jsonl").write_text('{"question": "a"}\n')
    looked(job(tmp_path, tmp_path / "one.jsonl"))
    with pytest.raises(ConfigurationError, match=r"prompt_key = .prompt.*question"):
        looked(job(tmp_path, tmp_path / "one.jsonl", prompt_key="question"))
    looked(job(tmp_path, tmp_path / "one.jsonl", prompt_key="question", output=tmp_path / "anew"))
    assert prompts(tmp_path / "anew") == ["a"]


def test_a_directory_with_files_of_somebody_else_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "state.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="holds files of somebody else"):
        looked(job(tmp_path, put(tmp_path / "one.jsonl", "a")))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["state.json"]


def test_the_parts_of_a_directory_are_read_as_one_set_of_rows(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for row in "abc":
        put(folder / f"{row}.jsonl", row)
        (folder / f"{row}.jsonl").write_text((folder / f"{row}.jsonl").read_text() + '{"x": 1}\n')
        looked(job(tmp_path, folder))
    rows = open_rows(tmp_path / "out")
    assert [(row.number, row.where, row.fields["prompt"]) for row in rows] == [
        (number, f"part-00000{number + 1}.jsonl line 1", row) for number, row in enumerate("abc")
    ]
    before = rows.identity()
    assert rows.num_rows == 3
    put(folder / "d.jsonl", "d")
    looked(job(tmp_path, folder))
    assert open_rows(tmp_path / "out").identity() != before


def test_what_an_engine_left_open_is_finished_at_the_start_also_where_the_next_look_is_hours_away(tmp_path):
    source, stop = put(tmp_path / "one.jsonl", "a"), Stop()
    broken = job(tmp_path, source, engine=EngineSettings(kind="openai_http", http=NOBODY))
    with pytest.raises(EngineDeadError):
        looked(broken)
    chosen = job(tmp_path, source, every=21600.0)

    def stop_when_it_waits(line: str) -> None:
        if "the next look" in line:
            stop.ask()

    run_continuous(chosen, stop, stop_when_it_waits)
    assert prompts(tmp_path / "out") == ["a"]


def test_outputs_that_do_not_fit_are_refused(tmp_path):
    source = put(tmp_path / "one.jsonl", "a")
    with pytest.raises(ConfigurationError, match="name a directory without a suffix"):
        looked(job(tmp_path, source, output=tmp_path / "out.jsonl"))
    with pytest.raises(ConfigurationError, match=r"remove .* yourself"):
        looked(job(tmp_path, source, overwrite=True))
    with pytest.raises(ConfigurationError, match="lies in the source"):
        looked(job(tmp_path, tmp_path, output=tmp_path / "out"))
    with pytest.raises(ConfigurationError, match="written like topic:demo"):
        looked(job(tmp_path, source, to="elsewhere"))
    with pytest.raises(ConfigurationError, match=r"name the file with \[kafka\]"):
        looked(job(tmp_path, source, to="topic:demo.collected"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / PROGRESS).write_bytes(b"no database at all, but long enough to be looked at" * 20)
    with pytest.raises(ConfigurationError, match="is damaged, or of another program"):
        looked(job(tmp_path, source, output=tmp_path / "broken"))


def test_periods_are_written_with_their_unit():
    kind = Period()
    assert [kind.convert(text, None, None) for text in ("90s", "30m", "6h", "2d")] == [90, 1800, 21600, 172800]
    for text in ("6", "0s", "1.5h", "-1h", "400d", "6 hours", "9" * 40 + "s"):
        with pytest.raises(click.BadParameter, match="written like 90s"):
            kind.convert(text, None, None)
