"""What a collection takes: rows beyond a record, long prompts of many samples, and messages as others write them."""

import json
from pathlib import Path

from rollstream.offline.presets.mock import MockWordCounter
from rollstream.offline.tasks import CollectTask, task_of
from rollstream.rows.row import ReadRow
from rollstream.schemas.prompt import ToolCall
from tests.harness.collecting import collected, lines_of, settings_for, some_prompts


def test_names_of_speakers_and_openais_tool_calls_are_no_reason_to_refuse_a_conversation() -> None:
    call = {"id": "c-1", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}, "index": None}
    chat = [
        {"role": "user", "content": "2+2?", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [call], "name": None},
        {"role": "tool", "content": "4", "tool_call_id": "c-1", "name": "add"},
    ]
    task = task_of(ReadRow(3, "rows.jsonl line 4", {"prompt": chat}), "prompt")
    assert isinstance(task, CollectTask)
    assert [(message.role, message.content) for message in task.messages] == [
        ("user", "2+2?"),
        ("assistant", ""),
        ("tool", "4"),
    ]
    assert task.messages[1].tool_calls == (ToolCall(call_id="c-1", name="add", arguments='{"a": 2}'),)
    assert task.asked == chat


def test_rows_beyond_what_a_record_holds_end_nothing_and_are_counted(tmp_path: Path) -> None:
    source = some_prompts(tmp_path / "data.jsonl", 2)
    with source.open("a") as stream:
        stream.write(json.dumps({"prompt": "1=", **{f"column {n}": n for n in range(5000)}}) + "\n")
        stream.write(json.dumps({"prompt": [{"role": "user", "content": "1="}] * 5000}) + "\n")
    report = collected(source, settings_for(tmp_path / "out.jsonl"))
    assert report.summary is not None
    assert (report.summary.num_bad_rows, report.summary.num_completed) == (2, 4)
    assert [line["data_idx"] for line in lines_of(report.paths.failures)] == [2, 3]


def test_a_long_prompt_may_have_as_many_samples_as_any_other_since_no_record_of_a_topic_holds_it(
    tmp_path: Path,
) -> None:
    source = tmp_path / "data.jsonl"
    source.write_text(json.dumps({"prompt": "Count:\n\n" + "word" + " " * 2**20}) + "\n")
    report = collected(source, settings_for(tmp_path / "out.jsonl", num_samples=257), MockWordCounter())
    assert report.summary is not None
    assert report.summary.num_completed == 257, report.summary.first_messages
