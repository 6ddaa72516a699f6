"""`rollstream replay`: an archive as rows, with the reward of another rubric, or as demonstrations."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from rollstream.archive.options import ReplayOptions
from rollstream.archive.replay import replay
from rollstream.cli.replay import command
from rollstream.offline.convert.conversations import RolloutExchanges
from rollstream.schemas.errors import ConfigurationError, UnknownEnvironmentError
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome
from rollstream.schemas.prompt import Message, PromptSubmitted, ToolCall
from rollstream.schemas.rollout import FinishReason, Status
from tests.harness.archiving import write_archive
from tests.harness.builders import a_prompt, a_rollout, a_text_turn, a_turn, an_entry


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Six records: right, wrong, not scored, failed, of two turns, and a second record of the first."""
    prompts = [a_prompt(row, group_size=1) for row in range(5)]
    right = a_rollout(1.0, prompt=prompts[0])
    rollouts = [
        right,
        a_rollout(0.0, prompt=prompts[1], turns=(a_turn(text="wrong"),)),
        a_rollout(None, prompt=prompts[2]),
        a_rollout(prompt=prompts[3], status=Status.FAILED),
        a_rollout(1.0, prompt=prompts[4], turns=(a_turn(text="first"), a_turn(text="01259"))),
        right,
    ]
    return write_archive(tmp_path / "archive", rollouts)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_rollout_is_a_row_and_only_answers_are_scored_again(archive: Path, tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    report = replay(ReplayOptions(directory=str(archive), output=output, environment="sort_digits"))
    rows = lines(output)
    assert (report.num_records, report.num_written, report.unscored) == (6, 5, {})
    assert report.left_out == {"another record of the same rollout": 1}
    assert [row["reward_sort_digits"] for row in rows] == [1.0, 0.0, 1.0, None, 1.0]
    assert [row["reward"] for row in rows] == [1.0, 0.0, None, None, 1.0]
    assert [row["status_sort_digits"] for row in rows] == ["completed", "completed", "completed", "failed", "completed"]
    assert [row["response"] for row in rows] == ["01259", "wrong", "01259", None, "01259"]
    assert rows[2]["failure"] == "crash: verifier crashed"
    assert rows[2]["failure_sort_digits"] is None
    assert rows[3]["failure_sort_digits"] == rows[3]["failure"] == "engine: engine died"
    assert rows[0]["prompt"] == [{"role": "user", "content": "52910="}]
    assert (rows[0]["outcome"], rows[0]["metadata"]) == ("open", {"difficulty": "5"})


def test_demonstrations_are_single_turns_that_were_rewarded_enough(archive: Path, tmp_path: Path) -> None:
    output = tmp_path / "sft.jsonl"
    report = replay(ReplayOptions(directory=str(archive), output=output, sft=True, min_reward=1.0))
    assert lines(output) == [
        {
            "prompt": [{"role": "user", "content": "52910="}],
            "completion": [{"role": "assistant", "content": "01259"}],
            "reward": 1.0,
        }
    ]
    assert report.left_out == {
        "reward below 1": 1,
        "no reward": 1,
        "failed: there is no answer": 1,
        "several turns: what the model saw between them is not in the texts": 1,
        "another record of the same rollout": 1,
    }


def test_the_least_reward_is_that_of_the_rubric_that_scores_again(archive: Path, tmp_path: Path) -> None:
    output = tmp_path / "sft.jsonl"
    options = ReplayOptions(directory=str(archive), output=output, sft=True, min_reward=1.0, environment="sort_digits")
    assert replay(options).num_written == 2


def test_the_command_writes_parquet_and_says_what_was_left_out(archive: Path, tmp_path: Path) -> None:
    output = tmp_path / "rows.parquet"
    result = CliRunner().invoke(command, [str(archive), "--output", str(output), "--min-reward", "0.5"])
    assert result.exit_code == 0, result.output
    assert pq.read_table(output)["reward"].to_pylist() == [1.0, 1.0]
    assert f"{output}: 2 rows of 6 records" in result.output
    assert "left out: 2 no reward" in result.output
    refused = CliRunner().invoke(command, [str(archive), "--output", str(tmp_path / "rows.csv")])
    assert refused.exit_code == 2
    assert "ends in .jsonl or .parquet" in refused.output


def test_what_is_no_archive_is_refused_and_so_is_an_unknown_environment(archive: Path, tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    with pytest.raises(ConfigurationError, match="is no archive"):
        replay(ReplayOptions(directory=str(tmp_path), output=output))
    with pytest.raises(UnknownEnvironmentError, match="'ifevil' is not one of the environments"):
        replay(ReplayOptions(directory=str(archive), output=output, environment="ifevil"))
    assert not output.exists()


def test_a_damaged_file_is_named_and_leaves_no_output(archive: Path, tmp_path: Path) -> None:
    [part] = archive.glob("rollouts/scored-*.parquet")
    part.write_bytes(part.read_bytes()[:-100])
    output = tmp_path / "rows.jsonl"
    with pytest.raises(ConfigurationError, match=f"{part.name} is damaged"):
        replay(ReplayOptions(directory=str(archive), output=output))
    assert not output.exists()


def test_an_answer_that_was_cut_off_is_no_demonstration(tmp_path: Path) -> None:
    cut = a_rollout(1.0, turns=(a_turn(finish_reason=FinishReason.LENGTH),))
    archive, output = write_archive(tmp_path / "archive", [cut]), tmp_path / "rows.jsonl"
    report = replay(ReplayOptions(directory=str(archive), output=output, sft=True))
    assert (report.num_written, report.left_out) == (0, {"its answer was cut off": 1})
    replay(ReplayOptions(directory=str(archive), output=output))
    [row] = lines(output)
    assert row["finish_reason"] == "length", "so that `sft --rollouts` leaves it out too"


def test_rows_say_how_the_surviving_ledger_closed_their_group(tmp_path: Path) -> None:
    prompts = [a_prompt(row, group_size=1) for row in range(3)]
    used, dropped, open_still = (a_rollout(1.0, prompt=prompt) for prompt in prompts)
    closed = [ClosedGroup(group_id=prompt.group_id, outcome=GroupOutcome.TRAINED) for prompt in prompts]
    dropped_as = ClosedGroup(group_id=prompts[1].group_id, outcome=GroupOutcome.DROPPED, reason="no_spread")
    entries = [
        an_entry(EntryKind.RESTART, step=0, weight_version=0, parent_version=None),
        an_entry(step=1, weight_version=1, parent_version=0, closed=(closed[0], dropped_as)),
        an_entry(step=2, weight_version=2, parent_version=1, closed=(closed[2],)),
        an_entry(EntryKind.ROLLBACK, step=1, weight_version=3, parent_version=1),
    ]
    archive = write_archive(tmp_path / "archive", [used, dropped, open_still], entries=entries)
    output = tmp_path / "rows.jsonl"
    replay(ReplayOptions(directory=str(archive), output=output))
    assert [(row["outcome"], row["trained_step"]) for row in lines(output)] == [
        ("trained", 1), ("dropped", None), ("open", None),
    ]  # fmt: skip


def test_records_whose_files_somebody_has_deleted_are_said_to_be_absent(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "archive", [a_rollout(1.0)], [a_rollout(0.0, prompt=a_prompt(1))])
    first, _ = sorted(archive.glob("rollouts/scored-*.parquet"))
    first.unlink()
    output = tmp_path / "rows.jsonl"
    result = CliRunner().invoke(command, [str(archive), "--output", str(output)])
    assert "1 rows of 1 records" in result.output
    assert "not in the archive: scored/0: offsets 0 to 0" in result.output


TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALL = ToolCall(call_id="call-1", name="add", arguments='{"terms": [5, 2]}')
CALL_IN_CHAT = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"terms": [5, 2]}'}}


def tool_prompt(row: int, tool: str = json.dumps(TOOL)) -> PromptSubmitted:
    """A conversation in which a tool was called and has answered."""
    messages = (
        Message(role="user", content="5+2="),
        Message(role="assistant", content="", tool_calls=(CALL,)),
        Message(role="tool", content="7", tool_call_id="call-1"),
    )
    return a_prompt(row, group_size=1, messages=messages, tools=(tool,))


@pytest.mark.parametrize("name", ["sft.jsonl", "sft.parquet"])
def test_demonstrations_have_the_tools_and_tool_calls_of_their_prompt(tmp_path: Path, name: str) -> None:
    rollouts = [a_rollout(1.0, prompt=tool_prompt(1)), a_rollout(1.0, prompt=a_prompt(2, group_size=1))]
    archive, output = write_archive(tmp_path / "archive", rollouts), tmp_path / name
    result = CliRunner().invoke(command, [str(archive), "--output", str(output), "--sft"])
    assert result.exit_code == 0, result.output
    with_tools, plain = lines(output) if output.suffix == ".jsonl" else pq.read_table(output).to_pylist()
    assert json.loads(with_tools["tools"]) == [TOOL]
    assert with_tools["prompt"][1]["tool_calls"] == [CALL_IN_CHAT]
    assert with_tools["prompt"][2]["tool_call_id"] == "call-1"
    assert plain.get("tools") is None
    [(prompt, answer, tools), (other, _, no_tools)] = RolloutExchanges(output, None)
    assert prompt == rollouts[0].rollout.prompt.messages
    assert answer == (Message(role="assistant", content="01259"),)
    assert [json.loads(tool) for tool in tools] == [TOOL]
    assert (other, no_tools) == (rollouts[1].rollout.prompt.messages, ())


@pytest.mark.parametrize("as_sft", [True, False])
def test_tool_calls_that_a_server_told_apart_from_the_text_are_part_of_the_answer(tmp_path: Path, as_sft: bool) -> None:
    turn = a_text_turn(text="", finish_reason=FinishReason.TOOL_CALLS, tool_calls=(CALL,))
    archive = write_archive(tmp_path / "archive", [a_rollout(1.0, turns=(turn,))])
    output = tmp_path / "rows.jsonl"
    replay(ReplayOptions(directory=str(archive), output=output, sft=as_sft))
    [row] = lines(output)
    assert row["completion"] == [{"role": "assistant", "content": "", "tool_calls": [CALL_IN_CHAT]}]
    with pytest.raises(ConfigurationError, match="tool calls or reasoning apart from its text"):
        RolloutExchanges(output, None)


def test_sampled_tokens_hold_their_tool_calls_as_text(tmp_path: Path) -> None:
    turn = a_turn(text='<tool_call>{"name": "add"}</tool_call>', tool_calls=(CALL,))
    archive = write_archive(tmp_path / "archive", [a_rollout(1.0, turns=(turn,))])
    output = tmp_path / "sft.jsonl"
    replay(ReplayOptions(directory=str(archive), output=output, sft=True))
    assert lines(output)[0]["completion"] == [
        {"role": "assistant", "content": '<tool_call>{"name": "add"}</tool_call>'}
    ]


@pytest.mark.parametrize("tool", ["{no json", '["add"]', "[" * 5000])
def test_a_prompt_whose_tools_are_no_objects_is_no_demonstration(tmp_path: Path, tool: str) -> None:
    archive = write_archive(tmp_path / "archive", [a_rollout(1.0, prompt=tool_prompt(1, tool))])
    output = tmp_path / "rows.jsonl"
    report = replay(ReplayOptions(directory=str(archive), output=output, sft=True))
    assert report.left_out == {"a tool of its prompt is no JSON object": 1}
    assert replay(ReplayOptions(directory=str(archive), output=output)).num_written == 1


def test_answers_to_prompts_with_tool_calls_are_scored_again(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "archive", [a_rollout(None, prompt=tool_prompt(1))])
    output = tmp_path / "rows.jsonl"
    replay(ReplayOptions(directory=str(archive), output=output, environment="sort_digits"))
    assert [row["reward_sort_digits"] for row in lines(output)] == [1.0]
